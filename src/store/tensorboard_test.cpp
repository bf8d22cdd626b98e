#include "store/tensorboard.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace molen::store {
namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (const unsigned char c : bytes) out += fmt::format("{:02x}", c);
  return out;
}

struct TemporaryDirectory {
  fs::path path = fs::temp_directory_path() / fmt::format("molen_tensorboard_{}", ::getpid());
  TemporaryDirectory() { fs::remove_all(path); }
  ~TemporaryDirectory() { fs::remove_all(path); }
};

TEST(TensorBoard, ChecksumsAreCastagnoli) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

// Written by TensorFlow's own record writer.
TEST(TensorBoard, GoldenRecords) {
  EXPECT_EQ(hex(file_version_record(1.0)),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
  EXPECT_EQ(hex(scalar_record("loss", 2.5f, 7, 2.0)),
            "1a00000000000000129bd82d09000000000000004010072a0d0a0b0a046c6f73731500002040c2dfec60");
  EXPECT_EQ(hex(session_start_record(7, 3.0)), "0f000000000000006d532b0909000000000000084010073a02080167edf0c3");
}

// Written by tensorboard 2.21's own record writer, from its protobufs.
TEST(TensorBoard, GoldenText) {
  EXPECT_EQ(
      hex(text_record("note", "a *b*", 7, 2.0)),
      "300000000000000095f5d05f09000000000000004010072a230a210a046e6f7465420f0807120412020801420561202a622a4a080a060a04"
      "746578742aea31b6");
}

// Counts the records of a file by their frames alone, and checks both sums of each.
std::size_t count_records(std::string_view file) {
  std::size_t records = 0, at = 0;
  const auto u32 = [&](std::size_t i) {
    std::uint32_t v;
    std::memcpy(&v, file.data() + i, 4);
    return v;
  };
  while (at + 12 <= file.size()) {
    std::uint64_t size;
    std::memcpy(&size, file.data() + at, 8);
    if (u32(at + 8) != masked_crc32c(file.substr(at, 8)) || at + 16 + size > file.size()) return 0;
    if (u32(at + 12 + size) != masked_crc32c(file.substr(at + 12, size))) return 0;
    at += 16 + size;
    ++records;
  }
  return at == file.size() ? records : 0;
}

RC_GTEST_PROP(TensorBoard, EveryRecordIsFramed, (const std::string& tag, float value, double wall)) {
  const auto step = *rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 50);
  RC_ASSERT(count_records(scalar_record(tag, value, step, wall) + session_start_record(step, wall) +
                          text_record(tag, tag, step, wall)) == 3u);
}

TEST(TensorBoard, EachAttemptHasItsOwnFile) {
  const TemporaryDirectory dir;
  TensorBoardWriter first(dir.path, "node", 1, 1700000000.0), second(dir.path, "node", 1, 1700000000.9);
  EXPECT_EQ(first.path().filename(), "events.out.tfevents.1700000000.0000.node.1");
  EXPECT_EQ(second.path().filename(), "events.out.tfevents.1700000000.0001.node.1");
  // A clock that was set back does not put a file before existing ones.
  EXPECT_EQ(TensorBoardWriter(dir.path, "node", 1, 1600000000.0).path().filename(),
            "events.out.tfevents.1700000000.0002.node.1");
  for (int step = 1; step <= 5000; ++step) first.scalar("loss", 1.0 / step, step, 2.0 + step);
  first.flush();
  EXPECT_EQ(count_records(read_file(first.path())), 5001u);
  second.session_start(3, 1.0);
  second.flush();
  EXPECT_EQ(count_records(read_file(second.path())), 2u);
}

// The file holds the records above with all arguments, in the order of the calls.
TEST(TensorBoard, TheFileHoldsWhatWasSaid) {
  const TemporaryDirectory dir;
  TensorBoardWriter writer(dir.path, "node", 1, 9.0);
  writer.session_start(7, 3.0);
  writer.scalar("loss", 2.5, 7, 2.0);
  writer.text("note", "a *b*", 300, 4.0);
  writer.flush();
  EXPECT_EQ(read_file(writer.path()), file_version_record(9.0) + session_start_record(7, 3.0) +
                                          scalar_record("loss", 2.5f, 7, 2.0) + text_record("note", "a *b*", 300, 4.0));
}

// Lengths and steps of more than seven bits take several bytes, the lowest first.
TEST(TensorBoard, LargeNumbers) {
  const auto payload = [](const std::string& record) { return hex(record).substr(24 + 18); };
  EXPECT_TRUE(payload(session_start_record(127, 3.0)).starts_with("107f3a")) << payload(session_start_record(127, 3.0));
  EXPECT_TRUE(payload(session_start_record(128, 3.0)).starts_with("1080013a"));
  EXPECT_TRUE(payload(session_start_record(300, 3.0)).starts_with("10ac023a"));
  EXPECT_TRUE(payload(session_start_record(0, 3.0)).starts_with("3a")) << "0 is not written";
}

TEST(TensorBoard, AFileWhereTheDirectoryShouldBeIsAnError) {
  const TemporaryDirectory dir;
  fs::create_directories(dir.path);
  write_file_atomic(dir.path / "taken", "x");
  try {
    TensorBoardWriter writer(dir.path / "taken", "node", 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("taken"), std::string::npos);
  }
}

}  // namespace
}  // namespace molen::store
