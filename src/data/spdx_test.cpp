#include "data/spdx.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::data {
namespace {

std::string spdx_reason(const std::string& text) {
  try {
    check_spdx(text, "--licence");
    return "accepted";
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
}

TEST(Spdx, AcceptsExpressions) {
  for (const char* text :
       {"MIT", "CC0-1.0", "GPL-2.0-or-later", "Apache-2.0 WITH LLVM-exception", "MIT OR Apache-2.0", "(MIT)",
        "GPL-2.0+", "LicenseRef-Debian-FAQ", "LicenseRef-unknown", "DocumentRef-a.1:LicenseRef-b",
        "(MIT AND (BSD-3-Clause OR LicenseRef-x)) OR  GPL-2.0-only WITH Classpath-exception-2.0"})
    EXPECT_EQ(spdx_reason(text), "accepted") << text;
}

TEST(Spdx, RefusesOthersWithTheNearest) {
  const GoldenMessages golden;
  const auto expect = [](const std::string& text, const std::string& why) {
    EXPECT_NE(spdx_reason(text).find(why), std::string::npos) << text << ": " << spdx_reason(text);
  };
  expect("mit", "no licence 'mit'; did you mean 'MIT'?");
  expect("Apache-2", "did you mean 'Apache-2.0'?");
  expect("GPL-3.0-onyl", "did you mean 'GPL-3.0-only'?");
  expect("CC-0", "no licence 'CC-0'");
  expect("public domain", "no licence 'public'");
  expect("", "a licence is missing at the end");
  expect("  ", "a licence is missing at the end");
  expect("+", "no licence '+'");
  expect("MIT AND", "a licence is missing at the end");
  expect("AND MIT", "a licence is missing before 'AND'");
  expect("MIT and Apache-2.0", "AND, OR or the end was expected before 'and'");
  expect("MIT Apache-2.0", "AND, OR or the end was expected before 'Apache-2.0'");
  expect("(MIT", "a ')' is missing");
  expect("MIT)", "AND, OR or the end was expected before ')'");
  expect("()", "a licence is missing before ')'");
  expect("MIT WITH", "no exception ''");
  expect("Apache-2.0 WITH LLVM-exeption", "no exception 'LLVM-exeption'; did you mean 'LLVM-exception'?");
  expect("(MIT) WITH LLVM-exception", "expected before 'WITH'");
  expect("LicenseRef-", "no licence 'LicenseRef-'");
  expect("LicenseRef-a/b", "no licence 'LicenseRef-a/b'");
  expect("DocumentRef-:LicenseRef-b", "no licence");
  expect("MIT\n", "no licence");
  expect(std::string(100000, '('), "too many parentheses");
}

}  // namespace
}  // namespace molen::data
