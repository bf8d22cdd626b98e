// Parses Debian's machine-readable copyright files (DEP-5) and maps their licence names to SPDX.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace molen::data {

struct Dep5Files {
  std::vector<std::string> patterns;  // from the `Files` field; `*` and `?` match '/' too
  std::string licence;                // first line of its `License` field
};

struct Dep5 {
  std::vector<Dep5Files> files;
  // Returns the last stanza whose pattern matches `path` (a path in the source tree), or nullopt.
  std::optional<Dep5Files> match(std::string_view path) const;
  // Returns the last `Files: *` stanza, or nullopt.
  std::optional<Dep5Files> package_default() const;
};

// Returns nullopt when the text does not declare this format. Skips unknown fields and damaged lines, which real files
// contain, and guesses nothing from them.
std::optional<Dep5> parse_dep5(std::string_view text);

// Returns whether a shell-style pattern matches: `*`, `?`, and a backslash that makes the next character literal.
bool glob_match(std::string_view pattern, std::string_view path);

// Translates a licence name to SPDX: "GPL-2+" to "GPL-2.0-or-later", "Expat" to "MIT", and a name without a known SPDX
// identifier to "LicenseRef-<name>". Expressions keep their meaning. `and` binds closer than `or`, and a comma before
// either operator ends its operand: "GPL-1+ or Artistic, and BSD-3-clause" -> "(GPL-1.0-or-later OR Artistic-1.0) AND
// BSD-3-Clause".
std::string spdx_of(std::string_view declared);

}  // namespace molen::data
