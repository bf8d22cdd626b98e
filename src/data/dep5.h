// Debian's machine-readable copyright files (DEP-5) and the way from their licence names to SPDX.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace molen::data {

struct Dep5Files {
  std::vector<std::string> patterns;  // of the `Files` field; `*` and `?` match '/' too
  std::string licence;                // first line of its `License` field
};

struct Dep5 {
  std::vector<Dep5Files> files;
  // The last stanza whose pattern matches `path` (a path in the source tree) says it; nullopt where none does.
  std::optional<Dep5Files> match(std::string_view path) const;
  // The last `Files: *` stanza.
  std::optional<Dep5Files> package_default() const;
};

// nullopt where the text does not say that it has this format. Unknown fields and damaged lines are passed over, as the
// files in the archive need it; nothing is guessed from them.
std::optional<Dep5> parse_dep5(std::string_view text);

// Shell-style match with `*`, `?` and a backslash that takes the next character as it stands.
bool glob_match(std::string_view pattern, std::string_view path);

// "GPL-2+" -> "GPL-2.0-or-later", "Expat" -> "MIT"; a name without a known SPDX identifier -> "LicenseRef-<name>".
// Expressions keep their meaning: `and` binds closer than `or`, and a comma before either ends what it binds:
// "GPL-1+ or Artistic, and BSD-3-clause" -> "(GPL-1.0-or-later OR Artistic-1.0) AND BSD-3-Clause".
std::string spdx_of(std::string_view declared);

}  // namespace molen::data
