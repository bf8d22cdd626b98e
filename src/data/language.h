// Which language a text is in, by CLD2, which knows 83 languages.
#pragma once

#include <string>
#include <string_view>

namespace molen::data {

// ISO 639-1 code of the language that most of the text is in; "" where that is not sure. Accepts any bytes.
std::string detect_language(std::string_view text);

// False where a block of six or more words is prose in another language than `language`. What is no prose (names,
// identifiers, formulas) passes, and so does everything where `language` is not one that can be told ("code", say).
bool is_in_language(std::string_view text, std::string_view language);

}  // namespace molen::data
