// Turns manual pages (man and mdoc macros) into blocks of text with the program `mandoc`.
//
// Sections of names, addresses and licences (authors, copyright, translation, reporting bugs) are left out by their
// headings, in English, Dutch, German and Finnish. Text that a page marks up as a mail address is left out too.
#pragma once

#include <string_view>
#include <vector>

#include "data/text.h"

namespace molen::data {

// Returns no blocks for an alias (a page that is only `.so other`). Throws UsageError for a page that mandoc cannot
// read within half a second of CPU time, 192 MiB of memory and 16 MiB of text. Throws Error when mandoc is not
// installed.
std::vector<Block> roff_blocks(std::string_view page);

}  // namespace molen::data
