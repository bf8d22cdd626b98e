// What a person sees of a running job: a line a step, as a pure function of plain numbers, and the writer that rewrites
// one line in place on a terminal. No environment is read here: the program that owns the terminal passes what it
// found.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace molen::store {

// Columns that lines of ours fit: on a terminal, and in a log.
inline constexpr int kTerminalColumns = 100, kLogColumns = 120;

// One step; what was not measured is absent and not shown.
struct ConsoleStep {
  std::int64_t step = 0, steps = 0;  // this step and the schedule's horizon; steps <= 0: no horizon
  double loss = 0;                   // mean over the valid tokens of the global batch
  double grad_norm = 0;              // before clipping
  double lr = 0;
  std::optional<double> loss_scale;           // no field where the loss is not scaled
  std::optional<std::int64_t> skipped_steps;  // of the run so far
  bool skipped = false;                       // this one
  std::int64_t tokens_total = 0;
  double step_s = 0, tokens_per_s = 0;
  std::string flops_formula;                                // "palm": shown at MFU
  std::optional<double> tflops;                             // model TFLOP/s per device
  std::optional<double> mfu;                                // a fraction, 0 to 1
  std::optional<std::int64_t> memory_peak, memory_planned;  // as in metrics.h
  double data_wait_s = 0;
  std::optional<double> j_per_token, watts;
  bool energy_partial = false;  // they leave something out: marked ~
  std::optional<double> eta_s;
};

struct ConsoleStyle {
  bool color = false;
  int width = 0;  // columns; 0: no limit. Whole fields are left out, the least needed first, until the line fits
};

// What a terminal's environment asks for. `no_color` and `term` are NO_COLOR and TERM (null: not set): a NO_COLOR that
// is set and not empty (no-color.org), TERM=dumb, or no terminal mean no colour. `columns`: of the terminal, 0 where it
// does not say.
ConsoleStyle console_style(const char* no_color, const char* term, bool terminal, int columns);

// "step 120/2000 | loss 4.1234 | gnorm 0.812 | lr 3.00e-04 | 12.3 k tok/s | 0.51 TFLOP/s | ...", without a newline. The
// memory is shown where it is not what was planned, waiting for data where it took a thousandth of the step.
std::string step_line(const ConsoleStep& step, const ConsoleStyle& style = {});
// What stands in place: "[####------------] 120/2000 | loss 4.1234 | 12.3 k tok/s | MFU 41.3% | eta 15:40".
std::string progress_line(const ConsoleStep& step, const ConsoleStyle& style = {});

// "[####------------]": how much of it is done, 0 to 1.
std::string progress_bar(double done);

// `text` in lines of at most `width` columns, broken at spaces, the further ones indented; a word that is longer stands
// alone. Width 0: as it is.
std::string wrapped(std::string_view text, int width);

// "3 d 04:05", "04:05:06", "05:06"; "-" for what is negative or not finite.
std::string duration(double seconds);

// Columns that a line of ours takes: its bytes without colour sequences (our lines are ASCII).
int visible_columns(std::string_view line);

// Writes to `file` (kept by the caller). On a terminal the line of the current step overwrites the last one; elsewhere
// there is none in place. A file that cannot be written (closed pipe) is
// ignored: no run ends for want of a reader.
class LiveLine {
 public:
  LiveLine(std::FILE* file, bool terminal);
  ~LiveLine();  // ends a line that is still in place
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  // In place; nothing without a terminal.
  void show(const std::string& line);
  // A line that stays, above the live one: the live line is cleared and comes back after it.
  void note(const std::string& line);
  // Ends the live line, so that what others print begins on a line of its own.
  void finish();

 private:
  std::FILE* file_;
  bool terminal_;
  std::string live_;  // what stands on the terminal without a newline
};

}  // namespace molen::store
