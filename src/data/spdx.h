// SPDX licence expressions (SPDX specification 2.3, annex D): what `--licence` takes and manifests record.
#pragma once

#include <string_view>

namespace molen::data {

// Throws UsageError naming `origin` and the word at fault, with the nearest known identifier, unless `text` is an
// expression: identifiers of the SPDX list in its spelling, `+` behind one, LicenseRef-... and DocumentRef-...:
// LicenseRef-..., joined by AND, OR, WITH (an exception of the list) and parentheses.
void check_spdx(std::string_view text, std::string_view origin);

}  // namespace molen::data
