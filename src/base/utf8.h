// UTF-8, once for the whole program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace molen {

void append_utf8(std::string& out, std::uint32_t code_point);

// No overlong forms, surrogates or values beyond U+10FFFF.
bool valid_utf8(std::string_view text);
// Each maximal ill-formed part becomes one U+FFFD, as Python's bytes.decode(errors="replace") does.
std::string replace_invalid_utf8(std::string_view text);

// For a terminal: what it would act on instead of showing it (controls but newline and tab, overrides of the direction
// of writing, bytes that are no UTF-8) written as \x1b or \u202e. Names and texts from files may hold such.
std::string printable(std::string_view text);

}  // namespace molen
