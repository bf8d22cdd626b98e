// Functions with which the verifier asks about a layout and its stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "program/ir/traits.h"

namespace molen::program::detail {

// Returns whether a chunk of this stage has the part of the model, or the boundary, that the op works on.
bool of_this_stage(const Program& program, const Traits& traits, const Op& op);
// Returns the number of messages between stages that the chunks of this stage need in a step.
std::size_t messages_needed(const Program& program, const Traits& traits);
// Returns the axes over which one of the step's sums (Scalar) is reduced. Squares of elements that all ranks hold are
// not reduced.
std::vector<Axis> axes_of_sum(const Traits& traits, std::int64_t scalar);
// Returns the axes over which updated parameters of a unit are gathered, in order.
std::vector<Axis> axes_of_gather(const Traits& traits, const Unit& unit);
// Returns whether the unit has elements between its parameters, which no op but ZeroFill writes.
bool has_gaps(const Program& program, const Unit& unit);
// Returns why an op cannot run on the stream that it names, or nothing when it can. Communication and the casts before
// and after it may run on any stream of communication. Ops over one axis then need edges that keep them in list order.
std::optional<std::string> stream_refused(const Traits& traits, const Step& step);

// The parts of layers whose forwards add to the step's sums: each runs once for each micro-batch. No other op reads a
// value that would show whether such a part is left out or runs twice.
class LossesOfLayers {
 public:
  // Returns false when the part has run before for this micro-batch.
  bool add(const Compute& forward, std::int64_t micro_batch) {
    return ran_.insert({forward.part, forward.layer, micro_batch}).second;
  }
  // Returns the parts that have not run on this stage, for all micro-batches; at most `most` of them.
  std::vector<std::string> missing(const Program& program, std::int64_t micro_batches, std::size_t most) const;

 private:
  std::set<std::tuple<arch::Part, std::int64_t, std::int64_t>> ran_;
};
// Returns whether the op is a forward of such a part.
bool adds_losses(const Compute& op);

}  // namespace molen::program::detail
