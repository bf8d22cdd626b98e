#include "data/dep5.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <utility>

#include "data/text.h"

namespace molen::data {
namespace {

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

struct Field {
  std::string name, first;  // lower-case name, text behind the colon
  std::string rest;         // continuation lines
};

// Splits the text into paragraphs of fields. Skips comments and lines that are neither field nor continuation.
std::vector<std::vector<Field>> paragraphs(std::string_view text) {
  std::vector<std::vector<Field>> out(1);
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (trimmed(line).empty()) {
      if (!out.back().empty()) out.emplace_back();
      continue;
    }
    if (line[0] == '#') continue;
    if (line[0] == ' ' || line[0] == '\t') {
      if (!out.back().empty()) out.back().back().rest += std::string(trimmed(line)) + "\n";
      continue;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || colon == 0) continue;
    out.back().push_back({lower_case(line.substr(0, colon)), std::string(trimmed(line.substr(colon + 1))), ""});
  }
  return out;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 52> kSpdx{{
    {"gpl-1", "GPL-1.0-only"},
    {"gpl-1+", "GPL-1.0-or-later"},
    {"gpl-2", "GPL-2.0-only"},
    {"gpl-2.0", "GPL-2.0-only"},
    {"gpl-2+", "GPL-2.0-or-later"},
    {"gpl-2.0+", "GPL-2.0-or-later"},
    {"gpl-3", "GPL-3.0-only"},
    {"gpl-3.0", "GPL-3.0-only"},
    {"gpl-3+", "GPL-3.0-or-later"},
    {"gpl-3.0+", "GPL-3.0-or-later"},
    {"lgpl-2", "LGPL-2.0-only"},
    {"lgpl-2+", "LGPL-2.0-or-later"},
    {"lgpl-2.1", "LGPL-2.1-only"},
    {"lgpl-2.1+", "LGPL-2.1-or-later"},
    {"lgpl-3", "LGPL-3.0-only"},
    {"lgpl-3+", "LGPL-3.0-or-later"},
    {"agpl-3", "AGPL-3.0-only"},
    {"agpl-3+", "AGPL-3.0-or-later"},
    {"expat", "MIT"},
    {"mit", "MIT"},
    {"x11", "X11"},
    {"isc", "ISC"},
    {"zlib", "Zlib"},
    {"apache-2", "Apache-2.0"},
    {"apache-2.0", "Apache-2.0"},
    {"mpl-1.1", "MPL-1.1"},
    {"mpl-2.0", "MPL-2.0"},
    {"mpl-2", "MPL-2.0"},
    {"bsd-2-clause", "BSD-2-Clause"},
    {"bsd-3-clause", "BSD-3-Clause"},
    {"bsd-4-clause", "BSD-4-Clause"},
    {"go", "BSD-3-Clause"},
    {"postgresql", "PostgreSQL"},
    {"artistic", "Artistic-1.0"},
    {"artistic-2.0", "Artistic-2.0"},
    {"cc0", "CC0-1.0"},
    {"cc0-1.0", "CC0-1.0"},
    {"cc-by-3.0", "CC-BY-3.0"},
    {"cc-by-4.0", "CC-BY-4.0"},
    {"cc-by-sa-3.0", "CC-BY-SA-3.0"},
    {"cc-by-sa-4.0", "CC-BY-SA-4.0"},
    {"gfdl-1.2", "GFDL-1.2-only"},
    {"gfdl-1.2+", "GFDL-1.2-or-later"},
    {"gfdl-1.3", "GFDL-1.3-only"},
    {"gfdl-1.3+", "GFDL-1.3-or-later"},
    {"python-2.0", "Python-2.0"},
    {"psf-2", "PSF-2.0"},
    {"unlicense", "Unlicense"},
    {"wtfpl", "WTFPL"},
    {"linux-man-pages-copyleft", "Linux-man-pages-copyleft"},
    {"openldap-2.8", "OLDAP-2.8"},
    {"epl-2.0", "EPL-2.0"},
}};

std::string spdx_name(std::string_view name) {
  const std::string key = lower_case(name);
  for (const auto& [declared, spdx] : kSpdx)
    if (declared == key) return std::string(spdx);
  std::string reference = "LicenseRef-";
  for (char c : name) reference.push_back(std::isalnum(static_cast<unsigned char>(c)) || c == '.' ? c : '-');
  return reference;
}

// An SPDX expression, and whether it has an OR outside parentheses.
struct Term {
  std::string text;
  bool has_or = false;
};
// Terms with an operator between each pair of neighbours.
struct Joined {
  std::vector<Term> terms;
  std::vector<bool> ands;  // true: AND, false: OR
};

// AND binds closer than OR, in SPDX as in DEP-5.
Term expression(const Joined& joined) {
  Term out;
  for (std::size_t i = 0; i < joined.terms.size(); ++i) {
    const bool and_before = i > 0 && joined.ands[i - 1];
    const bool and_after = i < joined.ands.size() && i + 1 < joined.terms.size() && joined.ands[i];
    const Term& term = joined.terms[i];
    if (i > 0) out.text += and_before ? " AND " : " OR ";
    const bool enclosed = term.has_or && (and_before || and_after);
    out.text += enclosed ? "(" + term.text + ")" : term.text;
    out.has_or = out.has_or || (i > 0 && !and_before) || (term.has_or && !enclosed);
  }
  return out;
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view path) {
  // On a mismatch only the last `*` needs to take more characters, so one saved position is enough.
  std::size_t p = 0, s = 0, star = std::string_view::npos, mark = 0;
  while (s < path.size()) {
    const bool escaped = p + 1 < pattern.size() && pattern[p] == '\\';
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = s;
    } else if (p < pattern.size() &&
               (escaped ? pattern[p + 1] == path[s] : pattern[p] == '?' || pattern[p] == path[s])) {
      p += escaped ? 2 : 1;
      ++s;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      s = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::optional<Dep5Files> Dep5::match(std::string_view path) const {
  for (auto stanza = files.rbegin(); stanza != files.rend(); ++stanza)
    for (const std::string& pattern : stanza->patterns)
      if (glob_match(pattern, path)) return *stanza;
  return std::nullopt;
}

std::optional<Dep5Files> Dep5::package_default() const {
  for (auto stanza = files.rbegin(); stanza != files.rend(); ++stanza)
    if (std::find(stanza->patterns.begin(), stanza->patterns.end(), "*") != stanza->patterns.end()) return *stanza;
  return std::nullopt;
}

std::optional<Dep5> parse_dep5(std::string_view text) {
  Dep5 result;
  bool known = false;
  for (const auto& fields : paragraphs(text)) {
    Dep5Files stanza;
    for (const Field& field : fields) {
      if (field.name == "format" || field.name == "format-specification")
        known = known || field.first.find("copyright-format/1.0") != std::string::npos ||
                field.first.find("dep.debian.net/deps/dep5") != std::string::npos;
      if (field.name == "files") {
        std::istringstream words(field.first + "\n" + field.rest);
        for (std::string word; words >> word;) stanza.patterns.push_back(word);
      }
      if (field.name == "license") stanza.licence = field.first;
    }
    if (!stanza.patterns.empty() && !stanza.licence.empty()) result.files.push_back(std::move(stanza));
  }
  if (!known) return std::nullopt;
  return result;
}

std::string spdx_of(std::string_view declared) {
  std::istringstream words{std::string(declared)};
  // Names joined by operators form a part; an operator behind a comma joins parts.
  Joined parts, names;
  std::string name;
  const auto end_name = [&] {
    if (!name.empty()) names.terms.push_back({spdx_name(name), false});
    name.clear();
  };
  const auto end_part = [&] {
    end_name();
    if (!names.terms.empty()) parts.terms.push_back(expression(names));
    names = {};
  };
  bool comma = false;
  for (std::string word; words >> word;) {
    const std::string key = lower_case(word);
    const bool is_and = key == "and", is_operator = is_and || key == "or" || key == "and/or";
    if (is_operator) {
      comma ? end_part() : end_name();
      Joined& joined = comma ? parts : names;
      // An operator without a name on each side joins nothing.
      if (joined.ands.size() < joined.terms.size()) joined.ands.push_back(is_and);
      comma = false;
      continue;
    }
    comma = word.back() == ',';
    while (!word.empty() && word.back() == ',') word.pop_back();
    if (!word.empty()) name += (name.empty() ? "" : "-") + word;
  }
  end_part();
  return parts.terms.empty() ? "LicenseRef-unknown" : expression(parts).text;
}

}  // namespace molen::data
