// Writes Chrome trace JSON, which Perfetto and chrome://tracing open: spans on named threads of named processes, and
// counters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace molen::store {

struct TraceSpan {
  std::string name, category;
  std::string thread;             // the stream; threads are shown in the order in which they first appear
  double start_s = 0, end_s = 0;  // on one clock for all spans; end_s >= start_s
  Json args = Json::object();     // shown with the span
  std::int64_t process = 0;       // the rank
};

struct TraceCounter {
  std::string name;  // one chart per name and process
  double time_s = 0, value = 0;
  std::int64_t process = 0;
};

// Returns the whole document. Times become microseconds since the earliest event (doubles with nanosecond resolution).
// Viewers draw overlapping spans of one thread wrongly unless they nest, so such spans move to further threads "name
// (2)". Throws Error for a time that is not finite or a span that ends before it starts. Leaves out counters that are
// not finite.
std::string trace_json(const std::vector<TraceSpan>& spans, const std::vector<TraceCounter>& counters = {});

}  // namespace molen::store
