#include "data/recipes.h"

#include "base/error.h"
#include "base/suggest.h"

namespace molen::data {

using Markup = Recipe::Markup;

const std::vector<PackageSet>& package_sets() {
  static const std::vector<PackageSet> sets = [] {
    const std::vector<std::string> demo{"libreoffice-help-nl", "libreoffice-help-en-us", "postgresql-doc-15",
                                        "manpages-nl",         "aptitude-doc-nl",        "debian-faq-nl",
                                        "debian-reference-en"};
    std::vector<std::string> mix = demo;
    for (const char* package : {"libreoffice-help-de", "libreoffice-help-fi", "manpages-de", "manpages-fi",
                                "aptitude-doc-fi", "gnome-user-docs", "libpython3.11-stdlib", "libpython3.11-minimal"})
      mix.emplace_back(package);
    return std::vector<PackageSet>{
        {"demo", "Dutch and English manuals, 10 MB to download, about 3 million tokens", demo},
        {"mix", "demo plus German, Finnish (mostly English in truth) and Python code, 32 MB", mix}};
  }();
  return sets;
}

const PackageSet& package_set(std::string_view name) {
  std::vector<std::string> names;
  for (const PackageSet& set : package_sets()) {
    if (set.name == name) return set;
    names.push_back(set.name);
  }
  throw UsageError("no package set '{}'{}; `molen data fetch --list` shows them", name, did_you_mean(name, names));
}

std::vector<Recipe> recipes_of(std::string_view package) {
  const auto after = [&](std::string_view prefix) { return std::string(package.substr(prefix.size())); };
  if (package.starts_with("libreoffice-help-")) {
    const std::string name = after("libreoffice-help-");
    const std::string folder = name == "en-us" ? "en-US" : name;
    return {
        {Markup::kHtml, "usr/share/libreoffice/help/" + folder + "/text", ".html", name.substr(0, 2), "DisplayArea"}};
  }
  if (package.starts_with("postgresql-doc-"))
    return {{Markup::kHtml, "usr/share/doc/" + std::string(package) + "/html", ".html", "en", ""}};
  if (package == "manpages" || package == "manpages-dev") return {{Markup::kRoff, "usr/share/man", ".gz", "en", ""}};
  if (package.starts_with("manpages-")) {
    const std::string language = after("manpages-");
    return {{Markup::kRoff, "usr/share/man/" + language, ".gz", language.substr(0, 2), ""}};
  }
  if (package.starts_with("aptitude-doc-")) {
    const std::string language = after("aptitude-doc-");
    return {{Markup::kHtml, "usr/share/doc/aptitude/html/" + language, ".html", language, "", true}};
  }
  if (package.starts_with("debian-faq-")) {
    const std::string language = after("debian-faq-");
    return {{Markup::kHtml, "usr/share/doc/debian/FAQ/" + language, ".html", language, "", true}};
  }
  if (package == "debian-reference-en")
    return {{Markup::kHtml, "usr/share/debian-reference", ".en.html", "en", "", true}};
  if (package == "gnome-user-docs") {
    std::vector<Recipe> recipes;
    for (const char* language : {"nl", "de", "fi"})
      recipes.push_back({Markup::kMallard, std::string("usr/share/help/") + language, ".page", language, ""});
    recipes.push_back({Markup::kMallard, "usr/share/help/C", ".page", "en", ""});
    return recipes;
  }
  if (package == "libpython3.11-stdlib") return {{Markup::kCode, "usr/lib/python3.11", ".py", "code", ""}};
  return {};
}

std::optional<ReviewedLicence> reviewed_licence(std::string_view package, std::string_view copyright_sha256) {
  struct Entry {
    std::string_view package, sha256;
    ReviewedLicence licence;
  };
  static const std::vector<Entry> entries{
      {"debian-faq-nl",
       "3e3f5048f552288c1c7d3c304563e1bb0d0bc71c2acf0fb4933b07267c7c5c42",
       {"LicenseRef-Debian-FAQ", "verbatim and modified copies under an identical permission notice"}}};
  for (const Entry& entry : entries)
    if (entry.package == package && entry.sha256 == copyright_sha256) return entry.licence;
  return std::nullopt;
}

}  // namespace molen::data
