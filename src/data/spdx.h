// Checks SPDX licence expressions (SPDX specification 2.3, annex D), which `--licence` takes and manifests record.
#pragma once

#include <string_view>

namespace molen::data {

// Throws UsageError naming `origin`, the invalid word and the nearest known identifier, unless `text` is an expression.
// An expression joins terms by AND, OR, WITH (an exception of the list) and parentheses. A term is an identifier of the
// SPDX list in its spelling, with an optional `+`, or LicenseRef-... or DocumentRef-...:LicenseRef-....
void check_spdx(std::string_view text, std::string_view origin);

}  // namespace molen::data
