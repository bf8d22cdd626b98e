// Output about a running job for a person: one line per step, as a pure function of plain numbers, and the writer that
// rewrites one line in place on a terminal. Reads no environment: the program that owns the terminal passes its
// settings.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace molen::store {

// Width limits of our lines in columns: on a terminal, and in a log.
inline constexpr int kTerminalColumns = 100, kLogColumns = 120;

// One step. Values that were not measured are absent and not shown.
struct ConsoleStep {
  std::int64_t step = 0, steps = 0;  // this step and the schedule's horizon; steps <= 0: no horizon
  double loss = 0;                   // mean over the valid tokens of the global batch
  double grad_norm = 0;              // before clipping
  double lr = 0;
  std::optional<double> loss_scale;           // absent when the loss is not scaled
  std::optional<std::int64_t> skipped_steps;  // number of steps of the run so far whose update was skipped
  bool skipped = false;                       // whether this step's update was skipped
  std::int64_t tokens_total = 0;
  double step_s = 0, tokens_per_s = 0;
  std::string flops_formula;                                // e.g. "palm"; shown beside MFU
  std::optional<double> tflops;                             // model TFLOP/s per device
  std::optional<double> mfu;                                // a fraction, 0 to 1
  std::optional<std::int64_t> memory_peak, memory_planned;  // as in metrics.h
  double data_wait_s = 0;
  std::optional<double> j_per_token, watts;
  std::optional<double> kwh_total, kg_co2e_total;    // of the run so far
  std::optional<double> kwh_at_end, kg_co2e_at_end;  // the forecast of these
  std::optional<double> modelled_watts;              // of parts that no meter reads; in none of the values above
  bool energy_partial = false;                       // the energy values leave something out; they are marked with ~
  std::optional<double> eta_s;
};

struct ConsoleStyle {
  bool color = false;
  int width = 0;  // in columns; 0: no limit. Fields are left out, the least needed first, until the line fits
};

// Chooses the style from a terminal's environment. `no_color` and `term` are NO_COLOR and TERM (null: not set). A
// NO_COLOR that is set and not empty (no-color.org), TERM=dumb, or no terminal mean no colour. `columns`: the
// terminal's width, 0 when unknown.
ConsoleStyle console_style(const char* no_color, const char* term, bool terminal, int columns);

// Returns a line such as "step 120/2000 | loss 4.1234 | gnorm 0.812 | lr 3.00e-04 | 12.3 k tok/s | 0.51 TFLOP/s | ...",
// without a newline. Shows the memory when it differs from the plan, and the wait for data when it took a thousandth of
// the step.
std::string step_line(const ConsoleStep& step, const ConsoleStyle& style = {});
// Returns the line that is rewritten in place, such as "[####------------] 120/2000 | loss 4.1234 | 12.3 k tok/s | MFU
// 41.3% | eta 15:40".
std::string progress_line(const ConsoleStep& step, const ConsoleStyle& style = {});

// Returns "[####------------]" for the finished share, 0 to 1.
std::string progress_bar(double done);

// Breaks `text` at spaces into lines of at most `width` columns and indents the lines after the first. A longer word
// has its own line. Width 0: unchanged.
std::string wrapped(std::string_view text, int width);

// Return three digits in the largest unit of which there is one at least: "12.3 kWh", "4.56 MWh"; "3.46 kg CO2e".
std::string energy_text(double kwh);
std::string emissions_text(double kg_co2e);

// Returns "3 d 04:05", "04:05:06" or "05:06"; "-" for a negative or non-finite value.
std::string duration(double seconds);

// Returns the number of columns of one of our lines: its bytes without colour sequences (our lines are ASCII).
int visible_columns(std::string_view line);

// Writes to `file` (owned by the caller). On a terminal the current step's line overwrites the previous one; elsewhere
// no line is rewritten. A failed write (a closed pipe, say) is ignored: a run must not end because nobody reads its
// output.
class LiveLine {
 public:
  LiveLine(std::FILE* file, bool terminal);
  ~LiveLine();  // ends a line that is still in place
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  // Shows the line in place; does nothing without a terminal.
  void show(const std::string& line);
  // Writes a permanent line above the live line, which is cleared and then shown again.
  void note(const std::string& line);
  // Ends the live line, so that other output begins on its own line.
  void finish();

 private:
  std::FILE* file_;
  bool terminal_;
  std::string live_;  // the line on the terminal without a newline
};

}  // namespace molen::store
