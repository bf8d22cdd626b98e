#include "base/filesystem.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary.h"
#include "base/test_filesystem.h"
#include "base/test_golden.h"

namespace {

bool hide_types = false;  // imitates file systems that do not report types
int listing_fails = 0;    // with this errno, after the first entry
int entries_read = 0;

}  // namespace

// Replaces the C library's readdir, which it calls.
extern "C" dirent* readdir(DIR* directory) {
  static auto* const real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  if (listing_fails != 0 && entries_read++ > 0) {
    errno = listing_fails;
    return nullptr;
  }
  dirent* const entry = real(directory);
  if (entry && hide_types) entry->d_type = DT_UNKNOWN;
  return entry;
}

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
  const GoldenMessages golden;
  EXPECT_NOTED(File::open(live() / "none"), MissingFileError);
  EXPECT_NOTED(list_directory(live() / "none"), MissingFileError);
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
    // The last call flushes the directory: at that point the new name exists, though its durability is not guaranteed.
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
    for (const auto which : {Durable::kSynced, Durable::kEntries, Durable::kRandom, Durable::kAsWritten}) {
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

// The control: the fake must detect a rename before the sync.
TEST_F(FileSystemTest, TheFakeLosesWhatWasNotSynced) {
  write_file_atomic(live() / "a", "old");
  FaultyFileSystem faulty(live());
  {
    const FileSystemOverride instead(faulty);
    write_file_unsynced(live() / "a", "new");
  }
  faulty.lay_out(root_ / "synced", FaultyFileSystem::Durable::kSynced);
  faulty.lay_out(root_ / "entries", FaultyFileSystem::Durable::kEntries);
  faulty.lay_out(root_ / "written", FaultyFileSystem::Durable::kAsWritten);
  EXPECT_EQ(read_file(root_ / "written" / "a"), "new");
  EXPECT_EQ(read_file(root_ / "synced" / "a"), "old");
  EXPECT_EQ(read_file(root_ / "entries" / "a"), "");
}

TEST_F(FileSystemTest, APlantedLinkIsNotWrittenThrough) {
  write_file_atomic(root_ / "victim", "mine");
  fs::create_symlink(root_ / "victim", live() / "metrics.jsonl");
  EXPECT_EQ(code_of([&] { File::append(live() / "metrics.jsonl"); }), ELOOP);
  EXPECT_EQ(code_of([&] { File::create_new(live() / "metrics.jsonl"); }), EEXIST);
  // Temporary names are all different and unpredictable: no link can be planted under them.
  const File a = File::temporary_beside(live() / "x"), b = File::temporary_beside(live() / "x");
  EXPECT_NE(a.path(), b.path());
  write_file_atomic(live() / "metrics.jsonl", "new");  // replaces the link
  EXPECT_EQ(read_file(root_ / "victim"), "mine");
}

// Only the files that a killed process leaves have names of this form.
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

// Works whether or not the file system reports types; a link to a directory is not a directory.
TEST_F(FileSystemTest, ListsEntriesByNameAndSaysWhichAreDirectories) {
  make_directories(live() / "b");
  write_file_unsynced(live() / "a", "x");
  fs::create_directory_symlink(live() / "b", live() / "c");
  for (const bool hidden : {false, true}) {
    hide_types = hidden;
    const auto entries = list_directory(live());
    hide_types = false;
    std::string text;
    for (const DirectoryEntry& e : entries) text += e.name + (e.is_directory ? "/ " : " ");
    EXPECT_EQ(text, "a b/ c ") << hidden;
  }
}

TEST_F(FileSystemTest, AListThatBreaksOffIsNone) {
  entries_read = 0, listing_fails = EIO;
  const int code = code_of([&] { list_directory(live()); });
  listing_fails = 0;
  EXPECT_EQ(code, EIO);
  std::vector<DirectoryEntry> entries;
  EXPECT_EQ(file_system().list(live() / "none", entries), -ENOENT);
  EXPECT_EQ(file_system().list(live(), entries), 0);
}

TEST_F(FileSystemTest, StatusIsThatOfThePathItself) {
  using Kind = FileStatus::Kind;
  write_file_unsynced(live() / "a", "12345");
  const timespec times[2] = {{0, 0}, {1234567890, 123456789}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (live() / "a").c_str(), times, 0), 0);
  fs::create_symlink(live() / "a", live() / "link");
  ASSERT_EQ(::mkfifo((live() / "pipe").c_str(), 0600), 0);
  const auto status = [&](const char* name) {
    FileStatus s;
    EXPECT_EQ(file_system().status(live() / name, s), 0) << name;
    return s;
  };
  struct stat raw {};
  ASSERT_EQ(::stat((live() / "a").c_str(), &raw), 0);
  const FileStatus a = status("a"), open = File::open(live() / "a").status();
  for (const FileStatus& s : {a, open}) {
    EXPECT_EQ(s.kind, Kind::kFile);
    EXPECT_EQ(s.size, 5);
    EXPECT_EQ(s.modified_ns, 1234567890123456789);
    EXPECT_EQ(s.device, raw.st_dev);
    EXPECT_EQ(s.inode, raw.st_ino);
  }
  EXPECT_EQ(status("link").kind, Kind::kLink);
  EXPECT_EQ(status("pipe").kind, Kind::kOther);
  EXPECT_EQ(status(".").kind, Kind::kDirectory);
  FileStatus none;
  EXPECT_EQ(file_system().status(live() / "none", none), -ENOENT);
  EXPECT_EQ(file_system().status(-1, none), -EBADF);
  EXPECT_EQ(file_system().status(File::open(live() / "a").descriptor(), none), 0);
}

// The user's text for each failure: the file, the operation, and the system's reason.
TEST_F(FileSystemTest, FailuresSayWhatAndWhy) {
  const GoldenMessages golden;
  const auto said = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return GoldenMessages::note(error.what());
    }
    return std::string("nothing");
  };
  const fs::path none = live() / "none", a = live() / "a", link = live() / "link";
  write_file_unsynced(a, "12345");
  fs::create_symlink(a, link);
  EXPECT_EQ(said([&] { File::open(none); }), none.string() + ": cannot be read: No such file or directory");
  EXPECT_EQ(said([&] { File::open(a / "x"); }), (a / "x").string() + ": cannot be read: Not a directory");
  EXPECT_EQ(said([&] { File::open(live()); }), live().string() + ": is a directory");
  EXPECT_EQ(said([&] { File::open("/dev/null"); }), "/dev/null: is not a regular file");
  EXPECT_EQ(said([&] { File::append(link); }),
            link.string() + ": is a symbolic link, through which nothing is written; remove it");
  EXPECT_EQ(said([&] { File::append("/dev/null"); }), "/dev/null: cannot be written: it is not a regular file");
  EXPECT_EQ(said([&] { File::create_new(a); }), a.string() + ": cannot be written: File exists");
  EXPECT_EQ(said([&] { File::temporary_beside(none / "x"); }),
            (none / "x").string() + ": cannot be written: No such file or directory");
  EXPECT_EQ(said([&] {
              char to[8];
              File::open(a).read(to, 4, 3);
            }),
            a.string() + ": ends early, at byte 5");
  EXPECT_EQ(said([&] { rename_path(none, a); }),
            none.string() + ": cannot be renamed to " + a.string() + ": No such file or directory");
  EXPECT_EQ(said([&] { make_directories(a / "b"); }), (a / "b").string() + ": cannot be created: Not a directory");
  EXPECT_EQ(said([&] { remove_file(root_); }), root_.string() + ": cannot be removed: Directory not empty");
  EXPECT_EQ(said([&] { remove_file(none); }), "nothing");
  EXPECT_EQ(said([&] { sync_directory(a); }), a.string() + ": cannot be flushed: Not a directory");
  EXPECT_EQ(said([&] { make_directories(live() / "d" / "e" / ""); }), "nothing");
  EXPECT_TRUE(path_exists(live() / "d" / "e"));
  EXPECT_FALSE(path_exists(a / "x"));
}

TEST_F(FileSystemTest, AFullDiskAndALostFileSayWhy) {
  struct Failing : UnsyncedFileSystem {
    using UnsyncedFileSystem::status;
    int allocate(int, std::int64_t) override { return -code; }
    int status(int fd, FileStatus& status) override { return lost ? -EIO : UnsyncedFileSystem::status(fd, status); }
    int code = ENOSPC;
    bool lost = false;
  } failing;
  const GoldenMessages golden;
  const FileSystemOverride instead(failing);
  write_file_unsynced(live() / "a", "12345");
  for (const int code : {ENOSPC, EFBIG, EDQUOT}) {
    failing.code = code;
    File file = File::temporary_beside(live() / "b");
    EXPECT_NOTED(file.allocate(12345), IoError) << code;
  }
  failing.code = EOPNOTSUPP;  // a file system that cannot reserve space
  EXPECT_NO_THROW(File::temporary_beside(live() / "b").allocate(12345));
  const File file = File::open(live() / "a");
  failing.lost = true;
  EXPECT_NOTED((void)file.status(), Error);
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
