// The contents of line files and of a run directory after the power, or the storage, fails at any call: every line that
// `sync` confirmed is on disk, in order, and nothing corrupts later lines.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "base/error.h"
#include "base/test_filesystem.h"
#include "store/lines.h"
#include "store/run_directory.h"

namespace molen::store {
namespace {

using Durable = FaultyFileSystem::Durable;
constexpr std::array kKinds{std::pair(Durable::kSynced, 0), std::pair(Durable::kEntries, 0),
                            std::pair(Durable::kRandom, 1), std::pair(Durable::kRandom, 2),
                            std::pair(Durable::kRandom, 3), std::pair(Durable::kAsWritten, 0)};

class Folder {
 public:
  Folder() { make_directories(path_ / "live"); }
  ~Folder() { remove_tree(path_); }
  fs::path live() const { return path_ / "live"; }
  fs::path after() const { return path_ / "after"; }

 private:
  fs::path path_ =
      fs::path(::testing::TempDir()) /
      fmt::format("molen_power_{}_{}", ::getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

std::string line_of(int i) {
  return fmt::format(R"({{"line":{},"text":"{}"}})", i, std::string(static_cast<std::size_t>(i % 7), 'x'));
}

// Returns the numbers of the lines of a file without torn lines; counts the torn lines in `torn`.
std::vector<int> lines_in(const fs::path& file, int& torn) {
  std::vector<int> found;
  torn = 0;
  if (!path_exists(file)) return found;
  each_line(file, [&](std::string_view line, std::int64_t) {
    int number = -1;
    for (int i = 0; i < 40 && number < 0; ++i)
      if (line == line_of(i)) number = i;
    number < 0 ? static_cast<void>(++torn) : found.push_back(number);
  });
  return found;
}

// Returns "" when the lines are 0, 1, 2, ... and at least `least` of them; else the reason.
std::string not_in_order(const std::vector<int>& lines, int least) {
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (lines[i] != static_cast<int>(i)) return fmt::format("line {} in place {}", lines[i], i);
  return static_cast<int>(lines.size()) < least ? fmt::format("{} lines, {} were said to be kept", lines.size(), least)
                                                : "";
}

struct Said {
  int appended = 0, synced = 0;
};

// Writes ten lines from number `first`, with a sync after every third.
void write_lines(const fs::path& file, int first, Said& said) {
  LineWriter writer(file);
  for (int i = first; i < first + 10; ++i) {
    writer.append(line_of(i));
    said.appended = i + 1;
    if (i % 3 == 2 && writer.sync()) said.synced = i + 1;
  }
}

// Cuts the power before each call of write_lines in turn. `before` makes the file of an earlier run.
void cut_lines(const std::function<int(const fs::path&)>& before, std::size_t most = SIZE_MAX) {
  UnsyncedFileSystem unsynced;
  const FileSystemOverride prepared(unsynced);
  std::int64_t calls = 0;
  for (std::int64_t call = 0;; ++call) {
    const Folder folder;
    const int kept = before(folder.live() / "metrics.jsonl");
    FaultyFileSystem faulty(folder.live());
    faulty.cut_at(call);
    faulty.write_short(most);
    Said said{kept, kept};
    try {
      const FileSystemOverride instead(faulty);
      write_lines(folder.live() / "metrics.jsonl", kept, said);
    } catch (const IoError&) {
      EXPECT_TRUE(faulty.was_cut());
    }
    for (const auto& [which, seed] : kKinds) {
      SCOPED_TRACE(fmt::format("cut before call {}, kind {} {}", call, static_cast<int>(which), seed));
      faulty.lay_out(folder.after(), which, static_cast<std::uint64_t>(call * 10 + seed));
      const fs::path file = folder.after() / "metrics.jsonl";
      int torn = 0;
      const std::vector<int> found = lines_in(file, torn);
      EXPECT_EQ(not_in_order(found, said.synced), "");
      EXPECT_LE(static_cast<int>(found.size()), said.appended);
      EXPECT_LE(torn, 1) << "the last line, cut short";
      // The next attempt continues after these lines.
      Said next{};
      write_lines(file, static_cast<int>(found.size()), next);
      const int torn_before = torn;
      EXPECT_EQ(not_in_order(lines_in(file, torn), next.appended), "");
      EXPECT_EQ(torn, torn_before);
      remove_tree(folder.after());
    }
    calls = call;
    if (!faulty.was_cut()) break;
  }
  EXPECT_GT(calls, 12);
}

TEST(PowerCut, OfANewFileOfLines) {
  cut_lines([](const fs::path&) { return 0; });
}

TEST(PowerCut, OfLinesBehindOthers) {
  cut_lines([](const fs::path& file) {
    write_file_atomic(file, line_of(0) + "\n" + line_of(1) + "\n");
    return 2;
  });
}

TEST(PowerCut, OfLinesThatAreWrittenInPieces) {
  cut_lines([](const fs::path&) { return 0; }, 5);
}

// The storage refuses one call, or all calls from one on: no line is lost while the writer lives, and every `sync` that
// returned true holds.
TEST(Faults, OfEveryCallOfLines) {
  for (const int code : {EIO, ENOSPC})
    for (const bool forever : {false, true})
      for (std::int64_t call = 1;; ++call) {  // the first creates the file
        const Folder folder;
        const fs::path file = folder.live() / "metrics.jsonl";
        FaultyFileSystem faulty(folder.live());
        forever ? faulty.fail_from(call, code) : faulty.fail_at(call, code);
        const FileSystemOverride instead(faulty);
        Said said;
        int warnings = 0, torn = 0;
        {
          LineWriter writer(file, [&](const std::string&) { ++warnings; });
          for (int i = 0; i < 10; ++i) {
            writer.append(line_of(i));
            if (i % 3 == 2 && writer.sync()) said.synced = i + 1;
          }
          faulty.lay_out(folder.after(), Durable::kSynced);
          EXPECT_EQ(not_in_order(lines_in(folder.after() / "metrics.jsonl", torn), said.synced), "");
          faulty.fail_from(INT64_MAX, 0);
          writer.append(line_of(10));
          EXPECT_TRUE(writer.sync());
        }
        EXPECT_EQ(not_in_order(lines_in(file, torn), 11), "") << code << " at " << call;
        EXPECT_EQ(torn, 0);
        if (call >= faulty.calls()) break;
        EXPECT_LE(warnings, forever ? 1 : 2);
      }
}

// An attempt that is interrupted at any call leaves a run directory that the next attempt can use. The directory keeps
// the run's id if that was written, and the lines that were synced.
TEST(PowerCut, OfARunDirectory) {
  UnsyncedFileSystem unsynced;
  const FileSystemOverride prepared(unsynced);
  const auto steps_of = [](const fs::path& run) { return read_metrics(run / "metrics.jsonl").steps; };
  const auto attempt = [](const fs::path& run, std::int64_t first, std::int64_t& synced) {
    RunDirectory directory(run);
    directory.write_config("[run]\nname = \"x\"\n");
    for (std::int64_t step = first; step < first + 4; ++step) {
      StepMetrics m;
      m.step = step;
      m.attempt = directory.attempt();
      directory.append(m);
      directory.event("validation", {{"step", step}});
      if (step % 2 == 0) {
        directory.sync();
        synced = step;
      }
    }
    return directory.identity();
  };
  for (std::int64_t call = 0;; ++call) {
    const Folder folder;
    std::int64_t synced = 0;
    const std::string id = attempt(folder.live() / "run", 1, synced).id;
    FaultyFileSystem faulty(folder.live());
    faulty.cut_at(call);
    std::int64_t second = 0;
    try {
      const FileSystemOverride instead(faulty);
      attempt(folder.live() / "run", 5, second);
    } catch (const IoError&) {
    }
    if (!faulty.was_cut()) break;
    for (const auto& [which, seed] : kKinds) {
      SCOPED_TRACE(fmt::format("cut before call {}, kind {} {}", call, static_cast<int>(which), seed));
      faulty.lay_out(folder.after(), which, static_cast<std::uint64_t>(call * 10 + seed));
      const auto steps = steps_of(folder.after() / "run");
      EXPECT_GE(steps.size(), 4u) << "of the first attempt, which ended well";
      for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].step, static_cast<std::int64_t>(i) + 1);
      std::int64_t third = 0;
      const RunIdentity identity = attempt(folder.after() / "run", static_cast<std::int64_t>(steps.size()) + 1, third);
      EXPECT_EQ(identity.id, id);
      EXPECT_GE(identity.attempts, 2);
      remove_tree(folder.after());
    }
  }
}

}  // namespace
}  // namespace molen::store
