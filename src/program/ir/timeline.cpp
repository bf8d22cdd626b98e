#include "program/ir/timeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace molen::program {

namespace {

// Returns the times of the ops of a stream. The ops of a stream do not overlap.
std::vector<OpTime> times_of(const std::vector<Expanded>& ops, const Timeline& timeline, Stream stream) {
  std::vector<OpTime> times;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].step->stream == stream) times.push_back(timeline.ops[i]);
  return times;
}

// Returns for how long `op` ran at the same time as `others`, which do not overlap each other. Ops of `others` with an
// index below `first` ended before `op` started, and thus also before the next op that this function is called with.
double beside(const OpTime& op, const std::vector<OpTime>& others, std::size_t& first) {
  while (first < others.size() && others[first].end_s <= op.start_s) ++first;
  double seconds = 0.0;
  for (std::size_t k = first; k < others.size() && others[k].start_s < op.end_s; ++k)
    seconds += std::min(op.end_s, others[k].end_s) - std::max(op.start_s, others[k].start_s);
  return seconds;
}

struct Gap {
  double begin_s = 0.0, end_s = 0.0;
};

// Returns the spans of the step in which no op of the compute stream ran.
std::vector<Gap> idle_of(const std::vector<OpTime>& compute, double total_s) {
  std::vector<Gap> idle;
  double end = 0.0;
  for (const OpTime& op : compute) {
    if (op.start_s > end) idle.push_back({end, op.start_s});
    end = std::max(end, op.end_s);
  }
  if (total_s > end) idle.push_back({end, total_s});
  return idle;
}

// Calls `found` with each op of a stream and the op's seconds within `idle`. Returns the parts of `idle` in which no op
// of the stream ran. The ops of a stream do not overlap.
template <class Found>
std::vector<Gap> without(const std::vector<Gap>& idle, const std::vector<Expanded>& ops, const Timeline& timeline,
                         Stream stream, Found&& found) {
  std::vector<Gap> rest;
  std::size_t i = 0;
  const auto skip = [&](double before) {
    while (i < ops.size() && (ops[i].step->stream != stream || timeline.ops[i].end_s <= before)) ++i;
  };
  for (Gap gap : idle) {
    for (skip(gap.begin_s); i < ops.size() && timeline.ops[i].start_s < gap.end_s; skip(gap.begin_s)) {
      const OpTime& op = timeline.ops[i];
      const double begin = std::max(gap.begin_s, op.start_s), end = std::min(gap.end_s, op.end_s);
      if (begin > gap.begin_s) rest.push_back({gap.begin_s, begin});
      found(*ops[i].step, end - begin);
      gap.begin_s = end;
      if (end >= gap.end_s) break;
    }
    if (gap.end_s > gap.begin_s) rest.push_back(gap);
  }
  return rest;
}

// The order in which streams get the time in which compute is idle. Messages of a pipeline come after other
// communication, because a stage can wait for its next message while any other op runs.
constexpr std::array kBesideCompute{Stream::kHost,   Stream::kTpComm, Stream::kCpComm,   Stream::kEpComm,
                                    Stream::kDpComm, Stream::kPpComm, Stream::kToDevice, Stream::kToHost};

// Whether the op communicates between stages of a pipeline.
bool between_stages(const Setting& s, const Step& step) {
  const auto axis = axis_of(step.op);
  return s.pipelined() && axis && (*axis == Axis::kPp || *axis == Axis::kEmbedding || *axis == Axis::kWorld);
}

}  // namespace

std::vector<double> PhaseSeconds::values() const {
  std::vector<double> all(phase_s.begin(), phase_s.end());
  all.push_back(bubble_s);
  all.push_back(idle_s);
  return all;
}

std::vector<std::string> phase_keys() {
  std::vector<std::string> keys;
  for (int i = 0; i < kNumPhases; ++i) keys.emplace_back(name_of(static_cast<Phase>(i)));
  keys.emplace_back("bubble");
  keys.emplace_back("idle");
  return keys;
}

PhaseSeconds phase_seconds(const Setting& setting, const std::vector<Expanded>& ops, const Timeline& timeline) {
  MOLEN_CHECK(ops.size() == timeline.ops.size(), "a timeline of {} ops for a program of {}", timeline.ops.size(),
              ops.size());
  PhaseSeconds result;
  const auto book = [&](const Step& step, double s) { result.phase_s[static_cast<std::size_t>(step.phase)] += s; };
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].step->stream == Stream::kCompute) book(*ops[i].step, timeline.ops[i].seconds());
  std::vector<Gap> idle = idle_of(times_of(ops, timeline, Stream::kCompute), timeline.total_s);
  const auto divide = [&](const Step& step, double s) {
    if (between_stages(setting, step))
      result.bubble_s += s;
    else
      book(step, s);
  };
  for (const Stream stream : kBesideCompute) idle = without(idle, ops, timeline, stream, divide);

  for (const Gap& gap : idle) result.idle_s += gap.end_s - gap.begin_s;
  return result;
}

IdleSeconds idle_seconds(const std::vector<Expanded>& ops, const Timeline& timeline) {
  MOLEN_CHECK(ops.size() == timeline.ops.size(), "a timeline of {} ops for a program of {}", timeline.ops.size(),
              ops.size());
  IdleSeconds result;
  std::vector<Gap> idle = idle_of(times_of(ops, timeline, Stream::kCompute), timeline.total_s);
  for (const Stream stream : kBesideCompute)
    idle = without(idle, ops, timeline, stream,
                   [&](const Step&, double s) { result.by_stream[static_cast<std::size_t>(stream)] += s; });
  for (const Gap& gap : idle) result.rest += gap.end_s - gap.begin_s;
  return result;
}

Overlap overlap_of(const std::vector<Expanded>& ops, const Timeline& timeline, Axis axis) {
  MOLEN_CHECK(ops.size() == timeline.ops.size(), "a timeline of {} ops for a program of {}", timeline.ops.size(),
              ops.size());
  // Communication that a program puts on the compute stream is no computation.
  std::vector<OpTime> compute;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].step->stream == Stream::kCompute && !is_communication(ops[i].step->op))
      compute.push_back(timeline.ops[i]);
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

double exposed_seconds(const std::vector<Expanded>& ops, const Timeline& timeline, Stream comm) {
  double exposed = 0.0;
  for (const Axis axis : kAllAxes)
    if (stream_of(axis) == comm) {
      const Overlap overlap = overlap_of(ops, timeline, axis);
      exposed += overlap.seconds - overlap.hidden_s;
    }
  return exposed;
}

std::vector<Work> work_of(const Step& step, const OpTime& time) {
  std::vector<Work> all{{kind_of(step.op), time.seconds() - time.waited_s, time.cpu_s, step.moved.value}};
  for (const EpilogueCost& e : step.epilogues) {
    const auto k = static_cast<std::size_t>(e.kind);
    all.push_back({kind_of(e.kind), time.epilogue_s[k], time.epilogue_cpu_s[k], e.moved.value});
    all[0].seconds -= time.epilogue_s[k];
    all[0].cpu_s -= time.epilogue_cpu_s[k];
  }
  all[0].seconds = std::max(all[0].seconds, 0.0);
  all[0].cpu_s = std::max(all[0].cpu_s, 0.0);
  return all;
}

}  // namespace molen::program
