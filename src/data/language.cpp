#include "data/language.h"

#include <cstdio>  // cld2's header needs it and does not include it
//
#include <cld2/public/compact_lang_det.h>
#include <cld2/public/encodings.h>

#include <algorithm>
#include <array>

namespace molen::data {
namespace {

// Least score of prose, in CLD2's own unit for each KiB of text. Sentences score 1,000 and more; lists of identifiers
// and file names score less (docs/decisions/0009-text-libraries.md).
constexpr double kProseScore = 1000;
constexpr int kMostPercent = 75;

struct Best {
  CLD2::Language language = CLD2::UNKNOWN_LANGUAGE;
  int percent = 0;
  double score = 0;
  bool reliable = false;
};

// Reads at most the first GiB.
Best detect(std::string_view text, CLD2::Language expected) {
  const auto size = static_cast<int>(std::min<std::size_t>(text.size(), 1 << 30));
  const CLD2::CLDHints hints{nullptr, nullptr, CLD2::UNKNOWN_ENCODING, expected};
  std::array<CLD2::Language, 3> languages{};
  std::array<int, 3> percents{};
  std::array<double, 3> scores{};
  int bytes = 0, valid = 0;
  bool reliable = false;
  CLD2::ExtDetectLanguageSummaryCheckUTF8(text.data(), size, true, &hints, 0, languages.data(), percents.data(),
                                          scores.data(), nullptr, &bytes, &reliable, &valid);
  if (valid < size) return {};
  return {languages[0], percents[0], scores[0], reliable};
}

// Returns whether the text holds six words: letters between white space, with punctuation marks around them allowed.
// CLD2 takes options, identifiers and signatures for English words, but they are not prose.
bool has_words(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '\'' || static_cast<unsigned char>(c) >= 0x80;
  };
  int words = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && !is_space(text[end])) ++end;
    std::string_view word = text.substr(at, end - at);
    while (!word.empty() && std::string_view("(\"'").find(word.front()) != std::string_view::npos)
      word.remove_prefix(1);
    while (!word.empty() && std::string_view(".,;:!?)\"'").find(word.back()) != std::string_view::npos)
      word.remove_suffix(1);
    words += !word.empty() && std::all_of(word.begin(), word.end(), is_letter);
    at = end + 1;
  }
  return words >= 6;
}

}  // namespace

std::string detect_language(std::string_view text) {
  const Best best = detect(text, CLD2::UNKNOWN_LANGUAGE);
  if (!best.reliable || best.language == CLD2::UNKNOWN_LANGUAGE) return "";
  const std::string code = CLD2::LanguageCode(best.language);
  if (code == "iw") return "he";  // CLD2 uses the code that was withdrawn in 1989
  return code.substr(0, code.find('-'));
}

bool is_in_language(std::string_view text, std::string_view language) {
  const CLD2::Language own = CLD2::GetLanguageFromName(std::string(language).c_str());
  if (own == CLD2::UNKNOWN_LANGUAGE || !has_words(text)) return true;
  const Best best = detect(text, own);
  // Afrikaans is hard to tell from Dutch by a single sentence; whole texts differ.
  const bool near = own == CLD2::DUTCH && best.language == CLD2::AFRIKAANS;
  return best.language == own || near || best.language == CLD2::UNKNOWN_LANGUAGE || !best.reliable ||
         best.percent < kMostPercent || best.score < kProseScore;
}

}  // namespace molen::data
