// Which language a text is in, by counting the commonest words of each; for the Latin-script languages of the corpora.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace molen::data {

// ISO 639-1 codes this module can tell apart.
const std::vector<std::string>& known_languages();

struct LanguageVote {
  std::string language;  // "" where nothing was recognised
  int words = 0;         // words of the text
  int votes = 0;         // of `language`
  int own = 0;           // of the language asked for
};
LanguageVote vote_language(std::string_view text, std::string_view own = "");

// False where a block of six or more words is in another language than `language`: another one has at least three votes
// and at least two more than `language` has. Languages that are not known (code, say) always pass.
bool is_in_language(std::string_view text, std::string_view language);

}  // namespace molen::data
