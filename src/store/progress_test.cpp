#include "store/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace molen::store {
namespace {

// An in-memory file.
struct Memory {
  char* data = nullptr;
  std::size_t size = 0;
  std::FILE* file = ::open_memstream(&data, &size);
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    std::fclose(file);
    std::free(data);
  }
  std::string text() {
    std::fflush(file);
    return {data, size};
  }
};

TEST(Progress, ALogHasALineAMinute) {
  Memory log, results;
  double time = 1000.0;
  Progress progress("verify", {nullptr, log.file, results.file, 100}, [&] { return time; });
  for (int i = 0; i <= 100; ++i, time += 3.0) progress.at("layouts", i / 100.0, "FULL_SHARD");
  EXPECT_EQ(log.text(),
            "verify layouts: 20% | FULL_SHARD | eta 04:00\n"
            "verify layouts: 40% | FULL_SHARD | eta 03:00\n"
            "verify layouts: 60% | FULL_SHARD | eta 02:00\n"
            "verify layouts: 80% | FULL_SHARD | eta 01:00\n"
            "verify layouts: 100% | FULL_SHARD | eta 00:00\n");
  progress.result("a row");
  progress.note("a note");
  EXPECT_EQ(results.text(), "a row\n");
  EXPECT_NE(log.text().find("a note\n"), std::string::npos);
}

// A stage shorter than a minute leaves no line.
TEST(Progress, ALogHasNothingOfShortStages) {
  Memory log;
  double time = 0.0;
  Progress progress("prepare", {nullptr, log.file, log.file, 100}, [&] { return time; });
  for (const char* stage : {"text", "tokens"})
    for (int i = 0; i <= 50; ++i, time += 1.0) progress.at(stage, i / 50.0, "a");
  EXPECT_EQ(log.text(), "");
}

// When half of a stage was done before, the remaining time follows from the pace of the second half alone.
TEST(Progress, WhatWasDoneBeforeIsNoPace) {
  Memory log;
  double time = 0.0;
  Progress progress("prepare", {nullptr, log.file, log.file, 100}, [&] { return time; });
  progress.at("text", 0.5, "a");
  time = 100.0;
  progress.at("text", 0.75, "a");
  EXPECT_EQ(log.text(), "prepare text: 75% | a | eta 01:40\n");
}

// The current item is cut to the room left, and omitted when only a few letters would fit.
TEST(Progress, TheTextFitsItsColumns) {
  const auto text = [](int columns) { return progress_text("verify", "a", 0.5, "0123456789", 60.0, false, columns); };
  EXPECT_EQ(text(40), "verify a: 50% | 0123456789 | eta 01:00");
  EXPECT_EQ(text(38), "verify a: 50% | 0123456789 | eta 01:00");
  EXPECT_EQ(text(37), "verify a: 50% | 012345... | eta 01:00");
  EXPECT_EQ(text(36), "verify a: 50% | eta 01:00");
  EXPECT_EQ(progress_text("verify", "a", -1, "", std::nullopt, true, 40), "verify a [----------------] 0%");
  EXPECT_EQ(progress_text("verify", "a", 2, "b", std::nullopt, false, 40), "verify a: 100% | b");
}

TEST(Progress, ATerminalHasOneLineThatIsRewritten) {
  Memory terminal, log;
  double time = 0.0;
  {
    Progress progress("calibrate", {terminal.file, log.file, terminal.file, 68}, [&] { return time; });
    progress.at("fp32", 0.0, "d 128");
    time = 0.05;
    progress.at("fp32", 0.25, "d 128");  // too soon to rewrite
    time = 10.0;
    progress.at("fp32", 0.5, "d 4096 with a name that does not fit the columns of this terminal");
    progress.result("a row");
    progress.note("elsewhere");
  }
  EXPECT_EQ(log.text(), "elsewhere\n");
  const std::string text = terminal.text();
  EXPECT_EQ(text.find("25%"), std::string::npos);
  EXPECT_EQ(text.substr(0, 1), "\r");
  EXPECT_NE(text.find("calibrate fp32 [########--------] 50% | d 4096 with a... | eta 00:10"), std::string::npos)
      << text;
  EXPECT_NE(text.find("a row"), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
  for (std::size_t at = 0; at < text.size();) {  // no line is wider
    const std::size_t end = std::min(text.find_first_of("\r\n", at), text.size());
    EXPECT_LE(end - at, 68u);
    at = end + 1;
  }
}

}  // namespace
}  // namespace molen::store
