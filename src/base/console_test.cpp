#include "base/console.h"

#include <gtest/gtest.h>

namespace molen {
namespace {

TEST(Console, SaysNothingThatATerminalWouldActOn) {
  ::testing::internal::CaptureStderr();
  say("runs/\x1b]0;title\x07: two\nlines");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "molen: runs/\\x1b]0;title\\x07: two\nlines\n");
}

}  // namespace
}  // namespace molen
