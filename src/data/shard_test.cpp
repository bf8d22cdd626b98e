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
#include "base/test_golden.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

// An index of type u16 with two documents, of 3 and of 2 tokens.
const std::string kGoldenIndex = from_hex(
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

template <class Body>
std::string shard_reason(Body&& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

TEST(ShardIndex, GoldenBytes) {
  const std::vector<std::int32_t> lengths{3, 2};
  EXPECT_EQ(kGoldenIndex.size(), 82u);
  EXPECT_EQ(format_index(DType::kU16, lengths), kGoldenIndex);
  std::vector<std::pair<std::int64_t, std::int64_t>> documents;
  const ShardIndex index = parse_index(kGoldenIndex, 10, "golden.idx", [&](std::int64_t first, std::int64_t end) {
    documents.emplace_back(first, end);
  });
  EXPECT_EQ(index.dtype, DType::kU16);
  EXPECT_EQ(index.tokens, 5);
  EXPECT_EQ(index.documents, 2);
  EXPECT_EQ(documents, (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {3, 5}}));
}

TEST(ShardIndex, ModesAreAllowed) {
  EXPECT_EQ(parse_index(kGoldenIndex + std::string(2, '\0'), 10, "x").tokens, 5);
}

TEST(ShardIndex, HostileBytesGetAReason) {
  const auto changed = [](std::size_t at, char byte) {
    std::string bytes = kGoldenIndex;
    bytes[at] = byte;
    return bytes;
  };
  const auto refused = [](const std::string& bytes, std::int64_t bin, const std::string& reason) {
    try {
      parse_index(bytes, bin, "bad.idx");
      ADD_FAILURE() << "accepted: " << reason;
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()), "bad.idx: " + reason);
    }
  };
  refused("", 10, "0 bytes, shorter than the header of a token index (34)");
  refused(kGoldenIndex.substr(0, 33), 10, "33 bytes, shorter than the header of a token index (34)");
  refused(changed(0, 'X'), 10, "not a Megatron token index (no MMIDIDX at its start)");
  refused(changed(9, 2), 10, "index version 2, only 1 is known");
  refused(changed(17, 7), 10, "element type code 7 is no integer type of this format");
  refused(changed(17, 0), 10, "element type code 0 is no integer type of this format");
  refused(changed(25, '\x7f'), 10, "9151314442816847874 sequences and 3 document marks do not fit in 82 bytes");
  refused(changed(33, '\x7f'), 10, "2 sequences and 9151314442816847875 document marks do not fit in 82 bytes");
  refused(changed(26, 9), 10, "2 sequences and 9 document marks do not fit in 82 bytes");
  refused(changed(18, 5), 10, "5 sequences and 3 document marks do not fit in 82 bytes");
  refused(changed(26, 0), 10, "2 sequences and 0 document marks do not fit in 82 bytes");
  refused(kGoldenIndex.substr(0, 81), 10,
          "81 bytes, but 2 sequences and 3 document marks need 82: truncated or damaged");
  refused(kGoldenIndex + "x", 10, "83 bytes, but 2 sequences and 3 document marks need 82: truncated or damaged");
  refused(changed(37, '\x80'), 10, "sequence 0 has the negative length -2147483645");
  refused(changed(41, '\x80'), 10, "sequence 1 has the negative length -2147483646");
  refused(changed(50, 5), 10, "sequence 1 starts at byte 5 of the .bin file, 6 expected");
  refused(kGoldenIndex, 9,
          "sequence 1 ends at byte 10, but the .bin file has 9 bytes: it is truncated or does not belong to this "
          "index; restore the pair or run `molen data prepare` again");
  refused(kGoldenIndex, 12, "the sequences end at byte 10, but the .bin file has 12 bytes: the pair does not match");
  const std::string rule = ": document starts must begin at 0 and never fall";
  refused(changed(58, 1), 10, "document 0 starts at sequence 1" + rule);
  refused(changed(66, 3), 10, "document 1 starts at sequence 3" + rule);
  refused(changed(74, 0), 10, "document 2 starts at sequence 0" + rule);
  refused(changed(74, 1), 10, "the last document ends at sequence 1 of 2");
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
  std::string bytes = kGoldenIndex;
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

// Other tools write 1 and 2 byte tokens, with and without a sign.
TEST(Shard, ReadsTokensOfEveryWidth) {
  const TestFolder folder;
  const auto bytes = [](auto... values) {
    std::string all;
    (all.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
    return all;
  };
  const fs::path prefix = folder.path() / "narrow";
  for (const auto& [code, width] :
       {std::pair{std::uint8_t{1}, 1}, {std::uint8_t{2}, 1}, {std::uint8_t{3}, 2}, {std::uint8_t{8}, 2}}) {
    write_file_atomic(
        prefix.string() + ".idx",
        std::string("MMIDIDX\0\0", 9) + bytes(std::uint64_t{1}, code, std::uint64_t{1}, std::uint64_t{2},
                                              std::int32_t{3}, std::int64_t{0}, std::int64_t{0}, std::int64_t{1}));
    std::string raw;
    for (const std::uint16_t token : {std::uint16_t{5}, std::uint16_t{0}, std::uint16_t{90}})
      raw += bytes(token).substr(0, static_cast<std::size_t>(width));
    write_file_atomic(prefix.string() + ".bin", raw);
    std::vector<std::int32_t> tokens(3);
    ShardReader(prefix).read(0, tokens, 91);
    EXPECT_EQ(tokens, (std::vector<std::int32_t>{5, 0, 90})) << int{code};
    EXPECT_NE(shard_reason([&] { ShardReader(prefix).read(0, tokens, 90); }).find("token 2 is outside"),
              std::string::npos);
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
  EXPECT_EQ(shard_reason([&] {
              writer.add(std::vector<std::int32_t>{299, 300});
            }),
            (folder.path() / "a").string() + ": token 300 is outside the vocabulary of 300 entries");
  EXPECT_EQ(shard_reason([&] { writer.add(std::vector<std::int32_t>{-1}); }),
            (folder.path() / "a").string() + ": token -1 is outside the vocabulary of 300 entries");
  ShardWriter other(folder.path() / "b", 300);
  other.add(std::vector<std::int32_t>{5, 299});
  other.finish();
  std::vector<std::int32_t> tokens(2);
  const std::string bin = (folder.path() / "b.bin").string();
  EXPECT_EQ(shard_reason([&] { ShardReader(folder.path() / "b").read(0, tokens, 299); }),
            bin +
                ": token 1 is outside the vocabulary of 299 entries: the shard is damaged or was made with another "
                "tokenizer");
  EXPECT_EQ(shard_reason([&] { ShardReader(folder.path() / "b").read(1, std::span(tokens).first(1), 299); }),
            bin +
                ": token 1 is outside the vocabulary of 299 entries: the shard is damaged or was made with another "
                "tokenizer");
  write_file_atomic(bin, "abc");
  EXPECT_EQ(shard_reason([&] { read_index_header(folder.path() / "b"); }),
            bin + ": 3 bytes are no whole number of tokens of 2");
}

TEST(Shard, TruncationIsAnErrorAndNotASignal) {
  const GoldenMessages golden;
  const TestFolder folder;
  ShardWriter writer(folder.path() / "a", 300);
  writer.add(std::vector<std::int32_t>(5000, 3));
  writer.finish();
  const fs::path bin = folder.path() / "a.bin";
  const ShardReader reader(folder.path() / "a");
  fs::resize_file(bin, 4000);
  std::vector<std::int32_t> tokens(5000);
  const std::string again = "; restore the pair or run `molen data prepare` again";
  EXPECT_EQ(shard_reason([&] { reader.read(0, tokens, 300); }),
            bin.string() +
                ": 4000 bytes of tokens of 2, but 5000 tokens in 10000 bytes were expected: truncated or "
                "altered" +
                again);
  EXPECT_EQ(shard_reason([&] { ShardReader(folder.path() / "a"); }),
            (folder.path() / "a.idx").string() +
                ": sequence 0 ends at byte 10000, but the .bin file has 4000 bytes: it "
                "is truncated or does not belong to this index" +
                again);
  // The file changes while the reader has it open.
  fs::resize_file(bin, 10000);
  reader.read(0, tokens, 65000);
  fs::resize_file(bin, 4000);
  EXPECT_EQ(shard_reason([&] { reader.read(1000, std::span(tokens).first(3000), 65000); }),
            bin.string() + ": ends at byte 4000, 10000 expected: it was truncated while in use");
  EXPECT_NOTED(ShardReader(folder.path() / "missing"), UsageError);
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
  // The manifest's sizes are checked when the pair is opened.
  std::int32_t token = 0;
  const std::string prefix = (folder.path() / "1").string();
  for (const auto& [tokens, bytes] : {std::pair(2, 4), {1, 4}, {2, 2}}) {
    EXPECT_EQ(
        shard_reason([&, n = tokens, size = bytes] {
          ShardReader(prefix, n, size).read(0, {&token, 1}, 300);
        }),
        fmt::format("{}.bin: 2 bytes of tokens of 2, but {} tokens in {} bytes were expected: truncated or altered; "
                    "restore the pair or run `molen data prepare` again",
                    prefix, tokens, bytes));
  }
}

TEST(Shard, HostileFilesAreRefusedAtOnce) {
  const TestFolder folder;
  const fs::path prefix = folder.path() / "a";
  const auto refused = [&](const std::string& reason) {
    const std::string why = bounded("a shard's index, " + reason, [&] { ShardReader reader(prefix); });
    EXPECT_NE(why.find(reason), std::string::npos) << why;
  };
  write_file_atomic(prefix.string() + ".bin", "");
  // A sparse file of 60 GB: without the magic, then with the magic and sizes that do not fit.
  write_file_atomic(prefix.string() + ".idx", "");
  fs::resize_file(prefix.string() + ".idx", std::uintmax_t{60} << 30);
  refused("not a Megatron");
  write_file_atomic(prefix.string() + ".idx", kGoldenIndex);
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
  // Temporary names that molen once used.
  fs::create_symlink(victim, folder.path() / fmt::format("a.bin.part.{}", ::getpid()));
  fs::create_symlink(victim, folder.path() / fmt::format("a.idx.part.{}", ::getpid()));
  ShardWriter writer(folder.path() / "a", 300);
  writer.add(std::vector<std::int32_t>{1});
  writer.finish();
  EXPECT_EQ(read_file(victim), "kept");
}

}  // namespace
}  // namespace molen::data
