// Describes a run in a few words and figures, for the head of the page and for `molen runs`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/median.h"
#include "serve/run_data.h"

namespace molen::serve {

// Returns the event of the run's last start, or an empty object when there is none.
Json last_start(const RunData& run);
// Returns run.tags of the run's last attempt; none where they are not recorded.
std::vector<std::string> tags_of(const fs::path& run);
// Returns "llama-60m (57.02 M parameters), layers 8, hidden 512, ...", or "" when nothing is known.
std::string model_of(const RunData& run);
// Returns "4 ranks (mpi), pipeline 2, tensor 2". Axes of size 1 are left out, so that the line stays short.
std::string layout_of(const RunData& run);

// How the training ended, according to the last attempt that ran steps. Starts after the training's end do not count.
struct Ending {
  bool stopped = false;   // the last attempt recorded its stop; otherwise it still runs, or was killed
  bool complete = false;  // train.until was reached
  std::string text;       // the reason in words; "" when there are no events
};
Ending ending_of(const RunData& run);

// Seconds since 1970 of the first and the last record; NaN when there is none.
struct Dates {
  double first, last;
  std::int64_t starts;
};
Dates dates_of(const RunData& run);

// A figure of a run: its name, its value as text for people, and as a number (absent when it was not measured).
struct Figure {
  std::string name, text;
  std::optional<double> value;
};
// Returns the figures in a fixed order, the same for every run, so that two runs can be compared side by side: steps,
// tokens, last loss, held-out loss, medians of step time, tokens/s and MFU, memory, joules per token.
std::vector<Figure> figures_of(const RunData& run);

}  // namespace molen::serve
