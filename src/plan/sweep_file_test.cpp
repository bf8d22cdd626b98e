#include "plan/sweep_file.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"

namespace molen::plan {
namespace {

class SweepInAFolder : public testing::Test {
 protected:
  SweepInAFolder() {
    std::string name = (fs::temp_directory_path() / "molen_sweep_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    plan_.sizes.push_back({0, 1});
    plan_.measured = true;
  }
  ~SweepInAFolder() override { remove_tree(folder_); }

  static TrialRow row_of(const std::string& trial, double seconds = 1.0) {
    TrialRow row;
    row.trial = trial;
    row.outcome.kind = Outcome::Kind::kStep;
    row.outcome.figures.step_s = row.outcome.figures.low_s = row.outcome.figures.high_s = seconds;
    row.outcome.figures.tokens = 64;
    return row;
  }
  std::unique_ptr<SweepFile> open() const {
    return std::make_unique<SweepFile>(folder_, [](const std::string& text) { ADD_FAILURE() << text; });
  }
  // Returns the message with which the file is refused; "" if it is taken.
  std::string refusal() const {
    try {
      open();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
  std::string line_of(const TrialRow& row) const { return to_json(plan_, row).dump() + "\n"; }
  fs::path file() const { return folder_ / "sweep.jsonl"; }

  fs::path folder_;
  SweepPlan plan_;
};

TEST_F(SweepInAFolder, RowsOfOtherSweepsStayBehindThoseOfThisOne) {
  open()->finish(plan_, {row_of("a"), row_of("b")});
  const auto next = open();
  EXPECT_EQ(next->kept().size(), 2U);
  next->append(plan_, row_of("c"));
  EXPECT_EQ(read_file(file()), line_of(row_of("a")) + line_of(row_of("b")) + line_of(row_of("c"))) << "at once";
  next->finish(plan_, {row_of("c"), row_of("b", 2.0)});
  EXPECT_EQ(read_file(file()), line_of(row_of("c")) + line_of(row_of("b", 2.0)) + line_of(row_of("a")));
}

// Both would write the file anew at their end, the second one without the trials of the first.
TEST_F(SweepInAFolder, ASecondSweepIsRefused) {
  auto first = open();
  EXPECT_NE(refusal().find(folder_.string()), std::string::npos) << refusal();
  EXPECT_NE(refusal().find(store::Owner::self().text()), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("another folder (--output)"), std::string::npos) << refusal();
  first.reset();
  EXPECT_EQ(refusal(), "");
}

TEST_F(SweepInAFolder, ASweepThatWasOvertakenWritesNothing) {
  const auto first = open();
  first->append(plan_, row_of("a"));
  const std::string before = read_file(file());
  write_file_atomic(folder_ / "lease-000000002.json", "{}");
  EXPECT_THROW(first->append(plan_, row_of("b")), store::LeaseHeld);
  EXPECT_THROW(first->finish(plan_, {row_of("b")}), store::LeaseHeld);
  EXPECT_EQ(read_file(file()), before);
}

// A sweep that is killed leaves a last line without its end. After it the file is whole again: the next row must not
// stand behind a damaged line.
TEST_F(SweepInAFolder, ALastLineThatWasCutShortIsRemoved) {
  const std::string first = line_of(row_of("a")), second = line_of(row_of("b"));
  write_file_atomic(file(), first + second.substr(0, second.size() / 2));
  const auto next = open();
  EXPECT_EQ(next->kept().size(), 1U);
  next->append(plan_, row_of("c"));
  EXPECT_EQ(read_file(file()), first + line_of(row_of("c")));
}

TEST_F(SweepInAFolder, OtherDamageIsRefused) {
  const std::string first = line_of(row_of("a")), half = first.substr(0, first.size() / 2) + "\n";
  for (const auto& [text, at] : {std::pair{half + first, ":1"}, {first + half + first, ":2"}, {first + half, ":2"}}) {
    write_file_atomic(file(), text);
    EXPECT_NE(refusal().find("sweep.jsonl" + std::string(at) + ":"), std::string::npos) << refusal();
    EXPECT_NE(refusal().find("delete the line"), std::string::npos) << refusal();
    EXPECT_EQ(read_file(file()), text) << "nothing is lost";
  }
}

}  // namespace
}  // namespace molen::plan
