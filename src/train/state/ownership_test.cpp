// Tests a power failure at every call of a start that moves something aside. The next start continues from what the
// first one had decided, or from the earlier state. Every checkpoint and every line is whole and in one place.
#include "train/state/ownership.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/error.h"
#include "base/test_filesystem.h"
#include "checkpoint/test_folder.h"

namespace molen::train {
namespace {

using Durable = FaultyFileSystem::Durable;

void save_step(const fs::path& directory, std::int64_t step) {
  const std::vector<float> values(6, static_cast<float>(step));
  checkpoint::SaveOptions options;
  options.directory = directory;
  options.step = step;
  options.state = {{"step_done", step}, {"run", {{"id", "0123"}, {"name", "run"}}}};
  checkpoint::save({{"w", DType::kF32, {6}, {{0}, {6}}, values.data(), {}}}, options);
}

// Makes a run that saved steps 4, 8 and 12.
void make_run(const fs::path& run) {
  store::RunIdentity identity;
  identity.id = "0123";
  identity.attempts = 1;
  make_directories(run);
  store::write_identity(run, identity);
  std::string lines;
  for (int step = 1; step <= 12; ++step) lines += fmt::format("{{\"step\":{}}}\n", step);
  write_file_atomic(run / "metrics.jsonl", lines);
  for (const int step : {4, 8, 12}) save_step(run / "checkpoints", step);
}

// A lease is renewed four times in `lease_s`. The next owner waits for so long where a cut left a lease without
// content.
Job job_of(const fs::path& runs, const std::string& resume, double lease_s = 60) {
  Job job;
  job.config.run.dir = runs.string();
  job.config.run.name = "run";
  job.config.run.lease.value = lease_s;
  job.options.resume = resume;
  Found found = find_checkpoint(job.config, resume);
  job.from = std::move(found.checkpoint);
  job.damaged = std::move(found.damaged);
  return job;
}

// Does what a start does before it records anything. Returns the step that the start continues from, or -1.
std::int64_t start(const fs::path& runs, const std::string& resume, double lease_s = 60) {
  Ownership ownership;
  for (int turn = 0; turn < 3; ++turn) {
    const Job job = job_of(runs, resume, lease_s);
    EXPECT_TRUE(ownership.take(job));
    if (!ownership.settle(job)) continue;
    ownership.enter(job);
    return job.from ? job.from->step() : -1;
  }
  ADD_FAILURE() << "prepared three times";
  return -2;
}

std::string names_in(const fs::path& directory) {
  std::string names;
  for (const DirectoryEntry& entry : list_directory(directory))
    if (entry.is_directory) names += entry.name.substr(12) + " ";
  return names;
}

// Captures stderr, where each move is reported.
class Quiet {
 public:
  Quiet() { ::testing::internal::CaptureStderr(); }
  ~Quiet() { ::testing::internal::GetCapturedStderr(); }
};

constexpr std::array kDurable{std::pair(Durable::kSynced, 0), std::pair(Durable::kEntries, 0),
                              std::pair(Durable::kRandom, 1), std::pair(Durable::kAsWritten, 0)};

// Starts in a process of its own, which dies with its leases when the power is cut before its call of that number.
// Writes what each disk holds then into `folder`. Returns whether the power was cut.
bool cut_start(const fs::path& folder, const std::string& resume, std::int64_t call) {
  const pid_t process = ::fork();
  if (process == 0) {
    FaultyFileSystem faulty(folder / "live");
    faulty.cut_at(call);
    bool unexpected = false;
    try {
      const FileSystemOverride instead(faulty);
      start(folder / "live", resume);
    } catch (const Error&) {
      unexpected = !faulty.was_cut();
    }
    for (std::size_t i = 0; i < kDurable.size(); ++i)
      faulty.lay_out(folder / fmt::format("after-{}", i), kDurable[i].first,
                     static_cast<std::uint64_t>(call * 10 + kDurable[i].second));
    ::_exit(unexpected || ::testing::Test::HasFailure() ? 2 : faulty.was_cut() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2) << "status " << status;
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

// Interrupts a start with `resume` at each of its calls, which are more than `least`; `check` examines what the next
// start found, given the step that it continues from.
void cut_everywhere(const std::function<void(const fs::path& run)>& before, const std::string& resume,
                    const std::function<void(const fs::path& run, std::int64_t from, bool done)>& check,
                    std::int64_t least = 15) {
  UnsyncedFileSystem unsynced;
  const FileSystemOverride prepared(unsynced);
  const Quiet quiet;
  for (std::int64_t call = 0;; ++call) {
    const checkpoint::TestFolder folder;
    make_run(folder / "live/run");
    before(folder / "live/run");
    const bool cut = cut_start(folder.path(), resume, call);
    for (std::size_t i = 0; i < kDurable.size(); ++i) {
      SCOPED_TRACE(fmt::format("cut before call {}, kind {}", call, static_cast<int>(kDurable[i].first)));
      const fs::path after = folder / fmt::format("after-{}", i);
      check(after / "run", start(after, "auto", 0.01), !cut);
      fs::remove_all(after);
    }
    if (!cut) {
      EXPECT_GT(call, least);
      return;
    }
  }
}

std::int64_t lines_of(const fs::path& file) {
  if (!path_exists(file)) return 0;
  const std::string text = read_file(file);
  return std::count(text.begin(), text.end(), '\n');
}

TEST(PowerCutOfAStart, ThatBeginsAnew) {
  cut_everywhere(
      [](const fs::path&) {}, "never",
      [](const fs::path& run, std::int64_t from, bool done) {
        EXPECT_TRUE(from == -1 || (!done && from == 12)) << from;
        const bool left = from == -1;
        EXPECT_EQ(names_in(run / "checkpoints"), left ? "04.abandoned-2 08.abandoned-2 12.abandoned-2 " : "04 08 12 ");
        for (const char* step : {"04", "08", "12"})
          EXPECT_EQ(
              checkpoint::verify(run / fmt::format("checkpoints/step-0000000{}{}", step, left ? ".abandoned-2" : ""))
                  .tensors,
              1);
        EXPECT_EQ(lines_of(run / "metrics.jsonl"), left ? 0 : 12);
        EXPECT_EQ(lines_of(run / "metrics.jsonl.abandoned-2"), left ? 12 : 0);
        EXPECT_EQ(store::read_identity(run)->histories.size(), left ? 2u : 1u);
        EXPECT_TRUE(store::read_identity(run)->current().settled);
      });
}

TEST(PowerCutOfAStart, ThatGoesBackToAStep) {
  cut_everywhere([](const fs::path&) {}, "4",
                 [](const fs::path& run, std::int64_t from, bool done) {
                   EXPECT_TRUE(from == 4 || (!done && from == 12)) << from;
                   EXPECT_EQ(names_in(run / "checkpoints"),
                             from == 4 ? "04 08.abandoned-2 12.abandoned-2 " : "04 08 12 ");
                   EXPECT_EQ(lines_of(run / "metrics.jsonl"), from);
                   EXPECT_EQ(lines_of(run / "metrics.jsonl") + lines_of(run / "metrics.jsonl.abandoned-2"), 12);
                 });
}

TEST(PowerCutOfAStart, ThatSetsADamagedCheckpointAside) {
  cut_everywhere([](const fs::path& run) { fs::resize_file(run / "checkpoints/step-000000012/state.json", 5); }, "auto",
                 [](const fs::path& run, std::int64_t from, bool) {
                   EXPECT_EQ(from, 8);
                   EXPECT_EQ(names_in(run / "checkpoints"), "04 08 12.damaged-1 ");
                   EXPECT_EQ(lines_of(run / "metrics.jsonl"), 12);
                 });
}

TEST(PowerCutOfAStart, ThatGoesOn) {
  const auto goes_on = [](const fs::path& run, std::int64_t from, bool) {
    EXPECT_EQ(from, 12);
    EXPECT_EQ(names_in(run / "checkpoints"), "04 08 12 ");
    EXPECT_EQ(lines_of(run / "metrics.jsonl"), 12);
    EXPECT_EQ(store::read_identity(run)->histories.size(), 1u);
  };
  cut_everywhere([](const fs::path&) {}, "auto", goes_on, 5);
}

// After a start has read the list of checkpoints and before it has the lease, another job may save, or an unfinished
// save may be completed. The start must then look again.
TEST(Ownership, TheJobIsPreparedAgainWhereTheNewestCheckpointIsAnother) {
  const checkpoint::TestFolder folder;
  make_run(folder / "run");
  const Job early = job_of(folder.path(), "auto");
  save_step(folder / "run/checkpoints", 16);
  Ownership ownership;
  EXPECT_TRUE(ownership.take(early));
  EXPECT_FALSE(ownership.settle(early));
  const Job again = job_of(folder.path(), "auto");
  EXPECT_EQ(again.from->step(), 16);
  EXPECT_TRUE(ownership.settle(again));
  save_step(folder / "run/checkpoints", 16);
  EXPECT_FALSE(ownership.settle(again)) << "another checkpoint of the same step";
}

TEST(Ownership, ANameThatWasMadeUpIsForWhoMakesTheDirectory) {
  const checkpoint::TestFolder folder;
  Job job;
  job.config.run.dir = (folder / "runs").string();
  job.config.run.name = "made-up";
  job.new_name = true;
  Ownership first, second;
  EXPECT_TRUE(first.take(job));
  EXPECT_EQ(first.run_name(), "made-up");
  EXPECT_FALSE(second.take(job));
  EXPECT_FALSE(second.held());
  job.new_name = false;  // as if run.name were set
  EXPECT_THROW(second.take(job), store::LeaseHeld);
}

TEST(FindCheckpoint, WhatIsNoStepIsRefused) {
  const checkpoint::TestFolder folder;
  make_run(folder / "run");
  EXPECT_EQ(job_of(folder.path(), "8").from->step(), 8);
  EXPECT_EQ(job_of(folder.path(), "never").from, nullptr);
  for (const char* resume : {"", "newest", "-4", "4x", "99999999999999999999", "7"})
    EXPECT_THROW(job_of(folder.path(), resume), UsageError) << resume;
}

// Only damage lets a start take an older checkpoint. Whatever else keeps it from the newest one ends the start.
TEST(FindCheckpoint, WhatCannotBeReadForNowIsNotDamaged) {
  const checkpoint::TestFolder folder;
  make_run(folder / "run");
  FaultyFileSystem faulty(folder.path());
  const FileSystemOverride instead(faulty);
  for (const int code : {EIO, ESTALE, EMFILE}) {
    for (const char* file : {"state.json", "index.json"}) {
      faulty.on_open = [&](const fs::path& path) {
        return path.filename() == file && path.parent_path().filename() == "step-000000012" ? -code : 0;
      };
      EXPECT_THROW(job_of(folder.path(), "auto"), IoError) << file << ", " << code;
      EXPECT_THROW(job_of(folder.path(), "12"), IoError) << file << ", " << code;
    }
    faulty.on_open = nullptr;
    faulty.on_list = [&](const fs::path& path) { return path.filename() == "checkpoints" ? -code : 0; };
    EXPECT_THROW(job_of(folder.path(), "auto"), IoError) << code;
    faulty.on_list = nullptr;
  }
  const Job job = job_of(folder.path(), "auto");
  EXPECT_EQ(job.from->step(), 12);
  EXPECT_TRUE(job.damaged.empty());
}

TEST(FindCheckpoint, AnotherVersionIsNotDamaged) {
  const checkpoint::TestFolder folder;
  make_run(folder / "run");
  const fs::path state = folder / "run/checkpoints/step-000000012/state.json";
  std::string text = read_file(state);
  text.replace(text.find("\"format_version\": 2"), 19, "\"format_version\": 9");
  write_file_atomic(state, text);
  EXPECT_THROW(job_of(folder.path(), "auto"), VersionError);
  EXPECT_EQ(job_of(folder.path(), "8").from->step(), 8);
}

}  // namespace
}  // namespace molen::train
