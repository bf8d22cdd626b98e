// What a rank's communicators really moved in a step, beside what its program says.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/json.h"
#include "comm/communicator.h"
#include "exec/executor.h"
#include "program/payload.h"
#include "program/timeline.h"

namespace molen::train {

// By axis and kind of call; those that were never made are left out.
using Traffic = std::map<std::pair<program::Axis, comm::CallKind>, comm::Traffic>;

Traffic traffic_of(const exec::Executor& executor);  // so far
Traffic since(const Traffic& before, const Traffic& now);

// Throws Error naming axis, call and both figures unless every axis and kind of call has the calls and the payload that
// the program says.
void require_planned(const Traffic& moved, const program::Payloads& planned);

// [{axis, op, calls, payload_bytes, wire_bytes}], in the order of the axes; wire_bytes (sent) null where a library
// moves them.
Json to_json(const Traffic& traffic);

// Of an attempt's steps on this rank. The first of them counts only while it is the only one, for it makes what later
// ones find; steps whose update was skipped do not count.
class Communication {
 public:
  // From what `executor`, which must outlive this, has moved so far.
  explicit Communication(const exec::Executor& executor);
  // After each step that it ran.
  void add(const program::Timeline& timeline, bool skipped);

  const Traffic& traffic() const { return traffic_; }  // of the latest step
  // [{axis, seconds, hidden}]: seconds of a step in collectives and messages over the axis, with what they wait for
  // other ranks, mean over the steps; and the share of them that ran beside computation.
  Json axes() const;
  std::string text() const;  // "dp 12 ms, 80% hidden; tp ..."; "" where nothing was said between ranks

 private:
  double seconds_of_a_step(const program::Overlap& sum) const;

  const exec::Executor& executor_;
  Traffic before_, traffic_;
  std::map<program::Axis, program::Overlap> overlap_;  // sums
  std::int64_t steps_ = 0;                             // that counted, and the first
};

}  // namespace molen::train
