#include "base/file.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "base/test_bounds.h"
#include "base/test_golden.h"

namespace molen {
namespace {

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / fmt::format("molen_file_test_{}", ::getpid());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  fs::path dir_;
};

TEST_F(FileTest, WritesAndReadsBack) {
  write_file_atomic(dir_ / "a", std::string("x\0y", 3));
  EXPECT_EQ(read_file(dir_ / "a"), std::string("x\0y", 3));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 1) << "a part file was left behind";
}

TEST_F(FileTest, NamesTheMissingFile) {
  try {
    read_file(dir_ / "nowhere");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("nowhere"), std::string::npos);
  }
}

TEST_F(FileTest, RefusesAboveTheLimit) {
  write_file_atomic(dir_ / "big", std::string(100, 'x'));
  try {
    read_file(dir_ / "big", 99);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.what(), (dir_ / "big").string() + ": 100 bytes, more than the limit of 99");
  }
  EXPECT_EQ(read_file(dir_ / "big", 100).size(), 100u);
}

TEST_F(FileTest, FullDiskLeavesTheOldFile) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  // /dev/full allows open and fails write, like a full disk.
  EXPECT_THROW(
      {
        fs::create_directory_symlink("/dev", dir_ / "dev");
        write_file_atomic(dir_ / "dev" / "full" / "x", "content");
      },
      Error);
}

// A pipe or a device in place of a file must neither block the reader nor be read without end.
TEST_F(FileTest, RefusesWhatIsNoFile) {
  const GoldenMessages golden;
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", dir_ / "zero");
  for (const char* name : {"pipe", "zero"})
    ASSERT_NE(bounded(fmt::format("a file that is a {}", name), [&] { read_file(dir_ / name); }), "");
  EXPECT_NOTED(read_file(dir_ / "pipe"), UsageError);
  EXPECT_NOTED(read_file(dir_ / "zero"), UsageError);
  EXPECT_NOTED(read_file(dir_), UsageError);
}

// A file of /proc reports size 0, and a growing file reports too little.
TEST_F(FileTest, RefusesWhatTurnsOutToBeAboveTheLimit) {
  const std::string text = read_file("/proc/self/limits");
  EXPECT_GT(text.size(), 100u);
  EXPECT_EQ(read_file("/proc/self/limits", static_cast<std::int64_t>(text.size())), text);
  try {
    read_file("/proc/self/limits", static_cast<std::int64_t>(text.size()) - 1);
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()),
              fmt::format("/proc/self/limits: more than the limit of {} bytes", text.size() - 1));
  }
}

TEST_F(FileTest, RefusesASparseGiantBeforeReadingIt) {
  const GoldenMessages golden;
  ASSERT_EQ(::truncate((std::ofstream(dir_ / "giant"), dir_ / "giant").c_str(), std::int64_t{60} << 30), 0);
  ASSERT_NE(bounded("a sparse file of 60 GiB", [&] { read_file(dir_ / "giant"); }), "");
  EXPECT_NOTED(read_file(dir_ / "giant"), UsageError);
}

TEST(Hash, LeavesNoMemoryBehind) {
  const auto in_use = [] { return static_cast<std::int64_t>(::mallinfo2().uordblks); };
  EXPECT_EQ(sha256_hex("abc").size(), 64u);  // the library's one-time setup
  const std::int64_t before = in_use();
  for (int i = 0; i < 1000; ++i) sha256_hex("abc");
  EXPECT_LT(in_use() - before, 1000 * 16);
}

TEST_F(FileTest, HashesInBlocks) {
  for (const std::size_t size : {0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20}) {
    std::string text(size, 'x');
    for (std::size_t i = 0; i < size; i += 997) text[i] = static_cast<char>('a' + i % 23);
    write_file_unsynced(dir_ / "a", text);
    EXPECT_EQ(sha256_file(dir_ / "a"), sha256_hex(text)) << size;
  }
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// Test cases 1, 2, 3 and 6 of RFC 4231.
TEST(Hash, HmacKnownAnswers) {
  EXPECT_EQ(hmac_sha256_hex(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_sha256_hex("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_sha256_hex(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmac_sha256_hex(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hash, Sha256KnownAnswer) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace molen
