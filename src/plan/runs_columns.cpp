#include "plan/runs_columns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/suggest.h"
#include "plan/runs.h"

namespace molen::plan {
namespace {

constexpr const char* kNeeded = "an error";
constexpr const char* kChosen = "chosen by the prediction";
constexpr RunColumn kColumns[] = {
    {"run_id", "any text", "exit code 2"},
    {"layers", "1 to 10000", kNeeded},
    {"hidden", "1 to 1048576", kNeeded},
    {"ffn", "1 to 16777216", "4 hidden; of swiglu 8/3 hidden, rounded up to 256"},
    {"mlp", "gelu, relu2, swiglu", "gelu"},
    {"heads", "1 to 65536", kNeeded},
    {"kv_heads", "1 to heads", "heads"},
    {"vocab", "1 to 16777216", "51200"},
    {"tied_embeddings", "yes, no", "yes for gelu, else no"},
    {"seq", "1 to 16777216 tokens", kNeeded},
    {"gpu", "a type of GPU", kNeeded},
    {"gpus", "1 to 1000000", "tp x pp x dp x cp where dp is given, else an error"},
    {"gpus_per_node", "1 to 1024", "8"},
    {"network_gbps_per_gpu", "Gb/s, one direction", kChosen},
    {"peak_16bit_tflops", "TFLOP/s", kChosen},
    {"peak_fp8_tflops", "TFLOP/s", kChosen},
    {"tp", "1 to 1000000", "1; chosen where tp, pp and dp are all blank"},
    {"pp", "1 to 1000000", "the same"},
    {"cp", "1 to 1000000", "the same"},
    {"dp", "1 to 1000000", "gpus / (tp x pp x cp); chosen as tp is"},
    {"vpp", "1 to 10000", kChosen},
    {"schedule", "1f1b, interleaved_1f1b", "1f1b; interleaved_1f1b where vpp is above 1"},
    {"pp_split", "embedding_and_head_as_layers, layers", "layers"},
    {"sequence_parallel", "yes, no", "yes where tp is above 1 and divides seq / cp, else no"},
    {"zero_stage", "0 to 3", kChosen},
    {"shard_group", "1 to 1000000 ranks", "all of dp x cp"},
    {"mbs", "1 to 10000000 sequences", kChosen},
    {"gbs", "1 to 10000000 sequences", kNeeded},
    {"recompute", "none, selective_attention, selective_op, selective_layer, full", kChosen},
    {"precision", "fp16, bf16, fp8", "bf16"},
    {"grad_dtype", "fp32, fp16, bf16", "fp32"},
    {"flash_attention", "yes, no", "yes; no where hidden / heads is above 256 or no multiple of 8"},
    {"overlap", "tp, pp, dp joined by +; none",
     "dp where zero_stage is 3, but not in fp16 without flash_attention; else none"},
    {"compile", "yes, no", "no"},
};

std::optional<double> number_of(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace

std::span<const RunColumn> run_columns() {
  return kColumns;
}

std::string columns_help() {
  std::string text = fmt::format("{:<22}{:<34}{}\n", "column", "values", "taken for a blank");
  for (const RunColumn& c : kColumns) {
    constexpr std::size_t kWidth = 32;
    if (std::string_view(c.values).size() > kWidth)
      text += fmt::format("{:<22}{}\n{:<56}{}\n", c.name, c.values, "", c.blank);
    else
      text += fmt::format("{:<22}{:<34}{}\n", c.name, c.values, c.blank);
  }
  return text;
}

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  if (text.size() <= kLongest) return fmt::format("'{}'", text);
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // the middle of a character
  return fmt::format("'{}...'", text.substr(0, end));
}

std::string_view RunCells::text(const char* column) const {
  const auto found = columns_.find(column);
  if (found == columns_.end()) return {};
  return without_spaces(cells_[found->second]);
}

std::string RunCells::needed_text(const char* column) const {
  if (blank(column)) throw UsageError("{}: '' (blank); a prediction needs this column", column);
  return std::string(text(column));
}

std::optional<std::int64_t> RunCells::count(const char* column, std::int64_t least, std::int64_t most) const {
  if (blank(column)) return std::nullopt;
  const auto value = number_of(text(column));
  if (!value || *value != std::floor(*value) || *value < static_cast<double>(least) ||
      *value > static_cast<double>(most))
    throw UsageError("{}: {} is not a whole number from {} to {}", column, in_quotes(text(column)), least, most);
  return static_cast<std::int64_t>(*value);
}

std::int64_t RunCells::needed_count(const char* column, std::int64_t most) const {
  needed_text(column);
  return *count(column, 1, most);
}

std::int64_t RunCells::count_or(const char* column, std::int64_t most, std::int64_t fallback) {
  if (const auto given = count(column, 1, most)) return *given;
  assume(column, std::to_string(fallback));
  return fallback;
}

std::optional<double> RunCells::quantity(const char* column, double most) const {
  if (blank(column)) return std::nullopt;
  const auto value = number_of(text(column));
  if (!value || !(*value > 0.0) || *value > most)
    throw UsageError("{}: {} is not a number above 0 and up to {}", column, in_quotes(text(column)), most);
  return value;
}

std::optional<std::string> RunCells::word(const char* column, std::span<const std::string> words) const {
  if (blank(column)) return std::nullopt;
  std::string given(text(column));
  for (const std::string& word : words)
    if (word == given) return given;
  throw UsageError("{}: {} is unknown; known: {}{}", column, in_quotes(given), fmt::join(words, ", "),
                   did_you_mean(given, words));
}

std::string RunCells::word_or(const char* column, std::span<const std::string> words, const std::string& fallback) {
  if (auto given = word(column, words)) return *given;
  assume(column, fallback);
  return fallback;
}

bool RunCells::yes_or(const char* column, bool fallback) {
  static const std::array<std::string, 2> kYesNo = {"yes", "no"};
  return word_or(column, kYesNo, fallback ? "yes" : "no") == "yes";
}

}  // namespace molen::plan
