// molen report RUN: one self-contained HTML page of a run. No network: style, scripts (uPlot and ours) and data stand
// in the page, so it opens from file:// and by mail. Without scripts, and on paper, its charts are SVG; each has its
// table.
#pragma once

#include "base/file.h"
#include "base/json.h"

namespace molen::serve {

// Reads the run directory (DESIGN section 5) and writes the page atomically. Torn lines and damaged files beside the
// metrics are left out and named on the page. Throws UsageError where there is no run, Error where `output` cannot be
// written.
void write_report(const fs::path& run_directory, const fs::path& output);

// The figures of the page's head, for `--format json`; null where nothing was measured.
Json summary(const fs::path& run_directory);

}  // namespace molen::serve
