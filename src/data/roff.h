// Manual pages (man and mdoc macros) to blocks of text. Accepts any bytes, never throws, linear time and memory.
//
// Sections that hold names, addresses and licences rather than the manual (authors, copyright, translation, reporting
// bugs) are left out by their headings, in English, Dutch, German and Finnish.
#pragma once

#include <string_view>
#include <vector>

#include "data/text.h"

namespace molen::data {

// Empty for an alias (a page that is only `.so other`).
std::vector<Block> roff_blocks(std::string_view page);

}  // namespace molen::data
