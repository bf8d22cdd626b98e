// A Timeline: when each op of an expanded program ran. exec measures it and sim predicts it, in the same form.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

struct OpTime {
  double start_s = 0.0, end_s = 0.0;  // from the step's start
  // CPU seconds of the thread that ran the op. They are less than seconds() when the thread slept or shared its core,
  // and equal to seconds() on other devices or when no thread shares a core.
  double cpu_s = 0.0;
  // The part of seconds() in which a collective waited for ranks that came later; 0 when it was not measured.
  double waited_s = 0.0;
  // The parts of seconds() and of cpu_s that the op's epilogues took. They are 0 on devices, because the kernels of a
  // device are measured as a whole.
  std::array<double, kNumEpilogues> epilogue_s{}, epilogue_cpu_s{};
  double seconds() const { return end_s - start_s; }
};

struct Timeline {
  std::vector<OpTime> ops;  // per op of the expansion
  double total_s = 0.0;     // the whole step on this rank
  // The start of the step on the steady clock (base/clock.h: now_ns), which all ranks of a host share; 0 in a predicted
  // timeline.
  std::int64_t start_ns = 0;
};

// Splits the seconds of a step (docs/formats/metrics.md). A phase gets the time of its ops on the compute stream; the
// time of its ops on the host's cores in which compute is idle; and the time of its collectives and copies in which
// compute and host are idle. The values add up to total_s.
struct PhaseSeconds {
  std::array<double, kNumPhases> phase_s{};
  double bubble_s = 0.0;               // idle time due to other stages of a pipeline; 0 without a pipeline
  double idle_s = 0.0;                 // no op ran on any stream: between ops, and until the rank could continue
  std::vector<double> values() const;  // in the order of phase_keys
};
// Keys of `phase_s` in metrics.jsonl: the phases, "bubble" and "idle".
std::vector<std::string> phase_keys();
PhaseSeconds phase_seconds(const Setting& setting, const std::vector<Expanded>& ops, const Timeline& timeline);

// The time of a step in which no op of the compute stream ran, divided among the streams that worked meanwhile, in the
// order in which PhaseSeconds divides it. `rest`: no op ran on any stream.
struct IdleSeconds {
  std::array<double, kNumStreams> by_stream{};  // 0 for the compute stream
  double rest = 0.0;
  double of(Stream stream) const { return by_stream[static_cast<std::size_t>(stream)]; }
};
IdleSeconds idle_seconds(const std::vector<Expanded>& ops, const Timeline& timeline);

// Communication over an axis: how long it took, and how much of that time overlapped computation.
struct Overlap {
  double seconds = 0.0, hidden_s = 0.0;
  double share() const { return seconds > 0.0 ? hidden_s / seconds : 1.0; }
};
Overlap overlap_of(const std::vector<Expanded>& ops, const Timeline& timeline, Axis axis);
// Returns the seconds in which nothing is computed beside communication over the axes of a stream (stream_of),
// wherever the program puts that communication.
double exposed_seconds(const std::vector<Expanded>& ops, const Timeline& timeline, Stream comm);

// An op's own work, or one of its epilogues: one row of the tables by kind.
struct Work {
  std::string kind;  // kind_of
  double seconds = 0.0, cpu_s = 0.0;
  std::int64_t bytes = 0;
};
// Returns the op's own work, followed by its epilogues in their order. Their seconds add up to the op's seconds without
// waiting. waited_s is estimated from the times of other ranks. When it leaves less time than the epilogues took, the
// own work is 0.
std::vector<Work> work_of(const Step& step, const OpTime& time);

}  // namespace molen::program
