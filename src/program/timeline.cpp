#include "program/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace molen::program {

namespace {

// Ops of a stream follow each other.
std::vector<OpTime> times_of(const std::vector<Expanded>& ops, const Timeline& timeline, Stream stream) {
  std::vector<OpTime> times;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].step->stream == stream) times.push_back(timeline.ops[i]);
  return times;
}

// Seconds of `op` beside `others`, which follow each other; those before `first` have ended, and for the next op too.
double beside(const OpTime& op, const std::vector<OpTime>& others, std::size_t& first) {
  while (first < others.size() && others[first].end_s <= op.start_s) ++first;
  double seconds = 0.0;
  for (std::size_t k = first; k < others.size() && others[k].start_s < op.end_s; ++k)
    seconds += std::min(op.end_s, others[k].end_s) - std::max(op.start_s, others[k].start_s);
  return seconds;
}

}  // namespace

PhaseSeconds phase_seconds(const std::vector<Expanded>& ops, const Timeline& timeline) {
  MOLEN_CHECK(ops.size() == timeline.ops.size(), "a timeline of {} ops for a program of {}", timeline.ops.size(),
              ops.size());
  PhaseSeconds result;
  double busy = 0.0;
  const std::vector<OpTime> compute = times_of(ops, timeline, Stream::kCompute);
  std::size_t first = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Stream stream = ops[i].step->stream;
    if (stream != Stream::kCompute && stream != Stream::kHost) continue;
    double s = timeline.ops[i].seconds();
    if (stream == Stream::kHost) s -= beside(timeline.ops[i], compute, first);
    result.phase_s[static_cast<std::size_t>(ops[i].step->phase)] += s;
    busy += s;
  }
  result.bubble_s = timeline.total_s - busy;
  return result;
}

Overlap overlap_of(const std::vector<Expanded>& ops, const Timeline& timeline, Axis axis) {
  MOLEN_CHECK(ops.size() == timeline.ops.size(), "a timeline of {} ops for a program of {}", timeline.ops.size(),
              ops.size());
  const std::vector<OpTime> compute = times_of(ops, timeline, Stream::kCompute);
  Overlap overlap;
  std::size_t first = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (axis_of(ops[i].step->op) != axis) continue;
    const OpTime& t = timeline.ops[i];
    overlap.seconds += t.seconds();
    overlap.hidden_s += beside(t, compute, first);
  }
  return overlap;
}

Comparison compare(const std::vector<Expanded>& ops, const Timeline& predicted, const Timeline& measured) {
  MOLEN_CHECK(ops.size() == predicted.ops.size() && ops.size() == measured.ops.size(),
              "timelines of different programs");
  Comparison c;
  std::map<std::string, KindRow> rows;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const std::string kind = kind_of(ops[i].step->op);
    KindRow& row = rows[kind];
    row.kind = kind;
    ++row.count;
    row.predicted_s += predicted.ops[i].seconds();
    row.measured_s += measured.ops[i].seconds() - measured.ops[i].waited_s;
    row.waited_s += measured.ops[i].waited_s;
    row.bytes += ops[i].step->moved.value;
  }
  for (auto& [kind, row] : rows) c.rows.push_back(row);
  std::stable_sort(c.rows.begin(), c.rows.end(), [](const KindRow& a, const KindRow& b) {
    return a.measured_s + a.waited_s > b.measured_s + b.waited_s;
  });
  c.predicted_step_s = predicted.total_s;
  c.measured_step_s = measured.total_s;
  return c;
}

std::string to_table(const Comparison& c) {
  constexpr std::string_view kLine = "{:<28} {:>6} {:>10} {:>10} {:>8} {:>10} {:>10}\n";
  std::string text = fmt::format(kLine, "op", "count", "predicted", "measured", "error", "waiting", "bytes");
  const auto line = [&](const std::string& name, int count, double predicted, double measured, double waited,
                        std::int64_t bytes) {
    text += fmt::format(kLine, name, count, human(Seconds(predicted)), human(Seconds(measured)),
                        measured > 0 ? fmt::format("{:+.1f}%", 100.0 * (predicted - measured) / measured) : "-",
                        waited > 0 ? human(Seconds(waited)) : "-", bytes > 0 ? human(Bytes(bytes)) : "-");
  };
  int count = 0;
  for (const KindRow& row : c.rows) {
    line(row.kind, row.count, row.predicted_s, row.measured_s, row.waited_s, row.bytes);
    count += row.count;
  }
  line("step", count, c.predicted_step_s, c.measured_step_s, 0, 0);
  return text;
}

}  // namespace molen::program
