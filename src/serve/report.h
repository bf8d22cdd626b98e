// molen report RUN: one self-contained HTML page of a run. No network, no scripts: charts are SVG, so it prints and works from
// file://, and every chart has its table.
#pragma once

#include <string>

#include "base/file.h"
#include "base/json.h"

namespace molen::serve {

// Reads the run directory and writes the page. Throws UsageError where there is no run.
void write_report(const fs::path& run_directory, const fs::path& output);

// The figures of the page's head, for `--format json`.
Json summary(const fs::path& run_directory);

}  // namespace molen::serve
