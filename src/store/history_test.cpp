#include "store/history.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "base/test_filesystem.h"
#include "base/test_golden.h"
#include "store/metrics.h"
#include "store/run_directory.h"

namespace molen::store {
namespace {

class HistoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    run_ = fs::temp_directory_path() / fmt::format("molen_history_test_{}", ::getpid());
    fs::remove_all(run_);
    fs::create_directories(run_);
  }
  void TearDown() override {
    fs::remove_all(run_);
    for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) ::unsetenv(name);
  }
  void write(const std::string& name, const std::string& text) { write_file_atomic(run_ / name, text); }
  std::string text(const std::string& name) { return path_exists(run_ / name) ? read_file(run_ / name) : "absent"; }

  fs::path run_;
};

std::string steps(int from, int to) {
  std::string lines;
  for (int step = from; step <= to; ++step) lines += fmt::format("{{\"step\":{}}}\n", step);
  return lines;
}

TEST_F(HistoryTest, AnIdentityIsReadAsItWasWritten) {
  EXPECT_FALSE(read_identity(run_));
  RunIdentity identity = new_identity();
  EXPECT_EQ(identity.id.size(), 32u);
  EXPECT_NE(identity.id, new_identity().id);
  identity.attempts = 3;
  identity.named = true;
  identity.from = Fork{"other", "its name", 12};
  identity.histories.push_back({2, 4, false});
  write_identity(run_, identity);
  const RunIdentity read = identity_of(run_);
  EXPECT_EQ(read.id, identity.id);
  EXPECT_EQ(read.attempts, 3);
  EXPECT_TRUE(read.named);
  EXPECT_EQ(read.from->id + read.from->name, "otherits name");
  EXPECT_EQ(read.from->step, 12);
  ASSERT_EQ(read.histories.size(), 2u);
  EXPECT_EQ(read.histories[0].from_step, kAnew);
  EXPECT_TRUE(read.histories[0].settled);
  EXPECT_EQ(read.current().from_step, 4);
  EXPECT_FALSE(read.current().settled);
}

TEST_F(HistoryTest, ARunOfAnOlderVersionCountsItsAttemptsByItsLines) {
  write("events.jsonl", "{\"event\":\"start\",\"attempt\":1}\n{\"event\":\"start\",\"attempt\":4}\n{\"event\":\"st");
  EXPECT_EQ(identity_of(run_).attempts, 4);
  EXPECT_EQ(RunDirectory(run_).attempt(), 5);
  EXPECT_EQ(RunDirectory(run_).attempt(), 6);
}

// The records of a long run are gigabytes. A start must not read them to find its attempt.
TEST_F(HistoryTest, AnAttemptIsFoundWithoutReadingLines) {
  EXPECT_EQ(RunDirectory(run_).attempt(), 1);
  write("events.jsonl", "{\"event\":\"start\",\"attempt\":9}\n");
  EXPECT_EQ(RunDirectory(run_).attempt(), 2);
  for (const char* name : {"metrics.jsonl", "events.jsonl", "energy.jsonl"}) {
    fs::remove(run_ / name);
    fs::create_directory(run_ / name);  // opening it for reading fails
  }
  EXPECT_ANY_THROW(read_metrics(run_ / "metrics.jsonl"));
  EXPECT_EQ(identity_of(run_).attempts, 2);
}

TEST_F(HistoryTest, WhatIsNoRunIsRefused) {
  const GoldenMessages golden;
  write("run.json", "{\"format_version\": 1, \"id\": \"x\"}");
  EXPECT_NOTED(read_identity(run_), UsageError);
  write("run.json", "{\"format_version\": 9}");
  EXPECT_NOTED(read_identity(run_), VersionError);
}

TEST_F(HistoryTest, LinesBeyondAStepMoveAndTheOthersStay) {
  const std::string other = "{\"event\":\"note\"}\n{\"ste\n";
  write("metrics.jsonl", steps(1, 4) + other + steps(5, 7));
  abandon_records(run_, {3, 4, false});
  EXPECT_EQ(text("metrics.jsonl"), steps(1, 4) + other);
  EXPECT_EQ(text("metrics.jsonl.abandoned-3"), steps(5, 7));
  // Repeats the move, as after an interrupted start. It must not overwrite the lines that were moved.
  abandon_records(run_, {3, 4, false});
  EXPECT_EQ(text("metrics.jsonl.abandoned-3"), steps(5, 7));
}

TEST_F(HistoryTest, OneThatGoesOnKeepsTensorBoardAndOneThatBeginsAnewDoesNot) {
  for (const char* name : {"metrics.jsonl", "events.jsonl", "energy.jsonl"}) write(name, steps(0, 2));
  fs::create_directories(run_ / "tensorboard");
  write("tensorboard/events.out.1", "x");
  abandon_records(run_, {2, 1, false});
  EXPECT_EQ(text("tensorboard/events.out.1"), "x");
  EXPECT_EQ(text("events.jsonl"), steps(0, 1));
  abandon_records(run_, {3, kAnew, false});
  EXPECT_EQ(text("tensorboard.abandoned-3/events.out.1"), "x");
  EXPECT_FALSE(path_exists(run_ / "tensorboard"));
  for (const char* name : {"metrics.jsonl", "events.jsonl", "energy.jsonl"}) {
    EXPECT_EQ(text(name), "");
    EXPECT_EQ(text(std::string(name) + ".abandoned-2"), steps(2, 2));
    EXPECT_EQ(text(std::string(name) + ".abandoned-3"), steps(0, 1));
  }
}

// Cuts the power at each call of the moves. The next start repeats them, and then each line exists exactly once.
TEST_F(HistoryTest, AMoveCutShortIsFinishedByRepeatingIt) {
  UnsyncedFileSystem unsynced;
  const FileSystemOverride prepared(unsynced);
  for (std::int64_t call = 0;; ++call) {
    const fs::path live = run_ / fmt::format("live-{}", call), after = run_ / fmt::format("after-{}", call);
    fs::create_directories(live / "tensorboard");
    write_file_atomic(live / "metrics.jsonl", steps(1, 9));
    write_file_atomic(live / "tensorboard/events", "x");
    FaultyFileSystem faulty(live);
    faulty.cut_at(call);
    try {
      const FileSystemOverride instead(faulty);
      abandon_records(live, {2, kAnew, false});
    } catch (const IoError&) {
      EXPECT_TRUE(faulty.was_cut());
    }
    using Durable = FaultyFileSystem::Durable;
    for (const auto which : {Durable::kSynced, Durable::kEntries, Durable::kAsWritten}) {
      faulty.lay_out(after, which);
      abandon_records(after, {2, kAnew, false});
      EXPECT_EQ(read_file(after / "metrics.jsonl"), "") << call;
      EXPECT_EQ(read_file(after / "metrics.jsonl.abandoned-2"), steps(1, 9)) << call;
      EXPECT_EQ(read_file(after / "tensorboard.abandoned-2/events"), "x") << call;
      fs::remove_all(after);
    }
    if (!faulty.was_cut()) {
      EXPECT_GT(call, 6);
      return;
    }
  }
}

TEST_F(HistoryTest, AJobThatSlurmRequeuesFindsTheRunThatItBegan) {
  const auto begin = [&](const char* name, const char* job, const char* step, bool named) {
    ::setenv("SLURM_JOB_ID", job, 1);
    ::setenv("SLURM_STEP_ID", step, 1);
    RunIdentity identity = new_identity();
    identity.named = named;
    fs::create_directories(run_ / name);
    write_identity(run_ / name, identity);
  };
  begin("mine", "77", "0", false);
  begin("named", "77", "0", true);
  begin("other-step", "77", "1", false);
  begin("other-job", "78", "0", false);
  fs::create_directories(run_ / "no-run");
  fs::create_directories(run_ / "damaged");
  write("damaged/run.json", "{");
  const auto found = [&](const char* job, const char* step, const char* restarts) {
    ::setenv("SLURM_JOB_ID", job, 1);
    ::setenv("SLURM_STEP_ID", step, 1);
    ::setenv("SLURM_RESTART_COUNT", restarts, 1);
    std::string names;
    for (const fs::path& path : requeued_runs(run_)) names += path.filename().string() + " ";
    return names;
  };
  EXPECT_EQ(found("77", "0", "1"), "mine ");
  EXPECT_EQ(found("77", "1", "2"), "other-step ");
  EXPECT_EQ(found("79", "0", "1"), "");
  EXPECT_EQ(found("77", "0", "0"), "") << "a first start";
  ::unsetenv("SLURM_RESTART_COUNT");
  EXPECT_TRUE(requeued_runs(run_).empty());
  EXPECT_TRUE(requeued_runs(run_ / "absent").empty());
}

}  // namespace
}  // namespace molen::store
