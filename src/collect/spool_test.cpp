#include "collect/spool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/test_filesystem.h"
#include "collect/test_records.h"
#include "collect/wire.h"

namespace molen::collect {
namespace {

using Durable = FaultyFileSystem::Durable;

Batch parsed_line(const Spool& spool, std::int64_t number) {
  const std::string& text = spool.line(number);
  return parse_batch(std::string_view(text).substr(0, text.size() - 1), "n", "a line");
}

// A batch that is told from others by its joules, in a line of about `bytes`.
Batch marked_batch(int mark, std::size_t bytes = 0) {
  Batch batch;
  batch.periods.push_back({"node", 1e9, 1e9 + 60, 1.0 * mark, "", "cray", energy::Source::kCounter, true, "", "", ""});
  while (bytes > kMostTextBytes + 100) {
    batch.events.push_back({1e9, "filler", std::string(kMostTextBytes, 'x'), 0});
    bytes -= kMostTextBytes + 60;
  }
  return batch;
}

std::vector<int> marks_in(const Spool& spool) {
  std::vector<int> marks;
  const std::string key = "\"joules\":";
  for (std::int64_t i = spool.begin(); i < spool.end(); ++i)
    marks.push_back(std::stoi(spool.line(i).substr(spool.line(i).find(key) + key.size())));
  return marks;
}

std::int64_t dropped_in(const Spool& spool) {
  std::int64_t dropped = 0;
  for (std::int64_t i = spool.begin(); i < spool.end(); ++i)
    for (const Event& e : parsed_line(spool, i).events)
      if (e.kind == "dropped") dropped += e.count;
  return dropped;
}

class SpoolFile : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("molen_spool_{}", ::getpid());
  const fs::path file_ = folder_ / "spool";
};

TEST_F(SpoolFile, KeepsBatchesUntilTheyAreAcknowledged) {
  Spool spool(file_, "n");
  for (int mark = 1; mark <= 5; ++mark) spool.add(marked_batch(mark));
  EXPECT_EQ(marks_in(spool), (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(parsed_line(spool, 2).seq, 3);
  EXPECT_EQ(parsed_line(spool, 2).session, spool.session());
  spool.acknowledge(spool.session(), 3);
  EXPECT_EQ(marks_in(spool), (std::vector<int>{4, 5}));
  EXPECT_EQ(spool.begin(), 3) << "a number belongs to one line for ever";
  spool.acknowledge("another", 9);
  spool.acknowledge(spool.session(), 2);
  EXPECT_EQ(marks_in(spool), (std::vector<int>{4, 5}));
  spool.acknowledge(spool.session(), 5);
  EXPECT_TRUE(spool.empty());
  EXPECT_EQ(fs::file_size(file_), std::strlen(R"({"molen_energy_spool":1,"node":"n"})") + 1);
}

// A number counts from the spool's first line ever, and not from the first one that waits.
TEST_F(SpoolFile, KnowsWhichLineAnAcknowledgementIsOf) {
  Spool spool(file_, "n");
  for (int mark = 1; mark <= 5; ++mark) spool.add(marked_batch(mark));
  spool.acknowledge(spool.session(), 3);
  ASSERT_EQ(spool.begin(), 3);
  EXPECT_TRUE(spool.acknowledges(4, spool.session(), 5));
  EXPECT_FALSE(spool.acknowledges(4, spool.session(), 4)) << "that of the line before";
  EXPECT_TRUE(spool.acknowledges(3, spool.session(), 4));
  EXPECT_FALSE(spool.acknowledges(5, spool.session(), 5)) << "there is no such line yet";
  EXPECT_FALSE(spool.acknowledges(3, "another", 5));
}

TEST_F(SpoolFile, TakesUpWhatAnEarlierSessionLeft) {
  std::string first;
  {
    Spool spool(file_, "n");
    first = spool.session();
    for (int mark = 1; mark <= 3; ++mark) spool.add(marked_batch(mark));
    spool.acknowledge(first, 1);
  }
  Spool spool(file_, "n");
  EXPECT_NE(spool.session(), first);
  spool.add(marked_batch(9));
  // An acknowledged batch may still be in the file; it counts once, by session and number.
  EXPECT_EQ(marks_in(spool), (std::vector<int>{1, 2, 3, 9}));
  EXPECT_EQ(parsed_line(spool, 1).session, first);
  EXPECT_EQ(parsed_line(spool, 1).seq, 2);
  EXPECT_EQ(parsed_line(spool, 3).seq, 1);
  spool.acknowledge(first, 3);
  EXPECT_EQ(marks_in(spool), (std::vector<int>{9}));
}

TEST_F(SpoolFile, DropsTheOldestAndSaysSo) {
  SpoolOptions options;
  options.most_bytes = 256 * 1024;
  std::vector<std::string> said;
  options.say = [&](const std::string& text) { said.push_back(text); };
  constexpr int kBatches = 60;
  const auto check = [&](const Spool& spool) {
    std::size_t bytes = 0;
    for (std::int64_t i = spool.begin(); i < spool.end(); ++i) bytes += spool.line(i).size();
    EXPECT_LE(bytes, options.most_bytes);
    EXPECT_LE(fs::file_size(file_), 2 * options.most_bytes + 100);
  };
  {
    Spool spool(file_, "n", options);
    for (int mark = 1; mark <= kBatches; ++mark) {
      const std::int64_t dropped = spool.dropped();
      spool.add(marked_batch(mark, 20'000));
      check(spool);
      EXPECT_LE(spool.dropped() - dropped, 4) << "an eighth of the spool, and not all that waits";
    }
    EXPECT_GT(spool.dropped(), kBatches / 2);
    EXPECT_EQ(static_cast<std::int64_t>(marks_in(spool).size()) + spool.dropped(), kBatches);
    EXPECT_EQ(marks_in(spool).back(), kBatches) << "the newest stay";
    EXPECT_FALSE(said.empty());
  }
  Spool spool(file_, "n", options);
  EXPECT_EQ(static_cast<std::int64_t>(marks_in(spool).size()) + dropped_in(spool), kBatches)
      << "a report that was dropped itself is in the next one";
  EXPECT_EQ(marks_in(spool).back(), kBatches);
}

TEST_F(SpoolFile, IsRefusedWhenItIsNotThisNodes) {
  const auto refusal = [&](const std::string& node) {
    try {
      Spool(file_, node);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal("n"), "accepted");
  EXPECT_NE(refusal("m").find("belongs to node n, and not to m"), std::string::npos) << refusal("m");
  for (const char* content : {"", "x\n", "{}\n", "[1]\n", R"({"molen_energy_spool":1})"}) {
    std::ofstream(file_) << content;
    EXPECT_NE(refusal("n"), "accepted") << content;
    EXPECT_EQ(read_file(file_), content) << "left as it was";
  }
  std::ofstream(file_) << R"({"molen_energy_spool":2,"node":"n"})";
  EXPECT_NE(refusal("n").find("another version"), std::string::npos);
  fs::remove(file_);
  Spool spool(file_, "n");
  EXPECT_NE(refusal("n").find("another process"), std::string::npos) << refusal("n");
  EXPECT_THROW(Spool(folder_ / "none/spool", "n"), Error);
}

TEST_F(SpoolFile, WaitsForAnotherProcess) {
  auto before = std::make_unique<Spool>(file_, "n");
  before->add(marked_batch(1));
  const double start_s = now().value;
  EXPECT_THROW(Spool(file_, "n", {.wait_s = 0.2}), UsageError);
  EXPECT_GE(now().value - start_s, 0.2);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    before.reset();
  });
  const Spool next(file_, "n", {.wait_s = 60});
  ends.join();
  EXPECT_LT(now().value - start_s, 30);
  EXPECT_EQ(marks_in(next), (std::vector<int>{1}));
}

TEST_F(SpoolFile, AStopShortensTheWait) {
  auto before = std::make_unique<Spool>(file_, "n");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[1]);
  double start_s = now().value;
  EXPECT_THROW(Spool(file_, "n", {.wait_s = 120, .stop = ends[0]}), SpoolInUse);
  EXPECT_GE(now().value - start_s, kSpoolStoppedWaitS) << "the other one may be about to end too";
  EXPECT_LT(now().value - start_s, 60);
  start_s = now().value;
  EXPECT_THROW(Spool(file_, "n", {.wait_s = 0.1, .stop = ends[0]}), SpoolInUse);
  EXPECT_LT(now().value - start_s, kSpoolStoppedWaitS) << "it lengthens no wait";
  ::close(ends[0]);
}

TEST_F(SpoolFile, ReportsLinesThatCannotBeRead) {
  {
    Spool spool(file_, "n");
    for (int mark = 1; mark <= 3; ++mark) spool.add(marked_batch(mark));
  }
  std::string content = read_file(file_);
  content.replace(content.find("\"joules\":2"), 10, "\"joules\":x");
  content += R"({"session":"s","seq":)";
  std::ofstream(file_) << content;
  std::vector<std::string> said;
  {
    Spool spool(file_, "n", {.say = [&](const std::string& text) { said.push_back(text); }});
    EXPECT_EQ(marks_in(spool), (std::vector<int>{1, 3}));
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("2 lines could not be read"), std::string::npos) << said[0];
    spool.add(marked_batch(4));
    spool.add(marked_batch(5));
    EXPECT_EQ(dropped_in(spool), 2) << "the next batch reports them, and the one after it does not";
  }
  Spool spool(file_, "n");
  EXPECT_EQ(marks_in(spool), (std::vector<int>{1, 3, 4, 5}));
}

TEST_F(SpoolFile, GoesOnInMemoryWhileTheDiskIsFull) {
  std::vector<std::string> said;
  Spool spool(file_, "n", {.say = [&](const std::string& text) { said.push_back(text); }});
  spool.add(marked_batch(1));
  {
    FaultyFileSystem faulty(folder_);
    const FileSystemOverride instead(faulty);
    faulty.fail_from(0, ENOSPC);
    for (int mark = 2; mark <= 4; ++mark) spool.add(marked_batch(mark));
  }
  EXPECT_EQ(said.size(), 1u) << "said once";
  EXPECT_EQ(marks_in(spool), (std::vector<int>{1, 2, 3, 4}));
  spool.add(marked_batch(5));
  EXPECT_EQ(said.size(), 2u);
  // Everything is on the disk again.
  const std::string content = read_file(file_);
  for (int mark = 1; mark <= 5; ++mark)
    EXPECT_NE(content.find(fmt::format("\"joules\":{}.0", mark)), std::string::npos) << content;
}

// The deeds of a session before the power went: the batches whose `add` returned, and how many were acknowledged.
struct Course {
  std::set<int> added;
  int acknowledged = 0;
};

constexpr int kCourseBatches = 9;

Course run_session(const fs::path& file, const FaultyFileSystem& faulty) {
  Course course;
  SpoolOptions options;
  options.most_bytes = 256 * 1024;
  Spool spool(file, "n", options);
  for (int mark = 1; mark <= kCourseBatches; ++mark) {
    spool.add(marked_batch(mark, 50'000));
    // After the cut it goes on in memory, because it takes the failure for a full disk.
    if (faulty.was_cut()) break;
    course.added.insert(mark);
    if (mark != 2 && mark != 3) continue;
    spool.acknowledge(spool.session(), mark - 1 + (mark == 3));  // of two batches the first, then all three
    course.acknowledged = mark == 2 ? 1 : 3;
  }
  EXPECT_TRUE(faulty.was_cut() || spool.dropped() > 0) << "the course has the dropping too";
  return course;
}

void check_after_cut(const fs::path& file, const Course& course) {
  if (!fs::exists(file)) {
    EXPECT_TRUE(course.added.empty());
    return;
  }
  const Spool spool(file, "n");
  const auto present = marks_in(spool);
  std::int64_t missing = 0;
  for (const int mark : course.added) {
    if (mark <= course.acknowledged || std::ranges::count(present, mark) == 1) continue;
    ++missing;
    EXPECT_TRUE(present.empty() || mark < present.front()) << "only the oldest are dropped: " << mark;
  }
  EXPECT_LE(missing, dropped_in(spool)) << "what is missing was reported";
  EXPECT_TRUE(std::ranges::is_sorted(present));
}

TEST_F(SpoolFile, APowerCutLosesNothingThatWasAdded) {
  UnsyncedFileSystem unsynced;
  const FileSystemOverride prepared(unsynced);
  std::int64_t call = 0;
  for (bool was_cut = true; was_cut; ++call) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "live");
    FaultyFileSystem faulty(folder_ / "live");
    faulty.cut_at(call);
    Course course;
    try {
      const FileSystemOverride instead(faulty);
      course = run_session(folder_ / "live/spool", faulty);
    } catch (const Error&) {
      EXPECT_TRUE(faulty.was_cut());
    }
    was_cut = faulty.was_cut();
    const Durable others[] = {Durable::kEntries, Durable::kRandom, Durable::kAsWritten};
    for (const Durable which : {Durable::kSynced, others[call % 3]}) {
      SCOPED_TRACE(fmt::format("cut before call {}, kind {}", call, static_cast<int>(which)));
      faulty.lay_out(folder_ / "after", which, static_cast<std::uint64_t>(call));
      check_after_cut(folder_ / "after/spool", course);
      fs::remove_all(folder_ / "after");
    }
  }
  fmt::print("the course makes {} calls\n", call - 1);
  EXPECT_GT(call, 25);
}

}  // namespace
}  // namespace molen::collect
