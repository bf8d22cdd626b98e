#include "tune/space.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "base/error.h"

namespace molen::tune {
namespace {

std::string error_of(const std::vector<std::string>& arguments) {
  try {
    parse_space(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::string file_error_of(const std::string& text) {
  try {
    parse_space_file(text, "space.toml");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

void expect_has(const std::string& text, std::initializer_list<std::string> parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
}

TEST(Space, OfTheTalkOnFrontier) {
  const Space space = frontier_space();
  EXPECT_EQ(space.points(), 6 * 4 * 17 * 2 * 2 * 2);
  EXPECT_EQ(space.columns(), 6);
  EXPECT_EQ(space.text(space.point_of(0)), "pipeline 1, tensor 1, micro 4, gas 5, zero 0, nodes 12");
  EXPECT_EQ(space.text(space.point_of(space.points() - 1)),
            "pipeline 16, tensor 8, micro 20, gas 10, zero 1, nodes 16");
}

TEST(Space, EncodesListsByOrderAndRangesByValue) {
  const Space space = parse_space({"parallel.tensor=8,1,4,2", "batch.micro=4..20", "batch.global=1..1024:log",
                                   "parallel.recompute=none,full", "parallel.sequence=false,true"});
  EXPECT_EQ(space.columns(), 1 + 1 + 1 + 2 + 2);
  EXPECT_EQ(space.dimension_of(), (std::vector<int>{0, 1, 2, 3, 3, 4, 4}));
  const auto row = space.encoded(Point{1, 12, 31, 1, 0});
  EXPECT_DOUBLE_EQ(row[0], 1.0 / 3) << "2 is the second of 1, 2, 4, 8";
  EXPECT_DOUBLE_EQ(row[1], 0.75) << "16 of 4 to 20";
  EXPECT_DOUBLE_EQ(row[2], 0.5) << "32 of 1 to 1024";
  EXPECT_DOUBLE_EQ(row[3], 0.0);
  EXPECT_DOUBLE_EQ(row[4], std::sqrt(0.5));
  const auto other = space.encoded(Point{1, 12, 31, 0, 0});
  EXPECT_NEAR((row - other).norm(), 1.0, 1e-15) << "two categories are as far apart as the ends of a range";
  EXPECT_EQ(space.text(Point{1, 12, 31, 1, 0}), "tensor 2, micro 16, global 32, recompute full, sequence false");
}

RC_GTEST_PROP(Space, EachPointIsFoundAgain, ()) {
  static const Space space = parse_space({"parallel.tensor=1,2,4", "batch.micro=3..9", "batch.global=1..70:log",
                                          "parallel.recompute=none,full,budget 1GiB", "parallel.sequence=true,false"});
  const auto number = *rc::gen::inRange<std::int64_t>(0, space.points());
  const Point point = space.point_of(number);
  RC_ASSERT(space.number_of(point) == number);
  RC_ASSERT(space.decoded(space.encoded(point)) == point);
  RC_ASSERT(space.point_of(space.keys(point), "here") == point);
  for (const Point& near : space.neighbours(point)) {
    int differ = 0;
    for (std::size_t d = 0; d < point.size(); ++d) differ += near[d] != point[d];
    RC_ASSERT(differ == 1);
    const auto back = space.neighbours(near);
    RC_ASSERT(std::find(back.begin(), back.end(), point) != back.end());
  }
}

TEST(Space, SharesReachEachLevelAlike) {
  const Space space = parse_space({"batch.micro=4..20", "parallel.tensor=1,2,4,8"});
  std::vector<int> reached(17, 0);
  for (int i = 0; i < 1700; ++i) ++reached[space.at_shares({i / 1700.0, 0.999})[0]];
  for (const int count : reached) EXPECT_NEAR(count, 100, 1);
  EXPECT_EQ(space.at_shares({0.0, 0.999})[1], 3U);
}

TEST(Space, AChoiceHasTheBatchAndTheRanksThatFollow) {
  const Space space = parse_space({"parallel.tensor=1,2", "batch.micro=3,4", "gas=5,10", "nodes=2,3"});
  config::Config base = config::parse("[parallel]\npipeline = 4\n", "base.toml");
  const auto chosen = space.choice(Point{1, 0, 1, 0}, base, {.ranks = 1, .of_node = 8});
  ASSERT_TRUE(chosen) << chosen.reason();
  EXPECT_EQ(chosen.value().ranks, 16);
  EXPECT_EQ(chosen.value().config.parallel.tensor, 2);
  EXPECT_EQ(chosen.value().config.batch.micro, 3);
  EXPECT_EQ(chosen.value().config.batch.global, 3 * 10 * 16 / 2 / 4);
  EXPECT_EQ(chosen.value().config.parallel.pipeline, 4) << "what is not searched stays";
  EXPECT_EQ(chosen.value().config.origins.at("batch.global").describe(), "molen tune: gas = 10");
  base.parallel.pipeline = 5;
  const auto refused = space.choice(Point{1, 0, 1, 0}, base, {.ranks = 1, .of_node = 8});
  ASSERT_FALSE(refused);
  expect_has(refused.reason(), {"16 ranks", "2 x 5 x 1"});
}

TEST(Space, AChoiceThatContradictsItselfFailsWithTheReason) {
  const Space space = parse_space({"batch.micro=3,4", "batch.global=8,16"});
  EXPECT_TRUE(space.choice(Point{1, 0}, {}, {}));
  const auto refused = space.choice(Point{0, 0}, {}, {});
  ASSERT_FALSE(refused);
  expect_has(refused.reason(), {"batch.global"});
  const Space large = parse_space({"gas=1,1000000", "batch.micro=1,2147483648"});
  expect_has(large.choice(Point{1, 1}, {}, {}).reason(), {"gas", "2^31"});
}

TEST(Space, RefusesWrongArguments) {
  expect_has(error_of({"parallel.tensr=1,2"}), {"unknown key", "parallel.tensor"});
  expect_has(error_of({"gass=1,2"}), {"unknown key 'gass'", "'gas'"});
  expect_has(error_of({"batch.micro"}), {"batch.micro", "key=1,2,4"});
  expect_has(error_of({"batch.micro="}), {"batch.micro", "empty"});
  expect_has(error_of({"batch.micro=1,,2"}), {"batch.micro", "a value is empty"});
  expect_has(error_of({"batch.micro=1,two"}), {"batch.micro", "two"});
  expect_has(error_of({"batch.micro=0..4"}), {"batch.micro", "positive"});
  expect_has(error_of({"batch.micro=9..4"}), {"batch.micro", "9..4 is empty"});
  expect_has(error_of({"batch.micro=4.."}), {"4..", "is no range"});
  expect_has(error_of({"batch.micro=1..2..3"}), {"is no range"});
  expect_has(error_of({"data.seed=0..8:log"}), {"logarithmic", "not at 0"});
  expect_has(error_of({"batch.global=1..1000000"}), {"more than 100000"});
  expect_has(error_of({"batch.micro=1,1"}), {"twice"});
  expect_has(error_of({"batch.micro=1,2", "batch.micro=3,4"}), {"batch.micro", "twice"});
  expect_has(error_of({"gas=1,2", "batch.global=8,16"}), {"gas decides batch.global"});
  expect_has(error_of({"batch.micro=4"}), {"one point"});
  expect_has(error_of({"nodes=0,1"}), {"nodes", "from 1"});
  expect_has(error_of({"gas=1.5,2"}), {"gas", "1.5"});
  expect_has(error_of({"parallel.schedule=1f1b,gpipe9"}), {"parallel.schedule", "gpipe9"});
  std::vector<std::string> many;
  for (const char* key : {"data.seed", "train.seed", "batch.micro", "batch.global"})
    many.push_back(std::string(key) + "=1..100000");
  EXPECT_NE(error_of(many), "") << "10^20 points";
}

TEST(Space, OfAFileIsThatOfArguments) {
  const Space of_file = parse_space_file(
      "[[dimension]]\nkey = \"batch.micro\"\nfrom = 4\nto = 20\n[[dimension]]\nkey = \"batch.global\"\nfrom = 1\nto = "
      "64\n"
      "scale = \"log\"\n[[dimension]]\nkey = \"parallel.recompute\"\nvalues = [\"none\", \"full\"]\n[[dimension]]\nkey "
      "= "
      "\"nodes\"\nvalues = [2, 1]\n",
      "space.toml");
  const Space of_arguments =
      parse_space({"batch.micro=4..20", "batch.global=1..64:log", "parallel.recompute=none,full", "nodes=1,2"});
  EXPECT_EQ(to_json(of_file), to_json(of_arguments));
  EXPECT_EQ(to_json(of_file)[1], Json::parse(R"({"key": "batch.global", "from": 1, "to": 64, "scale": "log"})"));
}

TEST(Space, RefusesWrongFiles) {
  expect_has(file_error_of("[[dimension]\n"), {"space.toml:1", "not TOML"});
  expect_has(file_error_of(""), {"space.toml", "[[dimension]]"});
  expect_has(file_error_of("[space]\n"), {"space.toml:1", "unknown table 'space'"});
  expect_has(file_error_of("[[dimension]]\nkey = \"batch.mirco\"\nvalues = [1, 2]\n"), {"space.toml:1", "batch.micro"});
  expect_has(file_error_of("[[dimension]]\nkey = \"batch.micro\"\nvalue = [1, 2]\n"), {"space.toml:3", "'values'"});
  expect_has(file_error_of("[[dimension]]\nkey = \"batch.micro\"\nvalues = []\n"), {"empty"});
  expect_has(file_error_of("[[dimension]]\nkey = \"batch.micro\"\nvalues = 3\n"), {"is a list"});
  expect_has(file_error_of("[[dimension]]\nkey = \"batch.micro\"\nfrom = 1\n"), {"`to` is missing"});
  expect_has(file_error_of("[[dimension]]\nkey = \"batch.micro\"\nfrom = 1\nto = 4\nscale = \"square\"\n"), {"scale"});
  expect_has(file_error_of("[[dimension]]\nkey = \"batch.micro\"\nfrom = 1\nto = 4\nvalues = [1]\n"), {"no range"});
  expect_has(file_error_of("[[dimension]]\nvalues = [1]\n"), {"`key` is missing"});
  expect_has(file_error_of("[[dimension]]\nkey = \"batch.micro\"\nvalues = [1979-05-27]\n"), {"a value is"});
  expect_has(file_error_of("a" + std::string(5000, '.') + "b = 1\n"), {"dots"});
}

TEST(Space, KeysOfAnotherSearchAreRefused) {
  const Space space = parse_space({"batch.micro=1,2", "gas=1,2"});
  EXPECT_THROW(space.point_of(Json{{"batch.micro", 1}}, "tune.jsonl:2"), UsageError);
  EXPECT_THROW(space.point_of(Json{{"batch.micro", 1}, {"gas", 3}}, "tune.jsonl:2"), UsageError);
  EXPECT_THROW(space.point_of(Json{{"batch.micro", 1}, {"nodes", 1}}, "tune.jsonl:2"), UsageError);
}

}  // namespace
}  // namespace molen::tune
