// "did you mean": the nearest valid name for a misspelt one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace molen {

// Returns the edit distance with transpositions (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);
// Returns the nearest of `valid`, or "" when none is near: a third of the letters may differ, and two in a short name.
// Also returns "" for input that no person typed: names above 256 bytes, or more than 2^14 valid names.
std::string nearest(std::string_view name, std::span<const std::string> valid);
// Returns "; did you mean 'x'?", or "" when no name is near.
std::string did_you_mean(std::string_view name, std::span<const std::string> valid);

}  // namespace molen
