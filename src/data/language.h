// Detects the language of a text with CLD2, which knows 83 languages.
#pragma once

#include <string>
#include <string_view>

namespace molen::data {

// Returns the ISO 639-1 code of the main language of a text, or "" when that is not sure. Accepts any bytes.
std::string detect_language(std::string_view text);

// Returns false when a block of six or more words is prose in another language than `language`. Text that is not prose
// (names, identifiers, formulas) passes. Everything passes when CLD2 does not know `language` ("code", say).
bool is_in_language(std::string_view text, std::string_view language);

}  // namespace molen::data
