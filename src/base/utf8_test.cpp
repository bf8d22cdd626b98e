#include "base/utf8.h"

#include <gtest/gtest.h>

namespace molen {
namespace {

TEST(Utf8, WhatATerminalWouldActOnIsWrittenOut) {
  EXPECT_EQ(printable("een \xc3\xa9n twee\n\t\xe2\x82\xac \xf0\x9f\x98\x80"),
            "een \xc3\xa9n twee\n\t\xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("a\x1b]52;c;aGk=\x07"
                      "b\r"),
            "a\\x1b]52;c;aGk=\\x07b\\x0d");
  EXPECT_EQ(printable("\x7f\xc2\x9b"
                      "31m\xc2\xa0"),
            "\\x7f\\xc2\\x9b31m\xc2\xa0")
      << "C1 has an escape too";
  EXPECT_EQ(printable("\xff\xe2\x80"), "\\xff\\xe2\\x80");
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b\xe2\x81\xa6\xe2\x80\xaf"),
            "a\\u202eb\\u2066\xe2\x80\xaf");
  EXPECT_EQ(printable(std::string("\0", 1)), "\\x00");
}

TEST(Utf8, ValidityAndRepair) {
  for (const std::string bad : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    EXPECT_FALSE(valid_utf8(bad));
    EXPECT_TRUE(valid_utf8(replace_invalid_utf8(bad)));
  }
  std::string text;
  for (const std::uint32_t c : {0x41u, 0xe9u, 0x20acu, 0x1f600u}) append_utf8(text, c);
  EXPECT_EQ(text, "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_TRUE(valid_utf8(text));
}

}  // namespace
}  // namespace molen
