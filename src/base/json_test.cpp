#include "base/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace molen {
namespace {

TEST(Json, RefusesDuplicateKeys) {
  EXPECT_THROW(parse_json(R"({"a":1,"a":2})", "x"), UsageError);
  EXPECT_NO_THROW(parse_json(R"({"a":1,"b":{"a":2}})", "x"));
}
TEST(Json, RefusesDepth) {
  EXPECT_THROW(parse_json(std::string(100, '[') + std::string(100, ']'), "x"), UsageError);
}
TEST(Json, RefusesTrailingText) {
  EXPECT_THROW(parse_json("{} {}", "x"), UsageError);
}
TEST(Json, RefusesInvalidUtf8) {
  EXPECT_THROW(parse_json("\"\xff\"", "x"), UsageError);
}
TEST(Json, RefusesNul) {
  EXPECT_THROW(parse_json(std::string("{}\0x", 4), "x"), UsageError);
}
TEST(Json, KeepsOrder) {
  EXPECT_EQ(parse_json(R"({"b":1,"a":2})", "x").dump(), R"({"b":1,"a":2})");
}

}  // namespace
}  // namespace molen
