// Cuts the power, or fails the storage, at each call of a save, a removal or a move: the newest checkpoint is always
// whole, and no checkpoint that was reported as saved is lost.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "base/test_filesystem.h"
#include "base/test_golden.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/test_folder.h"
#include "checkpoint/test_ranks.h"
#include "store/lease.h"

namespace molen::checkpoint {
namespace {

using Durable = FaultyFileSystem::Durable;

fs::path save_step(const fs::path& directory, std::int64_t step, int keep, float value = 1.0f,
                   const store::Lease* lease = nullptr) {
  // Two tensors, one in two boxes, so that every kind of checkpoint file is written.
  std::vector<float> a(35, value), b(12, value);
  std::vector<Span> spans{{"a", DType::kF32, {5, 7}, {{0, 0}, {5, 3}}, a.data(), {}},
                          {"a", DType::kF32, {5, 7}, {{0, 3}, {5, 4}}, a.data(), {}},
                          {"b", DType::kF32, {12}, {{0}, {12}}, b.data(), {}}};
  SaveOptions options;
  options.directory = directory;
  options.step = step;
  options.state = {{"step", step}, {"value", value}};
  options.attachments = {{"tokenizer.json", "{}"}};
  options.keep = keep;
  options.token = lease ? lease->token() : 1;
  options.still_owner = [&] {
    if (lease) lease->require();
  };
  return save(spans, options);
}

// The owner whose lease is cut: a process of this machine that no longer lives.
store::LeaseOptions dead_owner() {
  store::LeaseOptions options;
  options.owner.process_start = 1;
  return options;
}
// The next owner. It waits for its period only where the cut left a lease without content.
store::LeaseOptions next_owner() {
  store::LeaseOptions options;
  options.period_s = 0.002;
  return options;
}

// One scenario. `before` runs undisturbed; `action`, which holds the lease of the directory, is cut at each of its
// calls in turn. After each cut the next owner takes the lease, and `check` examines the contents of the disk; `done`
// tells whether the action had returned.
struct Scenario {
  std::function<void(const fs::path&)> before;
  std::function<void(const fs::path&, const store::Lease&)> action;
  std::function<void(const fs::path&, bool done)> check;
  bool exchange = true;
};

// Takes the lease of what the cut left, and checks it. The directory then holds checkpoints and the owner's lease, and
// nothing that nobody would ever remove.
void examine(const fs::path& directory, const std::function<void(const fs::path&)>& check) {
  std::int64_t token = 0;
  {
    const store::Lease lease(directory, next_owner());
    token = lease.token();
    recover(directory);
    check(directory);
  }
  EXPECT_TRUE(unfinished_in(directory).empty());
  for (const DirectoryEntry& entry : list_directory(directory))
    EXPECT_TRUE(entry.name.starts_with("step-") || entry.name == fmt::format("lease-{:09d}.json", token)) << entry.name;
}

// Returns the number of calls that the action makes.
std::int64_t cut_everywhere(const Scenario& scenario) {
  UnsyncedFileSystem unsynced;
  const FileSystemOverride prepared(unsynced);
  for (std::int64_t call = 0;; ++call) {
    const TestFolder folder;
    make_directories(folder / "live");
    scenario.before(folder / "live/checkpoints");
    FaultyFileSystem faulty(folder / "live");
    faulty.no_exchange = !scenario.exchange;
    faulty.cut_at(call);
    bool done = false;
    try {
      const FileSystemOverride instead(faulty);
      const store::Lease lease(folder / "live/checkpoints", dead_owner());
      scenario.action(folder / "live/checkpoints", lease);
      done = !faulty.was_cut();
    } catch (const Error&) {
      EXPECT_TRUE(faulty.was_cut());
    }
    const std::string last = call < static_cast<std::int64_t>(faulty.log().size())
                                 ? faulty.log()[static_cast<std::size_t>(call)]
                                 : "the end";
    for (const auto& [which, seed] :
         {std::pair(Durable::kSynced, 0), std::pair(Durable::kEntries, 0), std::pair(Durable::kRandom, 1),
          std::pair(Durable::kRandom, 2), std::pair(Durable::kAsWritten, 0)}) {
      SCOPED_TRACE(fmt::format("cut before call {} ({}), kind {} {}", call, last, static_cast<int>(which), seed));
      faulty.lay_out(folder / "after", which, static_cast<std::uint64_t>(call * 10 + seed));
      examine(folder / "after/checkpoints", [&](const fs::path& after) { scenario.check(after, done); });
      fs::remove_all(folder / "after");
    }
    if (!faulty.was_cut()) return call;
  }
}

TEST(PowerCut, OfTheFirstSave) {
  const auto calls = cut_everywhere({[](const fs::path&) {},
                                     [](const fs::path& d, const auto& lease) { save_step(d, 1, 0, 1, &lease); },
                                     [](const fs::path& d, bool done) {
                                       const std::int64_t newest = newest_whole(d);
                                       EXPECT_TRUE(newest == 1 || (!done && newest == -1)) << newest;
                                     }});
  fmt::print("a first save makes {} calls\n", calls);
  EXPECT_GT(calls, 20);
}

// Two ranks write a file each, and the first rank publishes both.
TEST(PowerCut, OfASaveOfTwoRanks) {
  const std::vector<float> values(35, 2.0f);
  const auto rows = [&](std::int64_t first, std::int64_t count) {
    return std::vector<Span>{{"a", DType::kF32, {5, 7}, {{first, 0}, {count, 7}}, values.data(), {}}};
  };
  const auto calls = cut_everywhere({[](const fs::path& d) { save_step(d, 1, 0); },
                                     [&](const fs::path& d, const auto& lease) {
                                       for (const auto& error : save_ranks({rows(0, 3), rows(3, 2)}, d, 2, 0, &lease))
                                         if (!error.empty()) throw Error("{}", error);
                                     },
                                     [](const fs::path& d, bool done) {
                                       const std::int64_t newest = newest_whole(d);
                                       EXPECT_TRUE(newest == 2 || (!done && newest == 1)) << newest;
                                     }});
  fmt::print("a save of two ranks makes {} calls\n", calls);
  EXPECT_GT(calls, 30);
}

TEST(PowerCut, OfASaveThatPrunes) {
  const auto calls = cut_everywhere({[](const fs::path& d) {
                                       for (const int step : {1, 2, 3}) save_step(d, step, 0);
                                     },
                                     [](const fs::path& d, const auto& lease) { save_step(d, 4, 2, 1, &lease); },
                                     [](const fs::path& d, bool done) {
                                       const std::int64_t newest = newest_whole(d);
                                       EXPECT_TRUE(newest == 4 || (!done && newest == 3)) << newest;
                                       // The checkpoint that `keep` retains is whole too.
                                       EXPECT_EQ(verify(d / "step-000000003").tensors, 2);
                                     }});
  EXPECT_GT(calls, 30);
}

TEST(PowerCut, OfASaveThatReplacesItsStep) {
  for (const bool exchange : {true, false})
    cut_everywhere({[](const fs::path& d) { save_step(d, 1, 0, 1.0f); },
                    [](const fs::path& d, const auto& lease) { save_step(d, 1, 0, 2.0f, &lease); },
                    [](const fs::path& d, bool done) {
                      ASSERT_EQ(newest_whole(d), 1);
                      const float value = Checkpoint(*latest(d)).state()["value"].get<float>();
                      EXPECT_TRUE(value == 2.0f || (!done && value == 1.0f)) << value;
                    },
                    exchange});
}

TEST(PowerCut, OfMovingAbandonedCheckpointsAway) {
  cut_everywhere(
      {[](const fs::path& d) {
         for (const int step : {1, 2, 3}) save_step(d, step, 0);
       },
       [](const fs::path& d, const auto&) {
         EXPECT_EQ(abandon(d, 1, 2), (std::vector<std::int64_t>{3, 2}));
       },
       [](const fs::path& d, bool done) {
         EXPECT_EQ(verify(d / "step-000000001").tensors, 2);
         EXPECT_TRUE(!done || newest_whole(d) == 1);
         // Each checkpoint is whole in one of the two places.
         for (const char* name : {"step-000000002", "step-000000003"})
           EXPECT_EQ(verify(fs::exists(d / name) ? d / name : d / (std::string(name) + ".abandoned-2")).tensors, 2);
       }});
}

TEST(PowerCut, OfSettingADamagedOneAside) {
  cut_everywhere({[](const fs::path& d) {
                    for (const int step : {1, 2}) save_step(d, step, 0);
                    fs::resize_file(d / "step-000000002/index.json", 3);
                  },
                  [](const fs::path& d, const auto&) {
                    EXPECT_EQ(set_aside(d / "step-000000002").filename(), "step-000000002.damaged-1");
                  },
                  [](const fs::path& d, bool done) {
                    EXPECT_EQ(newest_whole(d), 1);
                    EXPECT_EQ(steps_in(d).size() + damaged_in(d).size(), 2u);
                    EXPECT_TRUE(!done || damaged_in(d).at(0).step == 2);
                  }});
}

// The storage refuses one call, or all calls from one on: the save fails, or old checkpoints are not removed. No
// earlier checkpoint is lost, and the next save works.
TEST(Faults, OfEveryCallOfASave) {
  UnsyncedFileSystem unsynced;
  const FileSystemOverride prepared(unsynced);
  for (const int code : {EIO, ENOSPC})
    for (const bool forever : {false, true})
      for (std::int64_t call = 0;; ++call) {
        const TestFolder folder;
        for (const int step : {1, 2}) save_step(folder.path(), step, 0);
        FaultyFileSystem faulty(folder.path());
        forever ? faulty.fail_from(call, code) : faulty.fail_at(call, code);
        bool saved = true;
        try {
          const FileSystemOverride instead(faulty);
          save_step(folder.path(), 3, 2);
        } catch (const IoError& error) {
          EXPECT_EQ(error.code(), code);
          saved = false;
        }
        const std::string what = fmt::format("call {} fails with {}{}", call, code, forever ? ", as do all after" : "");
        EXPECT_GE(newest_whole(folder.path()), saved ? 3 : 2) << what;
        EXPECT_EQ(verify(folder / "step-000000002").tensors, 2) << what;
        save_step(folder.path(), 4, 2);
        EXPECT_EQ(newest_whole(folder.path()), 4) << what;
        if (call >= faulty.calls()) break;
      }
}

TEST(Faults, ShortAndInterruptedTransfers) {
  const TestFolder folder;
  FaultyFileSystem faulty(folder.path());
  faulty.write_short(5);
  faulty.interrupt();
  const FileSystemOverride instead(faulty);
  save_step(folder.path(), 1, 0);
  EXPECT_EQ(newest_whole(folder.path()), 1);
}

// A temporary read failure is not damage: no checkpoint is skipped, and none is set aside.
TEST(Faults, UnreadableIsNotDamaged) {
  const GoldenMessages golden;
  const TestFolder folder;
  for (const int step : {1, 2}) save_step(folder.path(), step, 0);
  FaultyFileSystem faulty(folder.path());
  const FileSystemOverride instead(faulty);
  for (const int code : {EIO, ESTALE, EMFILE}) {
    faulty.on_open = [&](const fs::path& path) { return path.filename() == "state.json" ? -code : 0; };
    EXPECT_NOTED(latest(folder.path()), IoError);
    EXPECT_EQ(list(folder.path()).back().problem, Problem::kUnreadable);
    faulty.on_open = nullptr;
    faulty.on_read = [&](const fs::path& path) { return path.extension() == ".safetensors" ? -code : 0; };
    EXPECT_NOTED(verify(*latest(folder.path())), IoError);
    faulty.on_read = nullptr;
    faulty.on_list = [&](const fs::path&) { return -code; };
    EXPECT_NOTED(latest(folder.path()), IoError);
    faulty.on_list = nullptr;
  }
}

TEST(Faults, AnotherVersionIsNotDamaged) {
  const GoldenMessages golden;
  const TestFolder folder;
  for (const int step : {1, 2}) save_step(folder.path(), step, 0);
  std::string text = read_file(folder / "step-000000002/state.json");
  text.replace(text.find("\"format_version\": 2"), 19, "\"format_version\": 9");
  write_file_atomic(folder / "step-000000002/state.json", text);
  EXPECT_NOTED(latest(folder.path()), VersionError);
  EXPECT_EQ(list(folder.path()).back().problem, Problem::kOtherVersion);
}

// An owner without its lease publishes nothing, and an owner that was overtaken during a save no longer finds its
// directory.
TEST(Fencing, ALateOwnerPublishesNothing) {
  const GoldenMessages golden;
  const TestFolder folder;
  save_step(folder.path(), 1, 0);
  std::vector<float> values(10, 1.0f);
  SaveOptions options;
  options.directory = folder.path();
  options.step = 2;
  options.token = 1;
  Span slow{"w", DType::kF32, {10}, {{0}, {10}}, nullptr, [&](std::int64_t, std::int64_t count, void* to) {
              recover(folder.path());  // another owner, after it took the lease
              std::copy_n(values.data(), count, static_cast<float*>(to));
            }};
  EXPECT_NOTED(save({slow}, options), Error);
  EXPECT_EQ(newest_whole(folder.path()), 1);
  int checks = 0;
  slow.read = nullptr;
  slow.data = values.data();
  options.still_owner = [&] {
    if (++checks == 2) throw Error("the lease is lost");
  };
  EXPECT_NOTED(save({slow}, options), Error);
  EXPECT_EQ(newest_whole(folder.path()), 1);
  EXPECT_EQ(list_directory(folder.path()).size(), 1u);
}

// A directory taken from an owner that still writes is first renamed at once; only then are its files removed.
TEST(Fencing, RecoveryMovesAwayBeforeItRemoves) {
  const TestFolder folder;
  const fs::path partial = folder / "step-000000002.partial-1", left = folder / "step-000000002.partial-1.removing";
  for (const fs::path& path : {partial, left}) {
    fs::create_directory(path);
    write_file_atomic(path / "rank-00000.safetensors", "x");
  }
  FaultyFileSystem faulty(folder.path());
  {
    const FileSystemOverride instead(faulty);
    recover(folder.path());
  }
  EXPECT_EQ(faulty.log(), (std::vector<std::string>{"remove step-000000002.partial-1.removing/rank-00000.safetensors",
                                                    "remove step-000000002.partial-1.removing",
                                                    "rename step-000000002.partial-1.removing",
                                                    "remove step-000000002.partial-1.removing/rank-00000.safetensors",
                                                    "remove step-000000002.partial-1.removing", "sync ."}));
  EXPECT_TRUE(list_directory(folder.path()).empty());
}

// An interrupted replacement: the new checkpoint stays if it exists; otherwise the old one comes back.
TEST(Fencing, RecoveryEndsAReplacement) {
  const TestFolder folder;
  for (const int step : {1, 2}) save_step(folder.path(), step, 0, static_cast<float>(step));
  fs::rename(folder / "step-000000002", folder / "step-000000001.replaced");
  recover(folder.path());
  EXPECT_EQ(Checkpoint(folder / "step-000000001").state()["value"], 1.0);
  EXPECT_EQ(list_directory(folder.path()).size(), 1u);
  fs::rename(folder / "step-000000001", folder / "step-000000001.replaced");
  recover(folder.path());
  EXPECT_EQ(newest_whole(folder.path()), 1);
  EXPECT_EQ(list_directory(folder.path()).size(), 1u);
}

}  // namespace
}  // namespace molen::checkpoint
