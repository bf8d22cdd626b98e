// The spans of a Timeline in a Chrome trace (store/trace.h). Measured and predicted steps have the same spans.
#pragma once

#include <vector>

#include "program/ir/timeline.h"
#include "store/trace.h"

namespace molen::program {

// Returns a span for each op, on a thread for each stream. The step begins `origin` seconds after the trace does.
// `process` is the number of the rank or of the pipeline stage.
std::vector<store::TraceSpan> spans_of(const std::vector<Expanded>& ops, const Timeline& timeline, double origin,
                                       std::int64_t step, std::int64_t process = 0);

}  // namespace molen::program
