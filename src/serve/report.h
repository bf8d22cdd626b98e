// molen report RUN: writes one self-contained HTML page of a run. The page holds its style, scripts (uPlot and ours)
// and data and needs no network, so it opens from file:// and by mail. Without scripts, and on paper, its charts are
// SVG; each chart has its table.
#pragma once

#include "base/file.h"
#include "base/json.h"

namespace molen::serve {

// Reads the run directory (docs/formats) and writes the page atomically. Torn lines and damaged files beside the
// metrics are left out and named on the page. `predicted`: the prediction that the run's figures stand beside; null:
// that of predicted.json. Throws UsageError when there is no run, and Error when `output` cannot be written.
void write_report(const fs::path& run_directory, const fs::path& output, const Json& predicted = nullptr);

// Returns the figures of the page's head, for `--format json`; null for a figure that was not measured.
Json summary(const fs::path& run_directory, const Json& predicted = nullptr);

}  // namespace molen::serve
