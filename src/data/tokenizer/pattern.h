// Translates split patterns for PCRE2 with the meaning that Oniguruma (inside Hugging Face `tokenizers`) gives them.
#pragma once

#include <string>
#include <string_view>

namespace molen::data {

// Returns the pattern with \p{..}, \s, \d and their negations written out as explicit classes of the pinned Unicode
// version. Throws UsageError (naming `origin`, the pattern's element and its position) for every construct that may
// differ between the engines: look-behind, back-references, anchors, \w, \h, \b, nested classes and the like.
std::string translate_pattern(std::string_view pattern, std::string_view origin);

}  // namespace molen::data
