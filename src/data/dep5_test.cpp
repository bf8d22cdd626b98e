#include "data/dep5.h"

#include <gtest/gtest.h>

#include <string>

#include "data/recipes.h"

namespace molen::data {
namespace {

const std::string kCopyright = R"(Format: http://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: X
# a comment
https://example.org/a/bare/url
### PostgreSQL copyrights ###

Files: *
Copyright: 2000 A
License: MPL-2.0
 text of it
 .
 more

Files: po/* man1/x?.1
 doc/\*.txt
Copyright: B
License: GPL-2+

License: GPL-2+
 This program is free software
)";

TEST(Dep5, LastMatchingStanzaWins) {
  const auto dep5 = parse_dep5(kCopyright);
  ASSERT_TRUE(dep5);
  EXPECT_EQ(dep5->files.size(), 2u);
  EXPECT_EQ(dep5->package_default()->licence, "MPL-2.0");
  EXPECT_EQ(dep5->match("src/a.c")->licence, "MPL-2.0");
  EXPECT_EQ(dep5->match("po/nl/deep/x.po")->licence, "GPL-2+");
  EXPECT_EQ(dep5->match("man1/xy.1")->licence, "GPL-2+");
  EXPECT_EQ(dep5->match("doc/*.txt")->licence, "GPL-2+");
  EXPECT_EQ(dep5->match("doc/a.txt")->licence, "MPL-2.0");
}

TEST(Dep5, FreeTextIsNotGuessed) {
  EXPECT_FALSE(parse_dep5("This package is free.\nLicense: GPL\n"));
  EXPECT_FALSE(parse_dep5(""));
  const auto partial = parse_dep5(
      "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: a\nLicense: MIT\n");
  ASSERT_TRUE(partial);
  EXPECT_FALSE(partial->package_default());
  EXPECT_FALSE(partial->match("b"));
}

TEST(Dep5, Spdx) {
  EXPECT_EQ(spdx_of("GPL-2+"), "GPL-2.0-or-later");
  EXPECT_EQ(spdx_of("GPL-2"), "GPL-2.0-only");
  EXPECT_EQ(spdx_of("GPL-3+"), "GPL-3.0-or-later");
  EXPECT_EQ(spdx_of("Expat"), "MIT");
  EXPECT_EQ(spdx_of("Go"), "BSD-3-Clause");
  EXPECT_EQ(spdx_of("PostgreSQL and Custom-regex or Tcl"), "PostgreSQL AND LicenseRef-Custom-regex OR LicenseRef-Tcl");
  EXPECT_EQ(spdx_of("GPL-1+ or Artistic, and BSD-3-clause"), "(GPL-1.0-or-later OR Artistic-1.0) AND BSD-3-Clause");
  EXPECT_EQ(spdx_of("Expat, and GPL-2 or ISC"), "MIT AND (GPL-2.0-only OR ISC)");
  EXPECT_EQ(spdx_of("GPL-2 and Expat, or ISC"), "GPL-2.0-only AND MIT OR ISC");
  EXPECT_EQ(spdx_of("GPL-2 or Expat, or ISC"), "GPL-2.0-only OR MIT OR ISC");
  EXPECT_EQ(spdx_of("GPL-2 or Expat, and ISC, or X11 or Zlib, and WTFPL"),
            "(GPL-2.0-only OR MIT) AND ISC OR (X11 OR Zlib) AND WTFPL");
  EXPECT_EQ(spdx_of("GPL-2 , or or ISC and"), "GPL-2.0-only OR ISC") << "operators without names";
  EXPECT_EQ(spdx_of("noderivs"), "LicenseRef-noderivs");
  EXPECT_EQ(spdx_of(""), "LicenseRef-unknown");
}

TEST(Dep5, GlobIsNotExponential) {
  EXPECT_TRUE(glob_match("*", "a/b"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match("a*b", "ac"));
  std::string pattern;
  for (int i = 0; i < 30; ++i) pattern += "a*";
  EXPECT_FALSE(glob_match(pattern + "b", std::string(2000, 'a')));
}

TEST(Recipes, ReviewHoldsForExactlyThatFile) {
  EXPECT_TRUE(reviewed_licence("debian-faq-nl", "3e3f5048f552288c1c7d3c304563e1bb0d0bc71c2acf0fb4933b07267c7c5c42"));
  EXPECT_FALSE(reviewed_licence("debian-faq-nl", std::string(64, '0')));
  for (const PackageSet& set : package_sets())
    for (const std::string& package : set.packages)
      EXPECT_EQ(recipes_of(package).empty(), package == "libpython3.11-minimal") << package;
  EXPECT_TRUE(recipes_of("aptitude-doc-nl")[0].held_out);
  EXPECT_FALSE(recipes_of("manpages-nl")[0].held_out);
}

}  // namespace
}  // namespace molen::data
