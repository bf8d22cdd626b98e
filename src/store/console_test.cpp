#include "store/console.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

namespace molen::store {
namespace {

ConsoleStep sample_step() {
  ConsoleStep s;
  s.step = 120;
  s.steps = 2000;
  s.loss = 4.12345;
  s.grad_norm = 0.8123;
  s.lr = 3e-4;
  s.tokens_total = 245760;
  s.step_s = 0.5;
  s.tokens_per_s = 12345;
  s.tflops = 0.514;
  s.mfu = 0.413;
  s.memory_peak = std::int64_t{1} << 30;
  s.memory_planned = std::int64_t{3} << 29;
  s.data_wait_s = 0.005;
  s.j_per_token = 0.01234;
  s.watts = 152.4;
  s.eta_s = 940;
  return s;
}

std::string written(bool terminal, auto&& use) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* file = open_memstream(&text, &size);
  {
    LiveLine live(file, terminal);
    use(live);
  }
  std::fclose(file);
  std::string all(text, size);
  std::free(text);
  return all;
}

TEST(Console, SaysAllOfAStep) {
  EXPECT_EQ(step_line(sample_step()),
            "step 120/2000 | loss 4.1235 | gnorm 0.812 | lr 3.00e-04 | 245.76 k tok | 500.0 ms | 12.35 k tok/s | 0.51 "
            "TFLOP/s | MFU 41.3% | "
            "mem 1.00 GiB of 1.50 GiB planned | data 1.0% | 0.0123 J/tok | 152 W | eta 15:40");
}

TEST(Console, SaysTheEnergyOfTheRunSoFar) {
  ConsoleStep s = sample_step();
  s.kwh_total = 12.345, s.kg_co2e_total = 3.456;
  EXPECT_NE(step_line(s).find("| 0.0123 J/tok | 12.3 kWh 3.46 kg CO2e | 152 W"), std::string::npos) << step_line(s);
  for (const std::string& line : {step_line(s, {false, kLogColumns}), progress_line(s, {false, kLogColumns})}) {
    EXPECT_NE(line.find("12.3 kWh 3.46 kg CO2e"), std::string::npos) << line;
    EXPECT_LE(visible_columns(line), kLogColumns);
  }
  s.kwh_at_end = 14560.0;
  EXPECT_NE(step_line(s).find("| 12.3 kWh 3.46 kg CO2e | 14.6 MWh at the end | "), std::string::npos) << step_line(s);
  s.kg_co2e_at_end = 3901.0;
  EXPECT_NE(step_line(s).find("| 14.6 MWh 3.9 t CO2e at the end | "), std::string::npos) << step_line(s);
  s.kwh_at_end.reset(), s.kg_co2e_at_end.reset();
  s.energy_partial = true, s.kg_co2e_total.reset();
  EXPECT_NE(step_line(s).find("| ~12.3 kWh | ~152 W"), std::string::npos) << step_line(s);
  for (const auto& [kwh, text] : {std::pair{2.78e-7, "0.000278 Wh"},
                                  {0.5, "500 Wh"},
                                  {0.9996, "1 kWh"},
                                  {4560.0, "4.56 MWh"},
                                  {7.8e6, "7.8 GWh"}}) {
    s.kwh_total = kwh;
    EXPECT_NE(step_line(s).find(std::string("~") + text), std::string::npos) << step_line(s);
  }
}

TEST(Console, WrapsTheTextAndNothingBehindIt) {
  EXPECT_EQ(wrapped(std::string_view("ab\n").substr(0, 2), 10), "ab");
}

TEST(Console, ProgressInPlaceFitsATerminalWithAllItSays) {
  const std::string line = progress_line(sample_step(), {false, kTerminalColumns});
  EXPECT_EQ(line, "[----------------] 120/2000 | loss 4.1235 | 12.35 k tok/s | MFU 41.3% | 0.0123 J/tok | eta 15:40");
  EXPECT_LE(visible_columns(line), kTerminalColumns);
  EXPECT_EQ(progress_bar(0.5), "[########--------]");
  EXPECT_EQ(progress_bar(1.0), "[################]");
  EXPECT_EQ(progress_bar(NAN), progress_bar(-1));
  EXPECT_EQ(progress_bar(7), progress_bar(1));
  ConsoleStep s = sample_step();
  s.steps = 0;
  EXPECT_TRUE(progress_line(s).starts_with("step 120 | loss"));
  s.loss_scale = 32.0;
  EXPECT_EQ(progress_line(s).find("32"), std::string::npos) << "a scale alone is for the full line";
  s.skipped = true, s.skipped_steps = 3;
  EXPECT_NE(progress_line(s).find("skipped: gradient overflows at scale 32, 3 so far"), std::string::npos);
}

TEST(Console, ALogsLineFitsItsColumnsWithAllThatIsMeasured) {
  ConsoleStep s = sample_step();
  s.memory_peak = s.memory_planned;
  s.flops_formula = "causal";
  s.step = 123456, s.steps = 200000;
  const std::string line = step_line(s, console_style(nullptr, nullptr, false, 0));
  EXPECT_LE(visible_columns(line), kLogColumns);
  for (const char* field : {"step 123456/200000", "loss 4.1235", "gnorm 0.812", "12.35 k tok/s", "MFU(causal) 41.3%",
                            "0.0123 J/tok", "eta 15:40"})
    EXPECT_NE(line.find(field), std::string::npos) << field << " in " << line;
}

TEST(Console, LongTextIsBrokenAtSpaces) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\n    three");
  EXPECT_EQ(wrapped("one two three", 0), "one two three");
  EXPECT_EQ(wrapped("a/very/long/path is it", 6), "a/very/long/path\n    is\n    it");
  EXPECT_EQ(wrapped("first line\nsecond", 20), "first line\nsecond");
  EXPECT_EQ(wrapped("  two  spaces", 20), "  two  spaces");
}

RC_GTEST_PROP(Console, WrappedLinesFitAndHoldTheSameWords, ()) {
  const auto lengths = *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 12));
  std::string text;
  for (const int n : lengths) text += (text.empty() ? "" : " ") + std::string(static_cast<std::size_t>(n), 'a');
  const int width = *rc::gen::inRange(16, 60);
  std::string flat, line;
  for (const char c : wrapped(text, width) + "\n") {
    if (c != '\n') {
      line += c;
      continue;
    }
    RC_ASSERT(static_cast<int>(line.size()) <= width);
    const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
    flat += (flat.empty() ? "" : " ") + line.substr(begin);
    line.clear();
  }
  RC_ASSERT(flat == text);
}

TEST(Console, SaysTheLossScaleAndAStepThatWasSkipped) {
  ConsoleStep s = sample_step();
  EXPECT_EQ(step_line(s).find("scale"), std::string::npos);
  s.loss_scale = 65536;
  s.skipped_steps = 2;
  EXPECT_NE(step_line(s).find(" | lr 3.00e-04 | scale 65536 | "), std::string::npos) << step_line(s);
  s.skipped = true;
  s.grad_norm = INFINITY;
  EXPECT_NE(step_line(s).find(" | skipped: gradient overflows at scale 65536, 2 so far | "), std::string::npos)
      << step_line(s);
}

TEST(Console, EnergyOfAPartIsMarked) {
  ConsoleStep s = sample_step();
  s.energy_partial = true;
  EXPECT_NE(step_line(s).find(" ~0.0123 J/tok | ~152 W"), std::string::npos) << step_line(s);
}

TEST(Console, WattsOfAModelStandApart) {
  ConsoleStep s = sample_step();
  const std::string without = step_line(s);
  s.modelled_watts = 450.4;
  std::string line = step_line(s);
  const std::string field = " | model 450 W";
  ASSERT_NE(line.find(field), std::string::npos) << line;
  EXPECT_EQ(line.erase(line.find(field), field.size()), without) << "and change no other field";
}

TEST(Console, WhatSaysNothingIsLeftOut) {
  ConsoleStep s = sample_step();
  s.energy_partial = true;
  s.tflops = s.mfu = s.j_per_token = s.watts = s.eta_s = std::nullopt;
  s.memory_peak = s.memory_planned = std::nullopt;
  s.step_s = 0;
  s.tokens_per_s = std::numeric_limits<double>::infinity();
  const std::string line = step_line(s);
  for (const char* field : {"TFLOP/s", "MFU", "mem", "data", "J/tok", " W", "eta"})
    EXPECT_EQ(line.find(field), std::string::npos) << field << " in " << line;
  EXPECT_NE(line.find("| - tok/s"), std::string::npos) << line;
  s = sample_step();
  s.mfu = NAN;
  s.step_s = NAN;
  s.eta_s = INFINITY;
  s.memory_peak = s.memory_planned;
  for (const char* field : {"MFU", "data", "eta", "mem"})
    EXPECT_EQ(step_line(s).find(field), std::string::npos) << field << " in " << step_line(s);
  s = sample_step();
  s.data_wait_s = 0;
  EXPECT_EQ(step_line(s).find("data"), std::string::npos);
}

TEST(Console, NamesTheFormulaBesideMfu) {
  ConsoleStep s;
  s.flops_formula = "palm";
  EXPECT_EQ(step_line(s).find("MFU"), std::string::npos) << step_line(s);
  s.mfu = 0.413;
  EXPECT_NE(step_line(s).find("| MFU(palm) 41.3%"), std::string::npos) << step_line(s);
}

TEST(Console, ABrokenLossStandsOut) {
  ConsoleStep s = sample_step();
  s.loss = NAN;
  EXPECT_NE(step_line(s).find("loss nan"), std::string::npos);
  EXPECT_NE(step_line(s, {true, 0}).find("\x1b[1;31mloss nan\x1b[0m"), std::string::npos);
}

TEST(Console, ColourFollowsTheConventions) {
  EXPECT_TRUE(console_style(nullptr, "xterm", true, 80).color);
  EXPECT_TRUE(console_style("", "xterm", true, 80).color);  // no-color.org: set and not empty
  EXPECT_FALSE(console_style("1", "xterm", true, 80).color);
  EXPECT_FALSE(console_style(nullptr, "dumb", true, 80).color);
  EXPECT_FALSE(console_style(nullptr, nullptr, true, 80).color);
  EXPECT_FALSE(console_style(nullptr, "xterm", false, 80).color);
  EXPECT_EQ(console_style(nullptr, "xterm", false, 80).width, kLogColumns);
  EXPECT_EQ(console_style(nullptr, "xterm", true, 80).width, 79);
  EXPECT_EQ(console_style(nullptr, "xterm", true, 300).width, kTerminalColumns);
  EXPECT_EQ(console_style(nullptr, "xterm", true, 0).width, kTerminalColumns);
}

RC_GTEST_PROP(Console, FitsAnyWidthAndKeepsTheStep, ()) {
  const int width = *rc::gen::inRange(1, 300);
  const ConsoleStep s = sample_step();
  const std::string line = step_line(s, {true, width});
  RC_ASSERT(visible_columns(line) <= width);
  RC_ASSERT(step_line(s, {false, width}).substr(0, 13) ==
            std::string("step 120/2000").substr(0, static_cast<std::size_t>(width)));
  RC_ASSERT(visible_columns(line) == static_cast<int>(step_line(s, {false, width}).size()));
}

TEST(Console, KeepsTheMostNeededFields) {
  EXPECT_EQ(step_line(sample_step(), {false, 52}), "step 120/2000 | loss 4.1235 | 12.35 k tok/s");
}

// The order in which fields are left out when columns are short: the step and the loss stay longest.
TEST(Console, LeavesOutTheLeastNeededFirst) {
  ConsoleStep s = sample_step();
  s.loss_scale = 65536;
  const std::vector<std::string> order{" W",    " k tok |", "TFLOP/s", "500.0 ms", "scale ", "lr ",   "data ",
                                       "gnorm", "mem ",     "J/tok",   "MFU",      "eta ",   "tok/s", "loss"};
  std::vector<std::string> gone;
  for (int width = 300; width > 0; --width) {
    const std::string line = step_line(s, {false, width}) + " |";
    EXPECT_TRUE(line.starts_with(std::string("step 120/2000").substr(0, static_cast<std::size_t>(width))));
    for (const std::string& field : order)
      if (line.find(field) == std::string::npos && std::find(gone.begin(), gone.end(), field) == gone.end())
        gone.push_back(field);
  }
  // When two fields are equally needed, the first one in the line is left out first.
  std::vector<std::string> expected = order;
  std::swap(expected[2], expected[3]);
  std::swap(expected[4], expected[5]);
  EXPECT_EQ(gone, expected);
}

TEST(Console, Durations) {
  EXPECT_EQ(duration(0), "00:00");
  EXPECT_EQ(duration(59.6), "01:00");
  EXPECT_EQ(duration(3661), "01:01:01");
  EXPECT_EQ(duration(86400 * 3 + 4 * 3600 + 5 * 60), "3 d 04:05");
  EXPECT_EQ(duration(-1), "-");
  EXPECT_EQ(duration(NAN), "-");
  EXPECT_EQ(duration(INFINITY), "-");
}

TEST(LiveLine, NothingStandsInPlaceWithoutATerminal) {
  EXPECT_EQ(written(false, [](LiveLine& live) { live.show("a"), live.note("n"), live.show("b"); }), "n\n");
}

TEST(LiveLine, OneLineInPlaceOnATerminal) {
  EXPECT_EQ(written(true, [](LiveLine& live) { live.show("long line"), live.show("ab"), live.show("c"); }),
            "\rlong line\rab       \rc \n");
  EXPECT_EQ(written(true, [](LiveLine& live) { live.show("abc"), live.note("n"); }), "\rabc\rn  \nabc\n");
}

TEST(LiveLine, AClosedReaderEndsNoRun) {
  std::FILE* full = std::fopen("/dev/full", "w");
  if (full == nullptr) GTEST_SKIP() << "no /dev/full";
  LiveLine live(full, false);
  EXPECT_NO_THROW(live.note("x"));
  live.finish();
  std::fclose(full);
}

}  // namespace
}  // namespace molen::store
