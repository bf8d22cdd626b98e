// Tests which indexes and states from outside are accepted, and the texts with which all others are refused.
#include "checkpoint/index.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_golden.h"
#include "checkpoint/safetensors.h"

namespace molen::checkpoint {
namespace {

template <class F>
std::string index_refusal(F&& action) {
  try {
    action();
    return "accepted";
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  } catch (const VersionError& error) {
    return std::string("another version: ") + error.what();
  }
}

Index whole_index() {
  StoredTensor w{DType::kF32, {4, 2}, {}};
  w.slices.push_back({0, "", {{{0, 0}, {3, 2}}}, {"00000000000000aa"}});
  w.slices.push_back({12, "", {{{3, 0}, {1, 2}}}, {"00000000000000bb"}});
  StoredTensor v{DType::kBF16, {}, {}};
  v.slices.push_back({0, "", {{{}, {}}}, {"00000000000000cc"}});
  return {{"w", w}, {"v", v}};
}

TEST(Index, ComesBackAsItWasPrinted) {
  const std::string text = print_index(whole_index());
  const Index index = parse_index(text, "index.json");
  ASSERT_EQ(index.size(), 2u);
  const StoredTensor& w = index.at("w");
  EXPECT_EQ(w.dtype, DType::kF32);
  EXPECT_EQ(w.shape, (std::vector<std::int64_t>{4, 2}));
  ASSERT_EQ(w.slices.size(), 2u);
  EXPECT_EQ(w.slices[0].entry, "w@0,0");
  EXPECT_EQ(w.slices[1].entry, "w@3,0");
  EXPECT_EQ(w.slices[1].rank, 12);
  EXPECT_EQ(w.slices[1].elements(), 2);
  EXPECT_EQ(w.slices[1].hashes, std::vector<std::string>{"00000000000000bb"});
  EXPECT_EQ(index.at("v").slices[0].entry, "v") << "a whole tensor keeps its name";
  EXPECT_EQ(index.at("v").elements(), 1);
  EXPECT_EQ(print_index(index), text);
}

TEST(Index, FilesOfAnyRank) {
  for (const int rank : {0, 1, 9, 10, 12, 345, 99999, 100000, 2147483}) {
    StoredTensor w{DType::kF32, {2}, {}};
    w.slices.push_back({rank, "", {{{0}, {2}}}, {"00000000000000aa"}});
    const Index index = parse_index(print_index({{"w", w}}), "index.json");
    EXPECT_EQ(index.at("w").slices[0].rank, rank);
  }
}

TEST(Index, RefusesInTheseWords) {
  const GoldenMessages golden;
  const std::string text = print_index(whole_index());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return index_refusal([&] { parse_index(changed, "index.json"); });
  };
  EXPECT_EQ(with("\"w\"", "\"w\""), "accepted");
  EXPECT_EQ(with("molen-checkpoint", "else"), "index.json: not a molen checkpoint");
  EXPECT_EQ(with("\"molen-checkpoint\"", "3"), "index.json: 'format' must be a string");
  const std::string version = "; this molen reads 1 to 2: use the version of molen that wrote it";
  EXPECT_EQ(with("\"format_version\":2", "\"format_version\":0"),
            "another version: index.json: format version 0" + version);
  EXPECT_EQ(with("\"format_version\":2", "\"format_version\":3"),
            "another version: index.json: format version 3" + version);
  EXPECT_EQ(with("\"format_version\":2", "\"format_version\":1"), "accepted");
  EXPECT_EQ(with("\"format_version\":2", "\"format_version\":-2"),
            "index.json: 'format_version' must be a whole number, not negative");
  EXPECT_EQ(with(fmt::format("\"block_bytes\":{}", kBlockBytes), "\"block_bytes\":7"),
            fmt::format("index.json: 'block_bytes' must be {}", kBlockBytes));
  const std::string w = "index.json: tensor 'w': ";
  EXPECT_EQ(with("\"rank\":12", "\"rank\":100000001"), w + "'rank' is impossible");
  EXPECT_EQ(with("\"rank\":12", "\"rank\":100000000"), "accepted");
  EXPECT_EQ(with("\"rank\":12", "\"rank\":1.5"), w + "'rank' must be a whole number, not negative");
  EXPECT_EQ(with("\"rank\":12", "\"rank\":9223372036854775808"), w + "'rank' must be a whole number, not negative");
  EXPECT_EQ(with("\"offsets\":[3,0]", "\"offsets\":\"x\""), w + "'offsets' must be a list of sizes");
  EXPECT_EQ(with("\"sizes\":[1,2]", "\"sizes\":[1,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"),
            w + "'sizes' must be a list of sizes");
  EXPECT_EQ(with("\"xxh3\":[\"00000000000000bb\"]", "\"xxh3\":3"), w + "'xxh3' must be a list of hashes");
  EXPECT_EQ(with("\"xxh3\":[\"00000000000000bb\"]", "\"xxh3\":[3]"), w + "'xxh3' must hold strings");
  EXPECT_EQ(with("\"xxh3\":[\"00000000000000bb\"]", "\"xxh3\":[]"), w + "'xxh3' must hold 1 hashes");
  EXPECT_EQ(with("\"xxh3\":[\"00000000000000bb\"]", "\"xxh3\":[\"a\",\"b\"]"), w + "'xxh3' must hold 1 hashes");
  EXPECT_EQ(with("\"shape\":[4,2]", "\"shape\":[4611686018427387904,2]"), w + "'shape' has an impossible size");
  EXPECT_EQ(with("\"shape\":[4,2]", "\"shape\":[5,2]"),
            w + "the slices do not tile the tensor: no slice has the elements at [4, 0]");
  EXPECT_EQ(with("\"v\":", "\"w\":"), "index.json: tensor 'w' appears twice");
  EXPECT_EQ(with("\"block_bytes\":", "\"format\":"), "index.json: 'format' appears twice");
  EXPECT_EQ(with("\"format_version\":2", "\"format_version\":{}"), "index.json: an object where none belongs");
  EXPECT_EQ(with("\"format_version\":2", "\"format_version\":[]"), "index.json: a list where none belongs");
}

// A document without "tensors" is refused, and not read as an index of no tensors.
TEST(Index, TensorsAreAnObject) {
  const auto with = [](const std::string& tensors) {
    const std::string text =
        fmt::format(R"({{"format":"molen-checkpoint","format_version":2,"block_bytes":{}{}}})", kBlockBytes, tensors);
    return index_refusal([&] { parse_index(text, "index.json"); });
  };
  EXPECT_EQ(with(",\"tensors\":{}"), "accepted");
  for (const char* bad : {"3", "null", "\"x\"", "true"})
    EXPECT_EQ(with(std::string(",\"tensors\":") + bad), "index.json: 'tensors' must be an object");
  EXPECT_EQ(with(",\"tensors\":[]"), "index.json: a list where none belongs");
  EXPECT_EQ(with(""), "index.json: no 'tensors'");
  EXPECT_EQ(index_refusal([] { parse_index(std::string_view("{}\0", 3), "x"); }), "x: not valid JSON: a NUL byte");
  EXPECT_EQ(index_refusal([] { parse_index("{", "x"); }).substr(0, 19), "x: not valid JSON: ");
}

TEST(Index, TheStateIsHeldToItsHash) {
  const Json state{{"tokens", 7}};
  const Json good{{"format", "molen-checkpoint"},
                  {"format_version", 2},
                  {"step", 12},
                  {"index_sha256", "abc"},
                  {"state_sha256", sha256_hex(state.dump())},
                  {"attachments", {{"tokenizer.json", "def"}}},
                  {"state", state}};
  const StoredState stored = parse_state(good.dump(), "state.json");
  EXPECT_EQ(stored.step, 12);
  EXPECT_EQ(stored.state, state);
  EXPECT_EQ(stored.index_sha256, "abc");
  EXPECT_EQ(stored.attachments, (std::map<std::string, std::string>{{"tokenizer.json", "def"}}));
  const auto with = [&](const char* key, const Json& value) {
    Json json = good;
    json[key] = value;
    return index_refusal([&] { parse_state(json.dump(), "state.json"); });
  };
  EXPECT_EQ(with("step", -1), "state.json: 'step' must be a whole number, not negative");
  EXPECT_EQ(with("state", {{"tokens", 8}}), "state.json: 'state' does not match its hash: the file was altered");
  EXPECT_EQ(with("state_sha256", 3), "state.json: 'state_sha256' must be a string");
  EXPECT_EQ(with("index_sha256", 3), "state.json: 'index_sha256' must be a string");
  EXPECT_EQ(with("attachments", 3), "state.json: 'attachments' must be an object");
  EXPECT_EQ(with("attachments", {{"../x", "def"}}), "state.json: bad attachment '../x'");
  EXPECT_EQ(with("attachments", {{"x", 3}}), "state.json: bad attachment 'x'");
}

}  // namespace
}  // namespace molen::checkpoint
