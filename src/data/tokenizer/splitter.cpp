#include "data/tokenizer/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "data/tokenizer/pattern.h"

namespace molen::data {
namespace {

constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::size_t kStackStart = 32 * 1024, kStackMax = 8 * 1024 * 1024;

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

std::shared_ptr<const void> compile(const std::string& pattern, std::string_view origin) {
  const std::string translated = translate_pattern(pattern, origin);
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr);
  if (compiled == nullptr) throw UsageError("{}: the split pattern does not compile: {}", origin, message_of(code));
  std::shared_ptr<const void> owner(
      compiled, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  std::uint32_t empty = 0;
  pcre2_pattern_info(compiled, PCRE2_INFO_MATCHEMPTY, &empty);
  if (empty != 0) throw UsageError("{}: the split pattern can match nothing at all, which is not supported", origin);
  // Without JIT support the interpreter gives the same result, more slowly.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  return owner;
}

}  // namespace

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(match_data_));
  pcre2_match_context_free(static_cast<pcre2_match_context*>(context_));
  pcre2_jit_stack_free(static_cast<pcre2_jit_stack*>(stack_));
}

Splitter::Splitter(std::string pattern, std::string_view origin, bool force_regex) : pattern_(std::move(pattern)) {
  rule_ = force_regex                  ? Rule::kRegex
          : pattern_ == kGpt2Pattern   ? Rule::kGpt2
          : pattern_ == kLlama3Pattern ? Rule::kLlama3
                                       : Rule::kRegex;
  if (rule_ == Rule::kRegex) code_ = compile(pattern_, origin);
}

bool Splitter::match(std::string_view text, std::size_t at, RegexScratch& scratch, std::size_t& first,
                     std::size_t& last) const {
  if (scratch.match_data_ == nullptr) {
    scratch.match_data_ = pcre2_match_data_create(1, nullptr);
    auto* context = pcre2_match_context_create(nullptr);
    auto* stack = pcre2_jit_stack_create(kStackStart, kStackMax, nullptr);
    MOLEN_CHECK(scratch.match_data_ != nullptr && context != nullptr && stack != nullptr, "PCRE2 is out of memory");
    scratch.context_ = context;
    scratch.stack_ = stack;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_depth_limit(context, kMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  auto* data = static_cast<pcre2_match_data*>(scratch.match_data_);
  const int found =
      pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                  at, PCRE2_NO_UTF_CHECK, data, static_cast<pcre2_match_context*>(scratch.context_));
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) throw Error("tokenizer: the split pattern failed at byte {} of a text: {}", at, message_of(found));
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data);
  first = span[0];
  last = span[1];
  MOLEN_CHECK(first >= at && last > first && last <= text.size(), "the split pattern matched [{}, {})", first, last);
  return true;
}

}  // namespace molen::data
