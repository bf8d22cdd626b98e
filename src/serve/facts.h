// What a run comes to in a few words and figures: for the head of the page, and for `molen runs`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/run_data.h"

namespace molen::serve {

// The event of its last start; an empty object where there is none.
Json last_start(const RunData& run);
// "llama-60m (57.02 M parameters), layers 8, hidden 512, ..."; "" where nothing is known.
std::string model_of(const RunData& run);
// "4 ranks (mpi), pipeline 2, tensor 2": what differs from one, so that the line stays short.
std::string layout_of(const RunData& run);

// How the training ended: by the last attempt that ran steps, whatever was started after its end.
struct Ending {
  bool stopped = false;   // the last attempt has said so; else it still runs, or was killed
  bool complete = false;  // train.until was reached
  std::string text;       // the reason in words; "" where there are no events
};
Ending ending_of(const RunData& run);

// Seconds since 1970 of the first and the last thing recorded; NaN where nothing is.
struct Dates {
  double first, last;
  std::int64_t starts;
};
Dates dates_of(const RunData& run);

// Median of the finite values; NaN where there are none.
double median(std::vector<double> values);

// A figure of a run: its name, its value for people, and as a number (absent where it was not measured).
struct Figure {
  std::string name, text;
  std::optional<double> value;
};
// In a fixed order, the same for every run, so that those of two runs stand side by side: steps, tokens, last loss,
// held-out loss, medians of step time, tokens/s and MFU, memory, joules a token.
std::vector<Figure> figures_of(const RunData& run);

}  // namespace molen::serve
