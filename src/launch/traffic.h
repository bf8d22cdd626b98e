// Compares the calls and bytes of a rank's communicators in a step with those of its program.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/json.h"
#include "comm/communicator.h"
#include "exec/executor.h"
#include "program/ir/timeline.h"
#include "program/values/payload.h"

namespace molen::launch {

// Traffic by axis and kind of call. Kinds of calls that were never made are absent.
using Traffic = std::map<std::pair<program::Axis, comm::CallKind>, comm::Traffic>;

Traffic traffic_of(const exec::Executor& executor);  // so far
Traffic since(const Traffic& before, const Traffic& now);

// Throws Error naming axis, call and both figures unless every axis and kind of call has the number of calls and the
// payload that the program gives. Only the calls of `all_to_all` are compared, because the data decides how many rows a
// rank exchanges.
void require_planned(const Traffic& moved, const program::CallsByAxis& planned);
// Throws Error unless all ranks together have exchanged the bytes that their programs give for all_to_all, or with
// `at_most`, as experts with a capacity do, no more. Collective over `world`.
void require_planned_exchanges(const Traffic& moved, const program::CallsByAxis& planned, bool at_most,
                               comm::Communicator& world);

// Returns [{axis, op, calls, payload_bytes, wire_bytes}] in the order of the axes. wire_bytes (the bytes sent) is null
// when a library moves the data.
Json to_json(const Traffic& traffic);

// The communication of this rank in the steps of an attempt. The first step counts only while it is the only one,
// because it creates what later steps reuse. Steps whose update was skipped do not count.
class Communication {
 public:
  // Counts from what `executor` has moved so far; `executor` must outlive this object.
  explicit Communication(const exec::Executor& executor);
  // To be called after each step of the executor.
  void add(const program::Timeline& timeline, bool skipped);

  const Traffic& traffic() const { return traffic_; }  // of the latest step
  // Returns [{axis, seconds, hidden}]: `seconds` is the time of a step in collectives and messages over the axis, with
  // the time in which they wait for other ranks, averaged over the steps. `hidden` is the share of it that ran beside
  // computation.
  Json axes() const;
  std::string text() const;  // "dp 12 ms, 80% hidden; tp ..."; "" when ranks exchanged nothing

 private:
  double seconds_of_a_step(const program::Overlap& sum) const;

  const exec::Executor& executor_;
  Traffic before_, traffic_;
  std::map<program::Axis, program::Overlap> overlap_;  // sums
  std::int64_t steps_ = 0;                             // steps that counted, including the first
};

}  // namespace molen::launch
