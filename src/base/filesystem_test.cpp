#include "base/filesystem.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary.h"
#include "base/test_filesystem.h"

namespace molen {
namespace {

class FileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / fmt::format("molen_filesystem_test_{}", ::getpid());
    fs::remove_all(root_);
    fs::create_directories(root_ / "live");
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path live() const { return root_ / "live"; }

  fs::path root_;
};

int code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const IoError& error) {
    return error.code();
  }
  return 0;
}

TEST_F(FileSystemTest, ShortAndInterruptedTransfersLoseNothing) {
  const std::string text(5000, 'x');
  FaultyFileSystem faulty(root_);
  faulty.write_short(7);
  faulty.interrupt();
  const FileSystemOverride instead(faulty);
  write_file_atomic(live() / "a", text);
  EXPECT_EQ(read_file(live() / "a"), text);
}

TEST_F(FileSystemTest, TellsWhatIsMissingFromWhatDoesNotAnswer) {
  EXPECT_THROW(File::open(live() / "none"), MissingFileError);
  EXPECT_THROW(list_directory(live() / "none"), MissingFileError);
  write_file_atomic(live() / "a", "x");
  FaultyFileSystem faulty(root_);
  const FileSystemOverride instead(faulty);
  for (const int code : {EIO, ESTALE, EMFILE, ENFILE, ETIMEDOUT}) {
    faulty.on_open = [&](const fs::path&) { return -code; };
    EXPECT_EQ(code_of([&] { read_file(live() / "a"); }), code);
  }
  faulty.on_open = nullptr;
  faulty.on_read = [](const fs::path&) { return -EIO; };
  EXPECT_EQ(code_of([&] { read_file(live() / "a"); }), EIO);
  faulty.on_list = [](const fs::path&) { return -EIO; };
  EXPECT_EQ(code_of([&] { list_directory(live()); }), EIO);
}

TEST_F(FileSystemTest, AWriteThatFailsAnywhereLeavesTheOldFileAndNothingElse) {
  write_file_atomic(live() / "a", "old");
  std::int64_t call = 0;
  for (;; ++call) {
    FaultyFileSystem faulty(root_);
    faulty.fail_at(call, ENOSPC);
    const FileSystemOverride instead(faulty);
    EXPECT_EQ(code_of([&] { write_file_atomic(live() / "a", "new"); }), ENOSPC) << "call " << call;
    // The last call flushes the directory: then the new name stands, though nothing says that it will stay.
    if (faulty.log()[static_cast<std::size_t>(call)] == "sync live") break;
    EXPECT_EQ(read_file(live() / "a"), "old") << "call " << call;
    EXPECT_EQ(list_directory(live()).size(), 1u) << "call " << call;
  }
  EXPECT_GE(call, 3);  // create, write, sync and rename come before
}

TEST_F(FileSystemTest, AfterAPowerCutTheOldOrTheNewFileIsThere) {
  using Durable = FaultyFileSystem::Durable;
  write_file_atomic(live() / "a", "old");
  for (std::int64_t call = 0;; ++call) {
    FaultyFileSystem faulty(root_ / "live");
    faulty.cut_at(call);
    {
      const FileSystemOverride instead(faulty);
      try {
        write_file_atomic(live() / "a", "new");
      } catch (const Error&) {
      }
    }
    for (const auto which : {Durable::kSynced, Durable::kEntries, Durable::kRandom}) {
      faulty.lay_out(root_ / "after", which, static_cast<std::uint64_t>(call));
      const std::string found = read_file(root_ / "after" / "a");
      EXPECT_TRUE(found == "old" || found == "new") << "cut before call " << call << ": '" << found << "'";
      EXPECT_TRUE(faulty.was_cut() || found == "new");
      fs::remove_all(root_ / "after");
    }
    if (!faulty.was_cut()) break;
    write_file_atomic(live() / "a", "old");
    for (const auto& entry : fs::directory_iterator(live()))
      if (entry.path().filename() != "a") fs::remove(entry.path());
  }
}

// The control: a rename before the sync is what the fake must see through.
TEST_F(FileSystemTest, TheFakeLosesWhatWasNotSynced) {
  write_file_atomic(live() / "a", "old");
  FaultyFileSystem faulty(live());
  {
    const FileSystemOverride instead(faulty);
    write_file_unsynced(live() / "a", "new");
  }
  faulty.lay_out(root_ / "synced", FaultyFileSystem::Durable::kSynced);
  faulty.lay_out(root_ / "entries", FaultyFileSystem::Durable::kEntries);
  EXPECT_EQ(read_file(root_ / "synced" / "a"), "old");
  EXPECT_EQ(read_file(root_ / "entries" / "a"), "");
}

TEST_F(FileSystemTest, APlantedLinkIsNotWrittenThrough) {
  write_file_atomic(root_ / "victim", "mine");
  fs::create_symlink(root_ / "victim", live() / "metrics.jsonl");
  EXPECT_EQ(code_of([&] { File::append(live() / "metrics.jsonl"); }), ELOOP);
  EXPECT_EQ(code_of([&] { File::create_new(live() / "metrics.jsonl"); }), EEXIST);
  // Temporary names of two files never are the same, nor known ahead: no link can be planted under them.
  const File a = File::temporary_beside(live() / "x"), b = File::temporary_beside(live() / "x");
  EXPECT_NE(a.path(), b.path());
  write_file_atomic(live() / "metrics.jsonl", "new");  // replaces the link
  EXPECT_EQ(read_file(root_ / "victim"), "mine");
}

// What a killed process leaves beside its files is known by its name, and nothing else is.
TEST_F(FileSystemTest, TemporariesAreKnownByTheirNames) {
  for (const char* name : {"a.part-0123456789abcdef", ".part-0123456789abcdef"}) EXPECT_TRUE(is_temporary_name(name));
  for (const char* name : {"a.part", "a.part-0123456789abcde", "a.part-0123456789abcdeg", "a.part-0123456789abcdef.x",
                           "a.pert-0123456789abcdef", "part-0123456789abcdef", ""})
    EXPECT_FALSE(is_temporary_name(name)) << name;
  const File file = File::temporary_beside(live() / "x");
  const TemporaryDirectory directory(live() / "y");
  write_file_atomic(directory.path() / "within", "x");
  write_file_atomic(live() / "kept", "x");
  EXPECT_TRUE(is_temporary_name(file.path().filename().string()));
  EXPECT_TRUE(is_temporary_name(directory.path().filename().string()));
  EXPECT_EQ(list_directory(live()).size(), 3u);
  remove_temporaries(live());
  remove_temporaries(live() / "absent");
  ASSERT_EQ(list_directory(live()).size(), 1u);
  EXPECT_EQ(list_directory(live())[0].name, "kept");
}

TEST_F(FileSystemTest, RemovesATreeButNotWhatItsLinksPointTo) {
  write_file_atomic(root_ / "kept", "x");
  make_directories(live() / "a" / "b");
  fs::create_directory_symlink(root_, live() / "a" / "out");
  write_file_atomic(live() / "a" / "b" / "c", "x");
  remove_tree(live() / "a");
  remove_tree(live() / "a");
  EXPECT_FALSE(path_exists(live() / "a"));
  EXPECT_EQ(read_file(root_ / "kept"), "x");
}

}  // namespace
}  // namespace molen
