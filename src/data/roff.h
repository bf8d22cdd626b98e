// Manual pages (man and mdoc macros) to blocks of text, by the program `mandoc`.
//
// Sections that hold names, addresses and licences rather than the manual (authors, copyright, translation, reporting
// bugs) are left out by their headings, in English, Dutch, German and Finnish; so are mail addresses that a page marks
// as such.
#pragma once

#include <string_view>
#include <vector>

#include "data/text.h"

namespace molen::data {

// Empty for an alias (a page that is only `.so other`). Throws UsageError for a page that mandoc cannot read within
// half a second of CPU time, 192 MiB of memory and 16 MiB of text, and Error where there is no mandoc.
std::vector<Block> roff_blocks(std::string_view page);

}  // namespace molen::data
