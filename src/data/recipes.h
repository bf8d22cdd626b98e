// The Debian packages whose text molen can use. There are the sets that `molen data fetch` offers and, for each
// package, the place, markup and language of its text and whether that is held out of training.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace molen::data {

struct PackageSet {
  std::string name, description;
  std::vector<std::string> packages;
};
const std::vector<PackageSet>& package_sets();
// Throws UsageError that suggests the nearest name.
const PackageSet& package_set(std::string_view name);

struct Recipe {
  enum class Markup { kHtml, kRoff, kMallard, kCode };
  Markup markup;
  std::string folder;    // below the package's root
  std::string ending;    // of the files taken
  std::string language;  // ISO 639-1, or "code"
  std::string root_id;   // HTML: the element that holds the text
  bool held_out = false;
};
// Returns one recipe per language of the package; empty when the package is not known.
std::vector<Recipe> recipes_of(std::string_view package);

// A licence that a person found by reading a copyright file that has no machine-readable form. It holds for exactly
// that file: a file with another SHA-256 must be read again.
struct ReviewedLicence {
  std::string spdx, declared;
};
std::optional<ReviewedLicence> reviewed_licence(std::string_view package, std::string_view copyright_sha256);

}  // namespace molen::data
