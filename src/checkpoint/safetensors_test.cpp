// Tests the golden file, each rule of the format broken once, round trips, and the fuzz seeds.
#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <csignal>
#include <cstring>

#include "base/error.h"
#include "base/test_bounds.h"
#include "base/test_golden.h"
#include "checkpoint/test_folder.h"

namespace molen::checkpoint {
namespace {

// Makes a file of `header` (padded as given) and `buffer` bytes of tensors.
std::string file_of(std::string_view header, std::size_t buffer) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + std::string(header) + std::string(buffer, '\1');
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, std::uint64_t begin,
                  std::uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin, end);
}

// Returns the error's text, or "accepted".
std::string verdict(std::string_view file) {
  try {
    parse_safetensors(file, file.size(), "x");
    return "accepted";
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
}

void expect_refused(std::string_view file, std::string_view why) {
  const std::string text = verdict(file);
  EXPECT_NE(text.find(why), std::string::npos) << "got: " << text << "\nexpected: " << why;
}

void expect_header_refused(std::string_view header, std::string_view why, std::size_t buffer = 8) {
  expect_refused(file_of(header, buffer), why);
}

constexpr unsigned char kGolden[72] = {
    0x38, 0,    0,    0,    0,    0,    0,    0,    0x7b, 0x22, 0x61, 0x22, 0x3a, 0x7b, 0x22, 0x64, 0x74, 0x79,
    0x70, 0x65, 0x22, 0x3a, 0x22, 0x46, 0x33, 0x32, 0x22, 0x2c, 0x22, 0x73, 0x68, 0x61, 0x70, 0x65, 0x22, 0x3a,
    0x5b, 0x32, 0x5d, 0x2c, 0x22, 0x64, 0x61, 0x74, 0x61, 0x5f, 0x6f, 0x66, 0x66, 0x73, 0x65, 0x74, 0x73, 0x22,
    0x3a, 0x5b, 0x30, 0x2c, 0x38, 0x5d, 0x7d, 0x7d, 0x20, 0x20, 0,    0,    0x80, 0x3f, 0,    0,    0,    0x40};

TEST(Safetensors, WritesTheGoldenFileByteForByte) {
  const TestFolder folder;
  const float values[2] = {1, 2};
  SafetensorsWriter writer(folder / "a.safetensors", {{"a", DType::kF32, {2}}});
  writer.write("a", 0, values, 4);
  writer.write("a", 4, values + 1, 4);
  EXPECT_FALSE(fs::exists(folder / "a.safetensors"));
  writer.finish();
  EXPECT_EQ(read_file(folder / "a.safetensors"), std::string(reinterpret_cast<const char*>(kGolden), 72));
}

TEST(Safetensors, ReadsTheGoldenFile) {
  const GoldenMessages golden;
  const TestFolder folder;
  write_file_atomic(folder / "a.safetensors", {reinterpret_cast<const char*>(kGolden), 72});
  const SafetensorsFile file(folder / "a.safetensors");
  float values[2] = {};
  file.read(file.at("a"), 0, 2, values);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 2.0f);
  EXPECT_NOTED(file.at("b"), UsageError);
}

TEST(Safetensors, RefusesBadLengths) {
  const GoldenMessages golden;
  expect_refused("", "fewer than the 8");
  expect_refused("1234567", "fewer than the 8");
  for (const std::uint64_t length : {kMaxHeaderBytes + 1, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    std::string file = file_of("{}", 0);
    std::memcpy(file.data(), &length, 8);
    expect_refused(file, "the limit is 100000000");
  }
  for (const std::uint64_t length : {std::uint64_t{3}, kMaxHeaderBytes}) {
    std::string file = file_of("{}", 0);
    std::memcpy(file.data(), &length, 8);
    expect_refused(file, "in a file of 10");
  }
  expect_refused(std::string(8, '\0'), "does not begin with '{'");
}

TEST(Safetensors, RefusesBadHeaders) {
  const GoldenMessages golden;
  expect_header_refused("{\"\xff\":1}", "not UTF-8");
  expect_header_refused("{\"\xed\xa0\x80\":1}", "not UTF-8");
  expect_header_refused("{\"\xc0\xaf\":1}", "not UTF-8");
  expect_header_refused(" {}", "does not begin with '{'");
  expect_header_refused("[]", "does not begin with '{'");
  expect_header_refused(std::string_view("{}\0\0", 4), "NUL");
  expect_header_refused("{} x", "not valid JSON");
  expect_header_refused("{\"a\":", "not valid JSON");
  expect_header_refused(R"({"\ud800":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "not valid JSON");
  expect_header_refused("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "unexpected an array");
  expect_header_refused("{\"a\":" + std::string(100000, '{') + "}", "not valid JSON");
  expect_header_refused(R"({"__metadata__":{"k":1}})", "unexpected a number");
  expect_header_refused(R"({"__metadata__":{"k":{}}})", "unexpected an object");
  expect_header_refused(R"({"__metadata__":"k"})", "unexpected a string");
  expect_header_refused(R"({"a":null})", "unexpected null");
}

TEST(Safetensors, RefusesWhatTwoReadersWouldReadDifferently) {
  const GoldenMessages golden;
  expect_header_refused("{" + entry("a", "U8", "[8]", 0, 8) + "," + entry("a", "I8", "[8]", 0, 8) + "}",
                        "appears twice");
  expect_header_refused(R"({"a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}})",
                        "appears twice in tensor");
  expect_header_refused(R"({"__metadata__":{"k":"1","k":"2"}})", "appears twice in __metadata__");
  expect_header_refused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1}})", "unknown key 'x'");
}

TEST(Safetensors, RefusesBadTensors) {
  const GoldenMessages golden;
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  expect_header_refused(one("F31", "[2]", "[0,8]"), "unknown dtype 'F31'");
  expect_header_refused(one("F32", "[-2]", "[0,8]"), "a negative number");
  expect_header_refused(one("F32", "[2.0]", "[0,8]"), "the number 2.0");
  expect_header_refused(one("F32", "[2e0]", "[0,8]"), "the number 2e0");
  expect_header_refused(one("F32", "[18446744073709551616]", "[0,8]"), "the number 18446744073709551616");
  expect_header_refused(one("F32", "[18446744073709551615]", "[0,8]"), "overflows");
  expect_header_refused(one("F32", "2", "[0,8]"), "unexpected a number");
  expect_header_refused(one("F32", "[[2]]", "[0,8]"), "unexpected an array");
  expect_header_refused(one("F32", "[2]", "[0]"), "not two numbers");
  expect_header_refused(one("F32", "[2]", "[0,8,8]"), "unexpected a number");
  expect_header_refused(one("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]"), "dimensions");
  expect_header_refused(R"({"a":{"dtype":"F32","shape":[2]}})", "lacks dtype, shape or data_offsets");
  expect_header_refused(one("F32", "[4294967296,4294967296]", "[0,0]"), "overflows", 0);
  expect_header_refused(one("F32", "[4611686018427387904]", "[0,0]"), "overflows", 0);
  expect_header_refused(one("F4", "[3]", "[0,1]"), "whole bytes", 1);
  expect_header_refused(one("F32", "[3]", "[0,8]"), "12 bytes by its shape, 8 by its data_offsets");
  expect_header_refused("{" + entry("a\\n", "U8", "[8]", 0, 8) + "}", "control characters");
  expect_header_refused("{" + entry("../a", "U8", "[8]", 0, 8) + "}", "contains '..'");
  expect_header_refused("{" + entry(std::string(5000, 'a'), "U8", "[8]", 0, 8) + "}", "a name of 5000 bytes");
  // So long a string never reaches the parser, which would refuse it as a name.
  expect_header_refused("{" + entry(std::string((1 << 24) + 1, 'a'), "U8", "[8]", 0, 8) + "}",
                        "a string of more than 16777216 bytes");
}

TEST(Safetensors, RefusesHolesOverlapsAndLeftovers) {
  const GoldenMessages golden;
  const auto two = [](std::uint64_t b0, std::uint64_t e0, std::uint64_t b1, std::uint64_t e1) {
    return "{" + entry("a", "U8", fmt::format("[{}]", e0 - b0), b0, e0) + "," +
           entry("b", "U8", fmt::format("[{}]", e1 - b1), b1, e1) + "}";
  };
  EXPECT_EQ(verdict(file_of(two(0, 3, 3, 8), 8)), "accepted");
  EXPECT_EQ(verdict(file_of(two(3, 8, 0, 3), 8)), "accepted");
  expect_header_refused(two(0, 3, 4, 8), "expected to begin at 3");
  expect_header_refused(two(0, 3, 2, 8), "expected to begin at 3");
  expect_header_refused(two(1, 3, 3, 8), "expected to begin at 0");
  expect_header_refused("{" + entry("a", "U8", "[8]", 8, 0) + "}", "expected to begin at 0");
  expect_header_refused(two(0, 3, 3, 8), "promises 8 bytes of tensors, the file holds 7 (truncated?)", 7);
  expect_header_refused(two(0, 3, 3, 8), "promises 8 bytes of tensors, the file holds 9", 9);
  expect_header_refused("{" + entry("a", "U8", "[18446744073709551615]", 0, ~std::uint64_t{0}) + "}", "overflows");
  std::string many = "{";
  for (int i = 0; i < 100000; ++i) many += entry(fmt::format("t{}", i), "U8", "[8]", 0, 8) + ",";
  many.back() = '}';
  expect_header_refused(many, "expected to begin at 8");
}

TEST(Safetensors, HostileHeadersAreBounded) {
  const auto parsed = [](const std::string& header) {
    return [file = file_of(header, 0)] { parse_safetensors(file, file.size(), "x"); };
  };
  const auto listed = [](std::string before, const auto& item, int count, const char* after) {
    for (int i = 0; i < count; ++i) {
      if (i > 0) before += ',';
      before += item(i);
    }
    return before + after;
  };
  const auto metadata = [&](int count) {
    return listed(
        "{\"__metadata__\":{", [](int i) { return fmt::format("\"{}\":\"\"", i); }, count, "}}");
  };
  EXPECT_EQ(bounded("2^18 keys in __metadata__", parsed(metadata(1 << 18))), "");
  EXPECT_NE(bounded("one more", parsed(metadata((1 << 18) + 1))).find("262144 entries"), std::string::npos);
  EXPECT_NE(bounded("2 million", parsed(metadata(2'000'000))), "");
  const auto value = [&](std::size_t bytes) { return "{\"__metadata__\":{\"\":\"" + std::string(bytes, 'x') + "\"}}"; };
  EXPECT_EQ(bounded("16 MiB in __metadata__", parsed(value(1 << 24))), "");
  EXPECT_NE(bounded("one byte more", parsed(value((1 << 24) + 1))).find("16777216 bytes"), std::string::npos);
  EXPECT_NE(bounded("64 MB", parsed(value(64'000'000))), "");
  EXPECT_NE(bounded("16 MiB of it in two values",
                    parsed(listed(
                        "{\"__metadata__\":{",
                        [](int i) { return fmt::format("\"{}\":\"{}\"", i, std::string(9 << 20, 'x')); }, 2, "}}"))),
            "");
  EXPECT_NE(bounded("64 MB of a name", parsed("{\"" + std::string(64'000'000, 'x') + "\":1}")), "");
  EXPECT_NE(bounded("64 MB of [", parsed("{\"a\":" + std::string(64'000'000, '['))), "");
  EXPECT_NE(
      bounded("10 MB of a shape", parsed(listed(
                                      "{\"a\":{\"shape\":[", [](int) { return std::string("1"); }, 5'000'000, "]}}"))),
      "");
}

TEST(Safetensors, AcceptsTheEdgesOfTheFormat) {
  EXPECT_EQ(verdict(file_of("{}", 0)), "accepted");
  EXPECT_EQ(verdict(file_of("{}  \n ", 0)), "accepted");
  EXPECT_EQ(verdict(file_of(R"({"__metadata__":{}})", 0)), "accepted");
  EXPECT_EQ(verdict(file_of("{" + entry("a", "F64", "[]", 0, 8) + "}", 8)), "accepted");
  EXPECT_EQ(verdict(file_of("{" + entry("a", "F64", "[0,7]", 0, 0) + "," + entry("b", "BF16", "[4]", 0, 8) + "}", 8)),
            "accepted");
  EXPECT_EQ(verdict(file_of("{" + entry("a", "F8_E4M3", "[8]", 0, 8) + "}", 8)), "accepted");
}

TEST(Safetensors, NamesATypeItCannotRead) {
  const GoldenMessages golden;
  const TestFolder folder;
  write_file_atomic(folder / "f8", file_of("{" + entry("a", "F8_E4M3", "[8]", 0, 8) + "}", 8));
  const SafetensorsFile file(folder / "f8");
  char bytes[8];
  EXPECT_NOTED(file.read(file.at("a"), 0, 8, bytes), UsageError);
}

TEST(Safetensors, SurvivesAFileCutAfterOpening) {
  const GoldenMessages golden;
  const TestFolder folder;
  write_file_atomic(folder / "a", file_of("{" + entry("a", "U8", "[1000000]", 0, 1000000) + "}", 1000000));
  const SafetensorsFile file(folder / "a");
  ASSERT_EQ(::truncate((folder / "a").c_str(), 5000), 0);
  std::vector<char> bytes(1000000);
  EXPECT_NOTED(file.read(file.at("a"), 0, 1000000, bytes.data()), DamagedError);
}

// Names with the first and last characters of each UTF-8 length.
TEST(Safetensors, NamesAreWellFormedUtf8) {
  for (const char* name : {"a\xc2\x80z", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbd",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "\xf3\xa0\x80\x80"}) {
    const std::string said = verdict(file_of("{" + entry(name, "U8", "[8]", 0, 8) + "}", 8));
    EXPECT_EQ(said.find("UTF-8"), std::string::npos) << said;
  }
  for (const char* name :
       {"\x80", "\xbf", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe1\x80", "\xe1\x80z",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf1\x80\x80", "\xf1\x80\x80z", "\xff"})
    expect_header_refused("{" + entry(name, "U8", "[8]", 0, 8) + "}", "not UTF-8");
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const GoldenMessages golden;
  const TestFolder folder;
  EXPECT_NOTED(SafetensorsFile(folder / "absent"), UsageError);
  EXPECT_NOTED(SafetensorsFile(folder.path()), UsageError);
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_NOTED(SafetensorsFile(folder / "fifo"), UsageError);
}

TEST(Safetensors, FindsAlteredBytesByTheirHash) {
  const GoldenMessages golden;
  const TestFolder folder;
  const std::vector<std::int32_t> values(1000, 7);
  SafetensorsWriter writer(folder / "a", {{"a", DType::kI32, {10, 100}}, {"b", DType::kI32, {}}},
                           {.metadata = {}, .hashes = true});
  writer.write("b", 0, values.data(), 4);
  writer.write("a", 0, values.data(), 1000);
  writer.write("a", 1000, values.data(), 3000);
  writer.finish();
  EXPECT_EQ(SafetensorsFile(folder / "a").verify_hashes(), 2);
  // XXH128 in its canonical form, as `xxh128sum` prints it.
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, XXH3_128bits(values.data(), 4));
  std::string hex;
  for (const unsigned char byte : bytes.digest) hex += fmt::format("{:02x}", byte);
  EXPECT_NE(read_file(folder / "a").find(hex), std::string::npos) << hex;
  std::string content = read_file(folder / "a");
  content[content.size() - 1000] ^= 4;
  write_file_atomic(folder / "a", content);
  EXPECT_NOTED(SafetensorsFile(folder / "a").verify_hashes(), DamagedError);
}

TEST(Safetensors, LeavesNothingWhenTheDiskIsFull) {
  const GoldenMessages golden;
  const TestFolder folder;
  const ScopedFileLimit limit(100'000);
  EXPECT_NOTED(SafetensorsWriter(folder / "a", {{"a", DType::kU8, {1'000'000}}}), Error);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Safetensors, AnAbandonedWriterLeavesNothing) {
  const GoldenMessages golden;
  const TestFolder folder;
  { const SafetensorsWriter writer(folder / "a", {{"a", DType::kU8, {10}}}); }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  // The writer refuses names and shapes that the reader would refuse.
  EXPECT_NOTED(SafetensorsWriter(folder / "c", {{"a..b", DType::kU8, {1}}}), Error);
  EXPECT_NOTED(SafetensorsWriter(folder / "c", {{"a", DType::kU8, std::vector<std::int64_t>(kMaxRank + 1, 1)}}), Error);
  SafetensorsWriter unfinished(folder / "b", {{"a", DType::kU8, {10}}});
  EXPECT_NOTED(unfinished.finish(), Error);
}

RC_GTEST_PROP(Safetensors, ReadsWhatItWrote, (std::uint64_t seed)) {
  const TestFolder folder;
  const auto sizes = *rc::gen::container<std::vector<std::uint8_t>>(rc::gen::arbitrary<std::uint8_t>());
  std::vector<TensorSpec> specs;
  std::vector<std::string> contents;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto dtype = static_cast<DType>((seed + i) % 13);
    specs.push_back({fmt::format("tensor \"{}\" \\ {}", i, "\xc3\xa9"), dtype, {sizes[i] % 7, sizes[i] % 5}});
    contents.emplace_back(static_cast<std::size_t>((sizes[i] % 7) * (sizes[i] % 5) * size_of(dtype)),
                          static_cast<char>(i));
  }
  SafetensorsWriter writer(folder / "a", specs, {.metadata = {{"key", "value"}}, .hashes = seed % 2 == 0});
  for (std::size_t i = specs.size(); i-- > 0;) writer.write(specs[i].name, 0, contents[i].data(), contents[i].size());
  writer.finish();
  const SafetensorsFile file(folder / "a");
  RC_ASSERT(file.header().buffer_begin % 8 == 0u);
  RC_ASSERT(file.header().metadata.at("key") == "value");
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const TensorInfo& info = file.at(specs[i].name);
    RC_ASSERT(info.shape == specs[i].shape);
    RC_ASSERT(info.dtype == specs[i].dtype);
    std::string got(contents[i].size(), 'x');
    file.read(info, 0, info.elements(), got.data());
    RC_ASSERT(got == contents[i]);
  }
}

// Any single changed byte of the header's part gives an error, or a file whose tensors still cover the buffer; never a
// crash.
RC_GTEST_PROP(Safetensors, MutatedHeadersAreRefusedOrConsistent, (std::uint32_t position, char byte)) {
  std::string file = file_of("{" + entry("a", "F32", "[3,2]", 0, 24) + "," + entry("b", "U8", "[]", 24, 25) + "}", 25);
  file[position % (file.size() - 25)] = byte;
  try {
    std::uint64_t sum = 0;
    for (const TensorInfo& tensor : parse_safetensors(file, file.size(), "x").tensors) sum += tensor.end - tensor.begin;
    RC_ASSERT(sum == 25u);
  } catch (const UsageError&) {
  }
}

TEST(Safetensors, ReplaysTheFuzzSeeds) {
  const GoldenMessages golden;
  int seeds = 0, accepted = 0;
  for (const auto& seed : fs::directory_iterator("tests/fuzz/seeds/safetensors")) {
    const std::string content = read_file(seed.path());
    const bool good = verdict(content) == "accepted";
    // A seed's name gives the expected result.
    EXPECT_EQ(good, seed.path().filename().string().starts_with("good-")) << seed.path();
    ++seeds;
    accepted += good;
  }
  EXPECT_GE(seeds, 20);
  EXPECT_GE(accepted, 5);
}

}  // namespace
}  // namespace molen::checkpoint
