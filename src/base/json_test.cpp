#include "base/json.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json_elements.h"
#include "base/test_golden.h"

namespace molen {
namespace {

TEST(Json, RefusesDuplicateKeys) {
  const GoldenMessages golden;
  EXPECT_NOTED(parse_json(R"({"a":1,"a":2})", "x"), UsageError);
  EXPECT_NO_THROW(parse_json(R"({"a":1,"b":{"a":2}})", "x"));
}
TEST(Json, RefusesDepth) {
  const GoldenMessages golden;
  EXPECT_NOTED(parse_json(std::string(100, '[') + std::string(100, ']'), "x"), UsageError);
}
// Accepts exactly as many levels as requested, of whatever kind.
TEST(Json, CountsLevels) {
  const GoldenMessages golden;
  const auto nested = [](int levels, const char* open, const char* close) {
    std::string text, end;
    for (int i = 0; i < levels; ++i) {
      text += open;
      end += close;
    }
    return text + "1" + end;
  };
  for (const auto& [open, close] : {std::pair{"[", "]"}, std::pair{"{\"a\":", "}"}}) {
    EXPECT_NO_THROW(parse_json(nested(64, open, close), "x"));
    EXPECT_NOTED(parse_json(nested(65, open, close), "x"), UsageError);
    EXPECT_NO_THROW(parse_json(nested(2, open, close), "x", 2));
    EXPECT_NOTED(parse_json(nested(3, open, close), "x", 2), UsageError);
  }
}
// The library's own parser is the oracle.
TEST(Json, ReadsEveryKindOfValue) {
  for (const char* text :
       {R"({"n":null,"t":true,"f":false,"i":-3,"u":18446744073709551615,"d":-0.5e-3,"s":"a\u00e9\n","o":{},"a":[]})",
        R"([1,[2,{"b":[{},[[]]],"a":{"b":"","a":{"":[null]}}}],"x"])", "7", "-7", "1e400", "\"text\"", "null", "[]",
        "{}"}) {
    Json want;
    try {
      want = Json::parse(text);
    } catch (const Json::exception&) {
      EXPECT_NOTED(parse_json(text, "x"), UsageError) << text;
      continue;
    }
    const Json got = parse_json(text, "x");
    EXPECT_EQ(got, want) << text;
    EXPECT_EQ(got.dump(), want.dump()) << text;
  }
  const Json numbers = parse_json("[3,-3,3.0]", "x");
  EXPECT_TRUE(numbers[0].is_number_unsigned());
  EXPECT_TRUE(numbers[1].is_number_integer() && !numbers[1].is_number_unsigned());
  EXPECT_TRUE(numbers[2].is_number_float());
}
// A list of members searched for each key would take minutes here (3e10 comparisons), beyond any time limit of a test.
TEST(Json, ReadsManyKeys) {
  constexpr int kKeys = 250000;
  std::string text = "{";
  for (int i = 0; i < kKeys; ++i) text += (i > 0 ? ",\"model.layers." : "\"model.layers.") + std::to_string(i) + "\":1";
  const Json json = parse_json(text + "}", "x");
  EXPECT_EQ(json.size(), std::size_t{kKeys});
  EXPECT_EQ(json.begin().key(), "model.layers.0");
  EXPECT_EQ(std::prev(json.end()).key(), "model.layers.249999");
  try {
    parse_json(text + ",\"model.layers.7\":1}", "x");
    ADD_FAILURE() << "a duplicate key was read";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "x: JSON key 'model.layers.7' appears twice in one object");
  }
}
TEST(Json, RefusesWhatIsCutShort) {
  const std::string whole = R"({"a":[1,{"b":"c"}],"d":-1.5e3})";
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NOTED(parse_json(whole.substr(0, size), "x"), UsageError) << size;
  for (const char* text : {"", " ", "nul", "{,}", "[1,]", "{\"a\"}", "{\"a\":}", "{1:2}", "[1}", "+1", "01", "'a'"})
    EXPECT_NOTED(parse_json(text, "x"), UsageError) << text;
}
TEST(Json, RefusesTrailingText) {
  EXPECT_NOTED(parse_json("{} {}", "x"), UsageError);
}
TEST(Json, RefusesInvalidUtf8) {
  EXPECT_NOTED(parse_json("\"\xff\"", "x"), UsageError);
}
TEST(Json, RefusesNul) {
  const GoldenMessages golden;
  EXPECT_NOTED(parse_json(std::string("{}\0x", 4), "x"), UsageError);
}
TEST(Json, KeepsOrder) {
  EXPECT_EQ(parse_json(R"({"b":1,"a":2})", "x").dump(), R"({"b":1,"a":2})");
}

TEST(Json, ElementsAreHandedOverAndNotKept) {
  std::vector<std::string> seen;
  const auto take = [&](std::size_t i, const Json& element) {
    EXPECT_EQ(i, seen.size());
    seen.push_back(element.dump());
  };
  const Json rest = parse_json_elements(R"({"a":[{"x":1}],"list":[{"x":{"list":[2]}},[3,[4]],5],"b":{"list":[{}]}})",
                                        "f", "list", take);
  EXPECT_EQ(seen, (std::vector<std::string>{R"({"x":{"list":[2]}})", "[3,[4]]"}));
  EXPECT_EQ(rest.dump(), R"({"a":[{"x":1}],"list":[5],"b":{"list":[{}]}})");
  const auto ignore = [](std::size_t, const Json&) {};
  EXPECT_NOTED(parse_json_elements(R"({"list":[{"x":1,"x":2}]})", "f", "list", ignore), UsageError);
  EXPECT_NOTED(parse_json_elements(R"({"list":[{}],"list":[]})", "f", "list", ignore), UsageError);
  EXPECT_NOTED(parse_json_elements(R"({"list":[{})", "f", "list", ignore), UsageError);
}

}  // namespace
}  // namespace molen
