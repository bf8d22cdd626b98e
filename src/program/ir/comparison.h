// A predicted step beside a measured one: the same ops, summed by kind and by axis of communication.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "program/ir/timeline.h"

namespace molen::program {

// Predicted and measured seconds of a kind of op or of epilogue.
struct KindRow {
  std::string kind;
  int count = 0;
  double predicted_s = 0.0, measured_s = 0.0;  // measured_s excludes waiting for other ranks
  double waited_s = 0.0;
  std::int64_t bytes = 0;  // memory traffic or payload, as the program states it
  // With a probability of 80 %, the true seconds are between predicted_s / (1 + spread) and predicted_s * (1 + spread).
  // 0: not known.
  double spread = 0.0;
};

// The communication of one stream, waiting for other ranks included.
struct AxisRow {
  Stream stream = Stream::kTpComm;
  double predicted_s = 0.0, measured_s = 0.0;                  // of its ops
  double predicted_exposed_s = 0.0, measured_exposed_s = 0.0;  // the part beside which nothing is computed
};

// A part of a step: a kind of op that computes, and the time without compute by what ran meanwhile (IdleSeconds):
// "waiting for tp_comm", the host or a stream of copies, or "rest", where nothing did. The parts of a step add up to
// it.
struct StepPart {
  std::string name;
  double predicted_s = 0.0, measured_s = 0.0;
  double error_s() const { return predicted_s - measured_s; }
};

struct Comparison {
  std::vector<KindRow> rows;    // sorted by measured plus waited seconds, largest first
  std::vector<AxisRow> axes;    // of the streams that communicate, in the order of kCommStreams
  std::vector<StepPart> parts;  // those whose predicted and measured seconds differ most first
  double predicted_step_s = 0.0, measured_step_s = 0.0;
  double step_spread = 0.0;  // of predicted_step_s, as KindRow::spread
  // (predicted - measured) / measured.
  double step_error() const {
    return measured_step_s > 0 ? (predicted_step_s - measured_step_s) / measured_step_s : 0.0;
  }
};
Comparison compare(const std::vector<Expanded>& ops, const Timeline& predicted, const Timeline& measured);

// Names the parts with the largest errors: "forward attention +1.20 ms (+3.1 % of the step), waiting for tp_comm -300.0
// us
// (-0.8 % of the step)". Empty when nothing was measured.
std::string largest_errors(const Comparison& comparison);

// Returns "+-12%" for a spread of 0.12, and "-" for 0.
std::string spread_text(double spread);

std::string to_table(const Comparison& comparison);

// The fields of predicted.json (docs/formats/calibration.md) that describe a stage.
Json to_json(const Comparison& comparison);
Comparison comparison_from_json(const Json& json);

}  // namespace molen::program
