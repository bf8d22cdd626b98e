#include "store/flight.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/test_bounds.h"
#include "base/test_filesystem.h"
#include "base/test_golden.h"
#include "store/flight_report.h"
#include "store/watch.h"

namespace molen::store {
namespace {

using std::chrono::milliseconds;

// Waits until a condition holds. Only broken code reaches the deadline, which is long enough for a slow machine.
template <class F>
bool soon(F&& condition, double seconds = 20.0) {
  const double end = now().value + seconds;
  while (now().value < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return condition();
}

class Flight : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        fs::path(::testing::TempDir()) /
        fmt::format("molen_flight_{}_{}", ::getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  static FlightIdentity identity(int rank = 0, int ranks = 1) {
    FlightIdentity id = identify_process({});
    id.rank = rank;
    id.ranks = ranks;
    id.attempt = 3;
    id.job = 77;
    id.program_digest = std::string(64, 'a');
    return id;
  }
  fs::path file(int rank = 0) const { return flight_file(directory_, rank); }

  // Runs `body` in a separate process, which then waits to be killed; returns its pid once the rank's file beats.
  template <class F>
  pid_t rank_process(int rank, int ranks, F body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      FlightWriter writer(file(rank), identity(rank, ranks));
      body(writer);
      for (;;) {
        writer.beat(0, now_ns(), static_cast<std::int64_t>(wall_time() * 1e9));
        ::usleep(5'000);
      }
    }
    EXPECT_TRUE(soon([&] {
      const auto head = read_flight_head(file(rank));
      return head && head.value().beat > 3;
    }));
    return pid;
  }

  fs::path directory_;
};

void end_process(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::kill(pid, SIGCONT);
  int status = 0;
  ::waitpid(pid, &status, 0);
}

TEST_F(Flight, RecordsComeBackInOrder) {
  FlightWriter w(file(), identity());
  w.phase(FlightPhase::kTrain, 9);
  w.record(0, false, 9, 5, 0, 100);
  w.record(0, true, 9, 5, 0, 200);
  w.record(1, false, 9, 6, 4096, 150);
  w.median_step(1'000);
  const FlightState s = read_flight(file());
  EXPECT_EQ(s.identity.host, identity().host);
  EXPECT_EQ(s.identity.pid, ::getpid());
  EXPECT_EQ(s.identity.program_digest, std::string(64, 'a'));
  EXPECT_EQ(s.identity.attempt, 3);
  EXPECT_EQ(s.phase, FlightPhase::kTrain);
  EXPECT_EQ(s.step, 9);
  EXPECT_EQ(s.median_step_ns, 1'000);
  ASSERT_EQ(s.streams[0].records.size(), 2u);
  EXPECT_FALSE(s.streams[0].records[0].end);
  EXPECT_TRUE(s.streams[0].records[1].end);
  EXPECT_EQ(s.streams[0].records[1].ns, 200);
  EXPECT_FALSE(s.streams[0].inside);
  ASSERT_EQ(s.streams[1].records.size(), 1u);
  EXPECT_EQ(s.streams[1].records[0].bytes, 4096);
  EXPECT_TRUE(s.streams[1].inside);
  EXPECT_EQ(s.streams[1].op, 6);
  EXPECT_EQ(s.streams[1].step, 9);
}

TEST_F(Flight, TheHeadComesBackWhole) {
  FlightIdentity id = identity(3, 8);
  FlightWriter w(file(3), id);
  w.beat(7'000, 123'000, 1'700'000'000'000'000'000);
  w.beat(9'000, 124'000, 1'700'000'000'250'000'000);
  w.saw_dead(5);
  const FlightState s = read_flight(file(3));
  EXPECT_EQ(s.identity.rank, 3);
  EXPECT_EQ(s.identity.ranks, 8);
  EXPECT_EQ(s.identity.job, 77u);
  EXPECT_EQ(s.identity.pid_start, id.pid_start);
  EXPECT_EQ(s.identity.pid_namespace, id.pid_namespace);
  EXPECT_GT(id.pid_namespace, 0u);
  EXPECT_EQ(s.identity.boot, id.boot);
  EXPECT_EQ(s.beat, 3u);  // one beat at its start
  EXPECT_EQ(s.idle_ns, 9'000);
  EXPECT_EQ(s.beat_wall_ns, 1'700'000'000'250'000'000);
  EXPECT_EQ(s.saw_dead, 5);
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  EXPECT_EQ(s.identity.host, std::string(host).substr(0, 63));
  // The beat's time on the steady clock. Only a person with a debugger reads it.
  std::int64_t beat_ns = 0;
  std::memcpy(&beat_ns, read_file(file(3)).data() + 296, sizeof beat_ns);
  EXPECT_EQ(beat_ns, 124'000);
}

TEST_F(Flight, TheRingKeepsTheLast) {
  FlightWriter w(file(), identity());
  constexpr int kMany = FlightWriter::kRecords * 2 + 17;
  for (int i = 0; i < kMany; ++i) w.record(0, i % 2 == 1, i / 100, i % 50, 0, i);
  const FlightState s = read_flight(file());
  ASSERT_EQ(s.streams[0].records.size(), static_cast<std::size_t>(FlightWriter::kRecords));
  EXPECT_EQ(s.streams[0].records.back().sequence, static_cast<std::uint64_t>(kMany));
  for (std::size_t i = 1; i < s.streams[0].records.size(); ++i)
    EXPECT_EQ(s.streams[0].records[i].sequence, s.streams[0].records[i - 1].sequence + 1);
  EXPECT_EQ(s.streams[0].torn, 0);
}

// Large steps and ops fit into the packed word.
TEST_F(Flight, TheLargestPlace) {
  FlightWriter w(file(), identity());
  w.record(1, false, (std::int64_t{1} << 37) + 5, (1 << 25) - 1, 0, 1);
  const auto head = read_flight_head(file());
  ASSERT_TRUE(head) << head.reason();
  EXPECT_EQ(head.value().streams[1].step, (std::int64_t{1} << 37) + 5);
  EXPECT_EQ(head.value().streams[1].op, (1 << 25) - 1);
}

TEST_F(Flight, ATornRecordIsLeftOut) {
  FlightWriter w(file(), identity());
  for (int i = 0; i < 5; ++i) w.record(0, false, 1, i, 0, i);
  std::string bytes = read_file(file());
  for (const std::size_t slot : {1u, 3u}) bytes[4096 + 64 * slot + 9] ^= 1;  // a byte of the record's time
  const FlightState s = parse_flight(bytes, "test");
  EXPECT_EQ(s.streams[0].torn, 2);
  ASSERT_EQ(s.streams[0].records.size(), 3u);
  EXPECT_EQ(s.streams[0].records[1].op, 2);
}

// One thread writes while another reads: every record that the reader gets is one that was written.
TEST_F(Flight, ReadersSeeWholeRecords) {
  FlightWriter w(file(), identity());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::int64_t i = 1; !stop; ++i) w.record(0, i % 2 == 0, i, static_cast<int>(i % 1000), i * 3, i * 7);
  });
  for (int round = 0; round < 200; ++round) {
    const FlightState s = read_flight(file());
    for (const auto& r : s.streams[0].records) {
      EXPECT_EQ(r.step, static_cast<std::int64_t>(r.sequence));
      EXPECT_EQ(r.ns, r.step * 7);
      EXPECT_EQ(r.bytes, r.step * 3);
      EXPECT_EQ(r.op, r.step % 1000);
    }
  }
  stop = true;
  writer.join();
}

TEST_F(Flight, SurvivesSigkill) {
  const pid_t pid = rank_process(0, 1, [](FlightWriter& w) {
    for (int i = 0; i < 100; ++i) w.record(0, false, 4, i, 0, i);
  });
  end_process(pid);
  const FlightState s = read_flight(file());
  EXPECT_EQ(s.streams[0].records.size(), 100u);
  EXPECT_EQ(s.streams[0].op, 99);
  EXPECT_EQ(process_of(s.identity, identity()), ProcessState::kDead);
}

TEST_F(Flight, AProcessIsAliveStoppedOrDead) {
  const pid_t pid = rank_process(0, 1, [](FlightWriter&) {});
  const FlightIdentity of = read_flight(file()).identity;
  EXPECT_EQ(process_of(of, identity()), ProcessState::kAlive);
  ::kill(pid, SIGSTOP);
  EXPECT_TRUE(soon([&] { return process_of(of, identity()) == ProcessState::kStopped; }));
  FlightIdentity reused = of;
  EXPECT_GT(reused.pid_start, 0u) << "in ticks since the start of the kernel";
  reused.pid_start += 1;
  EXPECT_EQ(process_of(reused, identity()), ProcessState::kDead) << "another process with the same pid";
  FlightIdentity elsewhere = of;
  elsewhere.boot = "another-kernel";
  EXPECT_EQ(process_of(elsewhere, identity()), ProcessState::kUnknown);
  end_process(pid);
}

// A process that cannot open files must not regard its neighbours as dead.
TEST_F(Flight, WhatCannotBeAskedIsNotDead) {
  make_directories(directory_);
  const FlightIdentity own = identity();
  FaultyFileSystem faulty(directory_);
  const FileSystemOverride instead(faulty);
  EXPECT_EQ(process_of(own, own), ProcessState::kAlive);
  for (const int code : {EMFILE, EIO}) {
    faulty.on_open = [code](const fs::path& path) { return path.string().starts_with("/proc/") ? -code : 0; };
    EXPECT_NOTED(process_of(own, own), IoError);
  }
  for (const int code : {ENOENT, ESRCH}) {
    faulty.on_open = [code](const fs::path& path) { return path.string().starts_with("/proc/") ? -code : 0; };
    EXPECT_EQ(process_of(own, own), ProcessState::kDead);
  }
}

TEST_F(Flight, RingsOfTheStreamsThatAreUsed) {
  const GoldenMessages golden;
  for (const int streams : {2, kFlightStreams}) {
    FlightWriter w(file(), identity(), streams);
    const std::uint64_t before = w.progress();
    w.record(kFlightStreams - 1, false, 3, 7, 0, 100);
    EXPECT_EQ(w.progress() - before, streams == 2 ? 0U : 1U);
    EXPECT_EQ(fs::file_size(file()), 4096U + 64U * FlightWriter::kRecords * static_cast<unsigned>(streams));
    const FlightState s = read_flight(file());
    EXPECT_EQ(s.streams.back().inside, streams == kFlightStreams);
    EXPECT_EQ(s.streams.back().op, streams == kFlightStreams ? 7 : 0);
  }
  EXPECT_NOTED(FlightWriter(file(), identity(), kFlightStreams + 1), Error);
}

TEST_F(Flight, HostileFiles) {
  const GoldenMessages golden;
  FlightWriter w(file(), identity());
  const std::string good = read_file(file());
  const auto refused = [&](const std::string& bytes) { EXPECT_NOTED(parse_flight(bytes, "x"), UsageError); };
  const auto with = [&](std::size_t offset, auto value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return bytes;
  };
  EXPECT_NO_THROW(parse_flight(good, "x"));
  refused("");
  refused(good.substr(0, 4095));
  refused(good.substr(0, good.size() - 1));
  refused(good + "x");
  refused(with(0, 'X'));
  refused(with(8, std::uint32_t{2}));  // the version of a molen that had no stream for each kind of axis
  refused(with(20, std::uint32_t{0}));
  refused(with(20, std::uint32_t{0xffffffff}));
  refused(with(20, std::uint32_t{(1 << 14) + 1}));
  refused(with(20, std::uint32_t{1025}));
  refused(with(24, std::uint32_t{1}));
  refused(with(24, std::uint32_t{3}));  // three streams, but the rings of two
  refused(with(24, std::uint32_t{kFlightStreams + 1}));
  refused(with(28, std::int32_t{-1}));
  refused(with(28, std::int32_t{1}));
  refused(with(32, std::int32_t{0x7fffffff}));
  refused(with(36, std::uint32_t{9}));
  refused(with(56, std::int64_t{-5}));
  refused(with(344, std::uint32_t{4}));
  refused(with(348, std::int32_t{1}));
  std::string name = good;
  std::memset(name.data() + 88, 0x1b, 64);  // no terminator, and escapes for a terminal
  EXPECT_EQ(parse_flight(name, "x").identity.host, std::string(64, '?'));
  for (const auto& [offset, size] : {std::pair<std::size_t, std::size_t>{88, 64}, {152, 64}, {216, 72}}) {
    std::string full = good;
    std::memset(full.data() + offset, 'b', size);
    const FlightIdentity id = parse_flight(full, "x").identity;
    EXPECT_EQ(id.host == std::string(64, 'b'), offset == 88) << id.host;
    EXPECT_EQ(id.boot == std::string(64, 'b'), offset == 152) << id.boot;
    EXPECT_EQ(id.program_digest == std::string(72, 'b'), offset == 216) << id.program_digest;
  }
  EXPECT_NOTED(read_flights(directory_ / "none"), UsageError);
}

// The largest file of the format, which a molen with longer rings could write.
TEST_F(Flight, TheLargestFile) {
  { const FlightWriter w(file(), identity(), kFlightStreams); }
  const std::uint32_t records = 1 << 14;
  std::string bytes = read_file(file());
  std::memcpy(bytes.data() + 20, &records, sizeof records);
  const std::size_t largest = 4096 + std::size_t{64} * records * kFlightStreams;
  bytes.resize(largest, '\0');
  write_file_atomic(file(), bytes);
  EXPECT_EQ(read_flight(file()).identity.job, 77u);
  bytes.resize(largest + 1, '\0');
  write_file_atomic(file(), bytes);
  EXPECT_THROW(read_flight(file()), Error);
}

// A file claims a number of ranks, and a report opens a file and prints a line for each.
TEST_F(Flight, RanksWithoutFilesAreNotBelieved) {
  { const FlightWriter w(file(), identity(0, 1 << 24)); }
  const auto report = [&] {
    const auto records = read_flights(directory_);
    to_text(judge(sight(directory_, records.front().identity, milliseconds(1)), nullptr), nullptr);
  };
  EXPECT_NE(bounded("a flight record of 2^24 ranks, beside no other", report).find("16777216 ranks"),
            std::string::npos);
  fs::resize_file(file(), 4096);  // the head alone, as after a crash before the first op
  EXPECT_NE(bounded("the same, 4,096 bytes long", report), "");
  { const FlightWriter w(file(), identity(0, 1000)); }
  EXPECT_EQ(bounded("a flight record of 1,000 ranks, beside no other", report), "") << "lost hosts";
  { const FlightWriter w(file(), identity(0, 64 + 1024)); }
  EXPECT_NO_THROW(read_flights(directory_)) << "64 ranks for a file, and 1,024 that are missing";
  { const FlightWriter w(file(), identity(0, 64 + 1024 + 1)); }
  EXPECT_THROW(read_flights(directory_), UsageError);
  fs::resize_file(file(), std::uintmax_t{1} << 34);
  EXPECT_NE(bounded("a flight record of 16 GiB", report), "");
}

TEST_F(Flight, TheNewestAttemptOnly) {
  FlightIdentity old = identity(1, 2);
  old.job = 5;
  old.start_wall_ns -= 1'000'000'000;
  const FlightWriter a(file(1), old), b(file(0), identity(0, 1));
  const auto all = read_flights(directory_);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].identity.rank, 0);
}

TEST(FlightLimit, Auto) {
  EXPECT_DOUBLE_EQ(hang_limit_s(std::nullopt, 1'000'000'000), 30.0);
  EXPECT_DOUBLE_EQ(hang_limit_s(std::nullopt, 20'000'000'000), 60.0);
  EXPECT_DOUBLE_EQ(hang_limit_s(Seconds(4), 20'000'000'000), 4.0);
  EXPECT_DOUBLE_EQ(hang_limit_s(Seconds(4), 0), 40.0) << "before the first step's end";
}

// Leaves six beats before the limit for noticing and confirming, but at most a tenth of the limit.
TEST(FlightLimit, LeavesTimeToConfirm) {
  EXPECT_DOUBLE_EQ(suspect_after_s(30.0, milliseconds(250)), 28.5);
  EXPECT_DOUBLE_EQ(suspect_after_s(15.0, milliseconds(250)), 13.5);
  EXPECT_DOUBLE_EQ(suspect_after_s(4.0, milliseconds(250)), 3.6);
}

// For every run of dead neighbours, some living rank watches one of them; each rank is also watched from its own host.
TEST(FlightPeers, SomebodyLooksAtEverybody) {
  for (const int ranks : {1, 2, 5, 16, 17, 64}) {
    std::vector<std::uint64_t> hosts;
    for (int r = 0; r < ranks; ++r) hosts.push_back(static_cast<std::uint64_t>(r / 4));
    std::vector<int> seen(hosts.size()), seen_here(hosts.size());
    for (int r = 0; r < ranks; ++r)
      for (const int p : peers_of(r, hosts)) {
        ASSERT_NE(p, r);
        ++seen[static_cast<std::size_t>(p)];
        seen_here[static_cast<std::size_t>(p)] +=
            hosts[static_cast<std::size_t>(p)] == hosts[static_cast<std::size_t>(r)];
      }
    for (int r = 0; r < ranks; ++r) {
      EXPECT_GE(seen[static_cast<std::size_t>(r)], ranks > 1 ? 1 : 0) << ranks;
      const auto mates = std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(r)]);
      EXPECT_GE(seen_here[static_cast<std::size_t>(r)], mates > 1 ? 1 : 0) << ranks;
    }
  }
}

const OpTexts kOps = [](const std::string&, int op) {
  return OpText{op % 10 == 0 ? fmt::format("all_reduce {}", op) : fmt::format("part {}", op),
                fmt::format("  {} <-- here\n", op)};
};

// --- the watch

class FlightWatch : public Flight {
 protected:
  static constexpr milliseconds kBeat{20};

  std::unique_ptr<Watch> watch(FlightWriter& w, int rank, int ranks, Seconds limit,
                               std::chrono::milliseconds beat = kBeat) {
    WatchOptions o;
    o.hang_timeout = limit;
    o.beat = beat;
    o.peers = peers_of(rank, std::vector<std::uint64_t>(static_cast<std::size_t>(ranks)));
    return std::make_unique<Watch>(directory_, w, identity(rank, ranks), o, kOps, [this](const Alarm& alarm) {
      const std::lock_guard lock(mutex_);
      alarms_.push_back(alarm);
    });
  }
  std::vector<Alarm> alarms() {
    const std::lock_guard lock(mutex_);
    return alarms_;
  }

  std::mutex mutex_;
  std::vector<Alarm> alarms_;
};

void start_step(FlightWriter& w) {
  w.median_step(1'000'000);
  w.phase(FlightPhase::kTrain, 7);
}

TEST_F(FlightWatch, ADeadRankIsNoticedAtOnce) {
  const pid_t pid = rank_process(1, 2, [](FlightWriter& w) {
    start_step(w);
    w.record(0, false, 7, 15, 0, 1);
  });
  FlightWriter w(file(0), identity(0, 2));
  start_step(w);
  w.record(1, false, 7, 20, 0, 1);
  const auto watching = watch(w, 0, 2, Seconds(1000), WatchOptions{}.beat);  // as in real runs
  const double start = now().value;
  end_process(pid);
  ASSERT_TRUE(soon([&] { return !alarms().empty(); }));
  const double took = now().value - start;
  fmt::print("a dead rank is noticed after {:.2f} s\n", took);
  EXPECT_LT(took, 5.0);
  const Alarm alarm = alarms()[0];
  EXPECT_TRUE(alarm.writer);
  EXPECT_NE(alarm.summary.find("dead: op 15 (part 15) of step 7"), std::string::npos) << alarm.summary;
  EXPECT_NE(read_file(alarm.file).find("15 <-- here"), std::string::npos);
}

TEST_F(FlightWatch, AStoppedRankIsNoticedWithinTheLimit) {
  const pid_t pid = rank_process(1, 2, [](FlightWriter& w) {
    start_step(w);
    w.record(1, false, 7, 20, 0, 1);
  });
  FlightWriter w(file(0), identity(0, 2));
  start_step(w);
  w.phase(FlightPhase::kCheckpoint, 7);  // no op is expected to advance here, so the missing beat decides
  const auto watching = watch(w, 0, 2, Seconds(1.0));
  ::kill(pid, SIGSTOP);
  const double start = now().value;
  EXPECT_TRUE(soon([&] { return !alarms().empty(); }));
  EXPECT_GE(now().value - start, 0.8);
  ASSERT_FALSE(alarms().empty());
  EXPECT_NE(alarms()[0].summary.find("stopped"), std::string::npos) << alarms()[0].summary;
  end_process(pid);
}

// The ranks are threads of one process. One hangs in its op, the other waits for it; only one of them writes the
// report.
TEST_F(FlightWatch, AHungRankIsNamedByOneWriter) {
  FlightWriter a(file(0), identity(0, 2)), b(file(1), identity(1, 2));
  start_step(a);
  start_step(b);
  a.record(1, false, 7, 20, 0, 1);
  b.record(0, false, 7, 15, 0, 1);
  const auto first = watch(a, 0, 2, Seconds(0.5)), second = watch(b, 1, 2, Seconds(0.5));
  ASSERT_TRUE(soon([&] { return alarms().size() == 2; }));
  const auto all = alarms();
  EXPECT_EQ(all[0].writer + all[1].writer, 1);
  EXPECT_NE(all[0].summary.find("rank 1"), std::string::npos) << all[0].summary;
  EXPECT_NE(all[0].summary.find("rank 0 waits in op 20"), std::string::npos) << all[0].summary;
  EXPECT_TRUE(fs::exists(directory_ / "report-3.txt"));
}

// A rank raises no alarm while it waits for one that advances slowly, validates, or is in its first step. In any other
// case the same rank raises it.
TEST_F(FlightWatch, NoFalseAlarm) {
  FlightWriter a(file(0), identity(0, 2)), b(file(1), identity(1, 2));
  start_step(a);
  start_step(b);
  a.record(1, false, 7, 20, 0, 1);
  const auto first = watch(a, 0, 2, Seconds(0.3)), second = watch(b, 1, 2, Seconds(0.3));
  for (int i = 0; i < 20; ++i) {
    b.record(0, i % 2 == 1, 7, i / 2, 0, i);
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_TRUE(alarms().empty()) << alarms()[0].report;
  for (const auto phase :
       {FlightPhase::kValidate, FlightPhase::kCheckpoint, FlightPhase::kStart, FlightPhase::kFinish}) {
    b.phase(phase, 7);
    std::this_thread::sleep_for(milliseconds(600));
    EXPECT_TRUE(alarms().empty()) << alarms()[0].report;
  }
  b.phase(FlightPhase::kTrain, 7);
  EXPECT_TRUE(soon([&] { return !alarms().empty(); }));
}

TEST_F(FlightWatch, TheIdleClockRunsAsTimeDoes) {
  FlightWriter w(file(0), identity(0, 1));
  start_step(w);
  const std::int64_t begun = now_ns();
  const auto watching = watch(w, 0, 1, Seconds(1000), milliseconds(100));
  const auto idle = [&] { return read_flight(file(0)).idle_ns; };
  ASSERT_TRUE(soon([&] { return idle() > 500'000'000; }));
  EXPECT_LE(idle(), now_ns() - begun);
  w.record(0, false, 7, 15, 0, 1);
  EXPECT_TRUE(soon([&] { return idle() < 200'000'000; })) << "an op begins the count anew";
}

// A folder may still hold the file of an earlier job's rank, whose process is gone.
TEST_F(FlightWatch, RecordsOfOtherJobsAreNotRead) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    FlightIdentity other = identity(1, 2);
    other.job = 78;
    const FlightWriter w(file(1), other);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  FlightWriter w(file(0), identity(0, 2));
  const auto watching = watch(w, 0, 2, Seconds(0.2));
  ASSERT_TRUE(soon([&] { return read_flight(file(0)).beat > 20; }));
  EXPECT_EQ(read_flight(file(0)).saw_dead, -1);
  EXPECT_TRUE(alarms().empty());
}

// In a large job each rank reads the records of a few others while all is well.
TEST_F(FlightWatch, ARankThatIsNoPeerIsLeftToOthers) {
  end_process(rank_process(1, 2, [](FlightWriter&) {}));
  FlightWriter w(file(0), identity(0, 2));
  WatchOptions o;
  o.hang_timeout = Seconds(1000);
  o.beat = kBeat;
  const auto raised = [this](const Alarm& alarm) {
    const std::lock_guard lock(mutex_);
    alarms_.push_back(alarm);
  };
  {
    const Watch watching(directory_, w, identity(0, 2), o, kOps, raised);
    ASSERT_TRUE(soon([&] { return read_flight(file(0)).beat > 30; }));
    EXPECT_TRUE(alarms().empty());
  }
  o.peers = {1};
  const Watch watching(directory_, w, identity(0, 2), o, kOps, raised);
  EXPECT_TRUE(soon([&] { return alarms().size() == 1; }));
}

// The lowest living rank should write the report. If it does not, the rank that saw the fault writes it.
TEST_F(FlightWatch, AReportThatTheLowestRankDoesNotWriteComesLate) {
  FlightWriter a(file(0), identity(0, 2)), b(file(1), identity(1, 2));
  start_step(a);
  start_step(b);
  a.record(1, false, 7, 20, 0, 1);
  b.record(0, false, 7, 15, 0, 1);
  std::atomic<bool> ended = false;
  std::thread beats([&] {  // rank 0 is alive and waits, but has no watch
    while (!ended) {
      a.beat(5'000'000'000, now_ns(), static_cast<std::int64_t>(wall_time() * 1e9));
      std::this_thread::sleep_for(milliseconds(2));
    }
  });
  {
    const auto watching = watch(b, 1, 2, Seconds(0.3));
    const bool announced = soon([&] { return fs::exists(directory_ / "alarm-77"); });
    const double at = now().value;
    EXPECT_TRUE(announced);
    EXPECT_TRUE(soon([&] { return !alarms().empty(); }));
    EXPECT_GE(now().value - at, 6 * 0.02) << "rank 0 has twelve beats to write it";
  }
  ended = true;
  beats.join();
  ASSERT_EQ(alarms().size(), 1U);
  EXPECT_TRUE(alarms()[0].writer);
  EXPECT_NE(read_file(alarms()[0].file).find("written by rank 1"), std::string::npos);
}

TEST_F(FlightWatch, ARankThatEndsIsNotDead) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    FlightWriter w(file(1), identity(1, 2));
    w.leave(FlightEnd::kEnded);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  FlightWriter w(file(0), identity(0, 2));
  const auto watching = watch(w, 0, 2, Seconds(0.2));
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_TRUE(alarms().empty()) << alarms()[0].report;
}

TEST(FlightPeers, AreTheNextTwoAndTwoOfTheHost) {
  std::vector<std::uint64_t> apart, four;
  for (int r = 0; r < 20; ++r)
    apart.push_back(static_cast<std::uint64_t>(r)), four.push_back(static_cast<std::uint64_t>(r % 5));
  EXPECT_EQ(peers_of(0, apart), (std::vector<int>{1, 2}));
  EXPECT_EQ(peers_of(19, apart), (std::vector<int>{0, 1}));
  EXPECT_EQ(peers_of(0, four), (std::vector<int>{1, 2, 5, 10}));
  EXPECT_EQ(peers_of(3, std::vector<std::uint64_t>(4)), (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(several_hosts({7, 7, 9}));
  EXPECT_FALSE(several_hosts({7, 7, 7}));
  EXPECT_FALSE(several_hosts({7}));
}
}  // namespace
}  // namespace molen::store
