#include "data/shard.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/test_bounds.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

// u16, lengths 3 and 2, two documents: reference/ecosystem, section 2.
const std::string kGolden = from_hex(
    "4d4d49444944580000"
    "0100000000000000"
    "08"
    "0200000000000000"
    "0300000000000000"
    "03000000"
    "02000000"
    "0000000000000000"
    "0600000000000000"
    "0000000000000000"
    "0100000000000000"
    "0200000000000000");

TEST(ShardIndex, GoldenBytes) {
  const std::vector<std::int32_t> lengths{3, 2};
  EXPECT_EQ(kGolden.size(), 82u);
  EXPECT_EQ(format_index(DType::kU16, lengths), kGolden);
  std::vector<std::pair<std::int64_t, std::int64_t>> documents;
  const ShardIndex index = parse_index(
      kGolden, 10, "golden.idx", [&](std::int64_t first, std::int64_t end) { documents.emplace_back(first, end); });
  EXPECT_EQ(index.dtype, DType::kU16);
  EXPECT_EQ(index.tokens, 5);
  EXPECT_EQ(index.documents, 2);
  EXPECT_EQ(documents, (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {3, 5}}));
}

TEST(ShardIndex, ModesAreAllowed) {
  EXPECT_EQ(parse_index(kGolden + std::string(2, '\0'), 10, "x").tokens, 5);
}

TEST(ShardIndex, HostileBytesGetAReason) {
  const auto changed = [](std::size_t at, char byte) {
    std::string bytes = kGolden;
    bytes[at] = byte;
    return bytes;
  };
  const auto refused = [](const std::string& bytes, std::int64_t bin, const std::string& reason) {
    try {
      parse_index(bytes, bin, "bad.idx");
      ADD_FAILURE() << "accepted: " << reason;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("bad.idx: "), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  };
  refused("", 10, "shorter than the header");
  refused(kGolden.substr(0, 33), 10, "shorter than the header");
  refused(changed(0, 'X'), 10, "not a Megatron");
  refused(changed(9, 2), 10, "version 2");
  refused(changed(17, 7), 10, "code 7");
  refused(changed(17, 0), 10, "code 0");
  refused(changed(25, '\x7f'), 10, "do not fit");  // sequences near 2^63
  refused(changed(33, '\x7f'), 10, "do not fit");  // documents near 2^63
  refused(changed(26, 0), 10, "do not fit");       // no document mark
  refused(kGolden.substr(0, 81), 10, "truncated");
  refused(kGolden + "x", 10, "truncated");
  refused(changed(37, '\x80'), 10, "negative length");
  refused(changed(50, 5), 10, "starts at byte 5");
  refused(kGolden, 9, "truncated or does not belong");
  refused(kGolden, 12, "does not match");
  refused(changed(58, 1), 10, "document 0");
  refused(changed(66, 3), 10, "document 1");
  refused(changed(74, 1), 10, "last document");
}

RC_GTEST_PROP(ShardIndex, ParseOfFormatIsIdentity, (const std::vector<std::uint8_t>& raw)) {
  const std::vector<std::int32_t> lengths(raw.begin(), raw.end());
  std::int64_t tokens = 0;
  for (std::int32_t length : lengths) tokens += length;
  std::vector<std::int32_t> read;
  const ShardIndex index = parse_index(
      format_index(DType::kI32, lengths), tokens * 4, "x",
      [&](std::int64_t first, std::int64_t end) { read.push_back(static_cast<std::int32_t>(end - first)); });
  RC_ASSERT(read == lengths);
  RC_ASSERT(index.documents == static_cast<std::int64_t>(lengths.size()));
  RC_ASSERT(index.tokens == tokens);
}

RC_GTEST_PROP(ShardIndex, NoByteChangeCrashes, ()) {
  std::string bytes = kGolden;
  const auto at = *rc::gen::inRange<std::size_t>(0, bytes.size());
  bytes[at] = *rc::gen::arbitrary<char>();
  bytes.resize(*rc::gen::inRange<std::size_t>(0, bytes.size() + 1));
  try {
    RC_ASSERT(parse_index(bytes, 10, "x").tokens * 1 >= 0);
  } catch (const UsageError&) {
  }
}

TEST(Shard, WritesWhatItReads) {
  const TestFolder folder;
  for (const std::int64_t vocabulary : {300, 70000}) {
    const fs::path prefix = folder.path() / ("pair" + std::to_string(vocabulary));
    ShardWriter writer(prefix, vocabulary);
    writer.add(std::vector<std::int32_t>{1, 2, 299});
    writer.add({});
    writer.add(std::vector<std::int32_t>{7});
    EXPECT_FALSE(fs::exists(prefix.string() + ".bin")) << "nothing before finish";
    const auto written = writer.finish();
    EXPECT_EQ(written.documents, 3);
    EXPECT_EQ(written.tokens, 4);
    EXPECT_EQ(written.bin_sha256, sha256_file(prefix.string() + ".bin"));
    EXPECT_EQ(written.idx_sha256, sha256_file(prefix.string() + ".idx"));
    const ShardReader reader(prefix);
    EXPECT_EQ(read_index(prefix).dtype, vocabulary == 300 ? DType::kU16 : DType::kI32);
    EXPECT_EQ(reader.bin_bytes(), vocabulary == 300 ? 8 : 16);
    std::vector<std::int32_t> tokens(3);
    reader.read(1, tokens, vocabulary);
    EXPECT_EQ(tokens, (std::vector<std::int32_t>{2, 299, 7}));
  }
}

TEST(Shard, AbandonedWriterLeavesNothing) {
  const TestFolder folder;
  {
    ShardWriter writer(folder.path() / "gone", 300);
    writer.add(std::vector<std::int32_t>{1});
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Shard, RefusesTokensOutsideTheVocabulary) {
  const TestFolder folder;
  ShardWriter writer(folder.path() / "a", 300);
  EXPECT_THROW(writer.add(std::vector<std::int32_t>{300}), UsageError);
  EXPECT_THROW(writer.add(std::vector<std::int32_t>{-1}), UsageError);
  ShardWriter other(folder.path() / "b", 300);
  other.add(std::vector<std::int32_t>{5, 299});
  other.finish();
  std::vector<std::int32_t> tokens(2);
  EXPECT_THROW(ShardReader(folder.path() / "b").read(0, tokens, 299), UsageError);
}

TEST(Shard, TruncationIsAnErrorAndNotASignal) {
  const TestFolder folder;
  ShardWriter writer(folder.path() / "a", 300);
  writer.add(std::vector<std::int32_t>(5000, 3));
  writer.finish();
  const fs::path bin = folder.path() / "a.bin";
  const ShardReader reader(folder.path() / "a");
  fs::resize_file(bin, 4000);
  std::vector<std::int32_t> tokens(5000);
  EXPECT_THROW(reader.read(0, tokens, 300), UsageError);
  EXPECT_THROW(ShardReader(folder.path() / "a"), UsageError);
  EXPECT_THROW(ShardReader(folder.path() / "missing"), UsageError);
}

TEST(Shard, MoreOfThemThanOpenFiles) {
  const TestFolder folder;
  const int count = open_shards_limit() + 20;
  std::vector<std::unique_ptr<ShardReader>> readers;
  for (int i = 0; i < count; ++i) {
    const fs::path prefix = folder.path() / std::to_string(i);
    write_file_atomic(prefix.string() + ".bin", std::string(1, static_cast<char>(i)) + std::string(1, '\0'));
    write_file_atomic(prefix.string() + ".idx", format_index(DType::kU16, std::vector<std::int32_t>{1}));
    readers.push_back(std::make_unique<ShardReader>(prefix, 1, 2));
  }
  EXPECT_EQ(open_shards(), 0) << "opened when read";
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < count; ++i) {
      std::int32_t token = -1;
      readers[static_cast<std::size_t>(i)]->read(0, {&token, 1}, 300);
      EXPECT_EQ(token, i % 256);
      EXPECT_LE(open_shards(), open_shards_limit());
    }
  EXPECT_EQ(open_shards(), open_shards_limit());
  readers.clear();
  EXPECT_EQ(open_shards(), 0);
  // What the manifest says is checked when the pair is opened.
  std::int32_t token = 0;
  EXPECT_THROW(ShardReader(folder.path() / "1", 2, 4).read(0, {&token, 1}, 300), UsageError);
  EXPECT_THROW(ShardReader(folder.path() / "1", 1, 4).read(0, {&token, 1}, 300), UsageError);
}

TEST(Shard, HostileFilesAreRefusedAtOnce) {
  const TestFolder folder;
  const fs::path prefix = folder.path() / "a";
  const auto refused = [&](const std::string& reason) {
    const std::string why = bounded("a shard's index, " + reason, [&] { ShardReader reader(prefix); });
    EXPECT_NE(why.find(reason), std::string::npos) << why;
  };
  write_file_atomic(prefix.string() + ".bin", "");
  // 60 GB of holes: without the magic; with it and sizes that do not fit.
  write_file_atomic(prefix.string() + ".idx", "");
  fs::resize_file(prefix.string() + ".idx", std::uintmax_t{60} << 30);
  refused("not a Megatron");
  write_file_atomic(prefix.string() + ".idx", kGolden);
  fs::resize_file(prefix.string() + ".idx", std::uintmax_t{60} << 30);
  refused("truncated or damaged");
  fs::remove(prefix.string() + ".idx");
  ASSERT_EQ(::mkfifo((prefix.string() + ".idx").c_str(), 0600), 0);
  refused("not a regular file");
  fs::remove(prefix.string() + ".idx");
  fs::create_symlink("/dev/zero", prefix.string() + ".idx");
  refused("not a regular file");
}

TEST(Shard, TemporaryFilesAreNobodyElses) {
  const TestFolder folder;
  const fs::path victim = folder.path() / "victim";
  write_file_atomic(victim, "kept");
  // The names that molen once used.
  fs::create_symlink(victim, folder.path() / fmt::format("a.bin.part.{}", ::getpid()));
  fs::create_symlink(victim, folder.path() / fmt::format("a.idx.part.{}", ::getpid()));
  ShardWriter writer(folder.path() / "a", 300);
  writer.add(std::vector<std::int32_t>{1});
  writer.finish();
  EXPECT_EQ(read_file(victim), "kept");
}

}  // namespace
}  // namespace molen::data
