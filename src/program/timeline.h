// When each op of an expanded program ran: measured by exec, predicted by sim, in the same form.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace molen::program {

struct OpTime {
  double start_s = 0.0, end_s = 0.0;  // from the step's start
  // What the thread that ran it computed: less than seconds() where it slept or shared its core. On other devices, and
  // where nobody shares, seconds() itself.
  double cpu_s = 0.0;
  // Of seconds(), what a collective waited for ranks that came to it later; 0 where nobody looked.
  double waited_s = 0.0;
  double seconds() const { return end_s - start_s; }
};

struct Timeline {
  std::vector<OpTime> ops;  // per op of the expansion
  double total_s = 0.0;     // the whole step on this rank
};

// Where the seconds of a step went (docs/formats/metrics.md). A phase has what the compute stream runs of it, the
// host's cores where compute does not run beside them, and the time that compute stands idle while one of its
// collectives or copies is on its way. Together they are total_s.
struct PhaseSeconds {
  std::array<double, kNumPhases> phase_s{};
  double bubble_s = 0.0;               // idle for other stages of a pipeline; 0 without one
  double idle_s = 0.0;                 // nothing ran on any stream: between ops, and until the rank could go on
  std::vector<double> values() const;  // by phase_keys
};
// Keys of `phase_s` in metrics.jsonl: the phases, "bubble" and "idle".
std::vector<std::string> phase_keys();
PhaseSeconds phase_seconds(const Setting& setting, const std::vector<Expanded>& ops, const Timeline& timeline);

// Communication over an axis: how long it took, and how much of that ran beside computation.
struct Overlap {
  double seconds = 0.0, hidden_s = 0.0;
  double share() const { return seconds > 0.0 ? hidden_s / seconds : 1.0; }
};
Overlap overlap_of(const std::vector<Expanded>& ops, const Timeline& timeline, Axis axis);

// Predicted beside measured, summed by kind of op.
struct KindRow {
  std::string kind;
  int count = 0;
  double predicted_s = 0.0, measured_s = 0.0;  // measured: without waiting for other ranks
  double waited_s = 0.0;
  std::int64_t bytes = 0;  // memory traffic or payload by the program
};
struct Comparison {
  std::vector<KindRow> rows;  // by measured and waited seconds, largest first
  double predicted_step_s = 0.0, measured_step_s = 0.0;
  std::string extrapolated;  // from what the prediction is derived where its conditions were not measured
  // (predicted - measured) / measured.
  double step_error() const {
    return measured_step_s > 0 ? (predicted_step_s - measured_step_s) / measured_step_s : 0.0;
  }
};
Comparison compare(const std::vector<Expanded>& ops, const Timeline& predicted, const Timeline& measured);
std::string to_table(const Comparison& comparison);

}  // namespace molen::program
