#include "data/language.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>
#include <unordered_map>

namespace molen::data {
namespace {

struct StopWords {
  std::string_view language, words;
};

// Frequent function words; a word may vote for several languages.
constexpr std::array<StopWords, 8> kStopWords{{
    {"nl",
     "de het een en van in is dat op te voor met zijn niet aan door als dit om ook bij naar uit wordt worden of deze "
     "kan kunt u er maar dan wanneer heeft geen wel moet meer alle over indien hebben uw welke wat nog zie onder tot"},
    {"en",
     "the of and to in is that for it with as be on by this are or from an at which not can you if will when has have "
     "was all but your more there their these its may must should into than use used using see other only any"},
    {"de",
     "der die das und in zu den mit ist von f\xc3\xbcr auf ein eine nicht des im dem als auch werden wird oder sie an "
     "es "
     "bei kann aus sind einer einen nach durch zum zur wenn diese dieser dieses k\xc3\xb6nnen wie \xc3\xbc"
     "ber nur eines einem "
     "haben noch sich"},
    {"fi",
     "ja on ei ett\xc3\xa4 se voi kun ovat my\xc3\xb6s tai jos sen mutta joka niin ole t\xc3\xa4m\xc3\xa4n "
     "t\xc3\xa4m\xc3\xa4 voit jotka kuin sek\xc3\xa4 "
     "t\xc3\xa4ss\xc3\xa4 siihen jossa mukaan ennen kaikki valitse valitun napsauta k\xc3\xa4yt\xc3\xa4 avulla "
     "k\xc3\xa4ytet\xc3\xa4\xc3\xa4n on ei ole "
     "olla vain kanssa jonka sit\xc3\xa4 ne"},
    {"fr",
     "le la les de des et est un une dans pour que qui sur pas par avec ce cette sont au aux ou vous du ne se en il "
     "plus peut \xc3\xaatre comme si"},
    {"sv",
     "och att det som en f\xc3\xb6r \xc3\xa4r p\xc3\xa5 av med inte till den har de ett om kan du eller fr\xc3\xa5n "
     "var s\xc3\xa5 ska vid "
     "n\xc3\xa4r alla"},
    {"es",
     "el la los las de que en un una para con por es no se del al lo su como m\xc3\xa1s o este esta puede si son "
     "est\xc3\xa1"},
    {"it",
     "il lo la gli le di che un una per con non \xc3\xa8 del della in si da sono al dei delle come pu\xc3\xb2 questo "
     "questa se nel"},
}};

// Bit l: votes for kStopWords[l].
const std::unordered_map<std::string, std::uint32_t>& votes_by_word() {
  static const auto map = [] {
    std::unordered_map<std::string, std::uint32_t> votes;
    for (std::size_t l = 0; l < kStopWords.size(); ++l) {
      std::istringstream words{std::string(kStopWords[l].words)};
      for (std::string word; words >> word;) votes[word] |= 1u << l;
    }
    return votes;
  }();
  return map;
}

bool is_word_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

const std::vector<std::string>& known_languages() {
  static const auto names = [] {
    std::vector<std::string> list;
    for (const StopWords& entry : kStopWords) list.emplace_back(entry.language);
    return list;
  }();
  return names;
}

LanguageVote vote_language(std::string_view text, std::string_view own) {
  std::array<int, kStopWords.size()> counts{};
  LanguageVote result;
  std::string word;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && is_word_byte(text[i])) {
      const char c = text[i];
      word.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c);
      continue;
    }
    if (word.empty()) continue;
    ++result.words;
    if (word.size() < 16)
      if (const auto found = votes_by_word().find(word); found != votes_by_word().end())
        for (std::size_t l = 0; l < counts.size(); ++l) counts[l] += static_cast<int>(found->second >> l & 1);
    word.clear();
  }
  for (std::size_t l = 0; l < counts.size(); ++l) {
    if (counts[l] > result.votes) {
      result.votes = counts[l];
      result.language = kStopWords[l].language;
    }
    if (kStopWords[l].language == own) result.own = counts[l];
  }
  return result;
}

bool is_in_language(std::string_view text, std::string_view language) {
  const auto& known = known_languages();
  if (std::find(known.begin(), known.end(), language) == known.end()) return true;
  const LanguageVote vote = vote_language(text, language);
  return vote.words < 6 || vote.votes < 3 || vote.own + 1 >= vote.votes;
}

}  // namespace molen::data
