#include "store/trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"

namespace molen::store {
namespace {

// Rounds to whole nanoseconds, so that a span that ends where the next one starts does so in the file too.
std::int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}
double microseconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-3;
}

Json metadata(const char* what, std::int64_t pid, std::int64_t tid, Json args) {
  return {{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", std::move(args)}};
}

// One row of the display. Spans arrive in order of their start; open spans are nested.
struct Lane {
  std::int64_t tid;
  std::vector<std::int64_t> open;  // ends, outermost first

  bool takes(std::int64_t start, std::int64_t end) {
    while (!open.empty() && open.back() <= start) open.pop_back();
    if (!open.empty() && end > open.back()) return false;
    open.push_back(end);
    return true;
  }
};

class Lanes {
 public:
  explicit Lanes(Json& events) : events_(events) {}

  // Thread ids in order of first appearance, so the display has the caller's order.
  void announce(std::int64_t pid, const std::string& thread) {
    auto& lanes = lanes_[{pid, thread}];
    if (lanes.empty()) lanes.push_back(add(pid, thread));
  }

  std::int64_t place(std::int64_t pid, const std::string& thread, std::int64_t start, std::int64_t end) {
    auto& lanes = lanes_[{pid, thread}];
    for (Lane& lane : lanes)
      if (lane.takes(start, end)) return lane.tid;
    lanes.push_back(add(pid, thread + " (" + std::to_string(lanes.size() + 1) + ")"));
    lanes.back().takes(start, end);
    return lanes.back().tid;
  }

 private:
  Lane add(std::int64_t pid, const std::string& name) {
    if (processes_.insert(pid).second) {
      events_.push_back(metadata("process_name", pid, 0, {{"name", "rank " + std::to_string(pid)}}));
      events_.push_back(metadata("process_sort_index", pid, 0, {{"sort_index", pid}}));
    }
    const std::int64_t tid = ++threads_[pid];
    events_.push_back(metadata("thread_name", pid, tid, {{"name", name}}));
    events_.push_back(metadata("thread_sort_index", pid, tid, {{"sort_index", tid}}));
    return {tid, {}};
  }

  Json& events_;
  std::set<std::int64_t> processes_;
  std::map<std::int64_t, std::int64_t> threads_;
  std::map<std::pair<std::int64_t, std::string>, std::vector<Lane>> lanes_;
};

double earliest(const std::vector<TraceSpan>& spans, const std::vector<TraceCounter>& counters) {
  double first = std::numeric_limits<double>::infinity();
  for (const TraceSpan& s : spans) {
    if (!std::isfinite(s.start_s) || !std::isfinite(s.end_s))
      throw Error("trace: the times of '{}' are not finite", s.name);
    if (s.end_s < s.start_s) throw Error("trace: '{}' ends before it starts ({} s, {} s)", s.name, s.end_s, s.start_s);
    first = std::min(first, s.start_s);
  }
  for (const TraceCounter& c : counters) {
    if (!std::isfinite(c.time_s)) throw Error("trace: the time of counter '{}' is not finite", c.name);
    first = std::min(first, c.time_s);
  }
  return first;
}

}  // namespace

std::string trace_json(const std::vector<TraceSpan>& spans, const std::vector<TraceCounter>& counters) {
  const double zero = earliest(spans, counters);
  Json events = Json::array();
  Lanes lanes(events);
  for (const TraceSpan& s : spans) lanes.announce(s.process, s.thread);

  // Sorts by start; of equal starts the longer span comes first, so that it is the outer one.
  std::vector<std::size_t> order(spans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto start = [&](std::size_t i) { return nanoseconds(spans[i].start_s - zero); };
  const auto end = [&](std::size_t i) { return nanoseconds(spans[i].end_s - zero); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return start(a) != start(b) ? start(a) < start(b) : end(a) > end(b);
  });
  for (const std::size_t i : order) {
    const TraceSpan& s = spans[i];
    const std::int64_t tid = lanes.place(s.process, s.thread, start(i), end(i));
    events.push_back({{"name", s.name},
                      {"cat", s.category},
                      {"ph", "X"},
                      {"ts", microseconds(start(i))},
                      {"dur", microseconds(end(i) - start(i))},
                      {"pid", s.process},
                      {"tid", tid},
                      {"args", s.args}});
  }
  for (const TraceCounter& c : counters)
    if (std::isfinite(c.value))
      events.push_back({{"name", c.name},
                        {"ph", "C"},
                        {"ts", microseconds(nanoseconds(c.time_s - zero))},
                        {"pid", c.process},
                        {"tid", 0},
                        {"args", {{"value", c.value}}}});
  const Json document = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  // Names may come from anywhere, and invalid UTF-8 in one must not lose the trace: such bytes are replaced.
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace molen::store
