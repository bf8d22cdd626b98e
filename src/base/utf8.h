// UTF-8 functions for the whole program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace molen {

void append_utf8(std::string& out, std::uint32_t code_point);

// Returns whether the text is UTF-8 without overlong forms, surrogates or values beyond U+10FFFF.
bool valid_utf8(std::string_view text);
// Replaces each maximal ill-formed part by one U+FFFD, like Python's bytes.decode(errors="replace").
std::string replace_invalid_utf8(std::string_view text);

// Escapes text for a terminal: characters that would act on the terminal (controls except newline and tab, overrides of
// the writing direction, invalid UTF-8 bytes) become \x1b or \u202e. Names and texts from files may hold such
// characters.
std::string printable(std::string_view text);

}  // namespace molen
