// Questions of the verifier about a layout and its stages.
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

// Whether a chunk of this stage has the part of the model, or the boundary, that the op works on.
bool of_this_stage(const Program& program, const Traits& traits, const Op& op);
// Number of messages between stages that the chunks of this stage need in a step.
std::size_t messages_needed(const Program& program, const Traits& traits);
// The axes over which one of the step's sums (Scalar) is reduced. Squares of elements that all ranks hold alike are
// not.
std::vector<Axis> axes_of_sum(const Traits& traits, std::int64_t scalar);
// The axes over which updated parameters of a unit are gathered, in order.
std::vector<Axis> axes_of_gather(const Traits& traits, const Unit& unit);
// Whether the unit has elements between its parameters, which no op but ZeroFill writes.
bool has_gaps(const Program& program, const Unit& unit);
// Returns why an op cannot run on the stream that it names, or nothing when it can. Communication, and the casts around
// it, may run on any stream of communication: ops over one axis then need edges that keep them in list order.
std::optional<std::string> stream_refused(const Traits& traits, const Step& step);

// The parts of layers whose forwards add to the step's sums: each runs once for each micro-batch. No value that another
// op reads would show that one is left out or runs twice.
class LossesOfLayers {
 public:
  // Returns false when the part has run before.
  bool add(const Compute& forward, std::int64_t micro_batch) {
    return ran_.insert({forward.part, forward.layer, micro_batch}).second;
  }
  // Returns what has not run on this stage, of all micro-batches; at most `most` of it.
  std::vector<std::string> missing(const Program& program, std::int64_t micro_batches, std::size_t most) const;

 private:
  std::set<std::tuple<arch::Part, std::int64_t, std::int64_t>> ran_;
};
// Whether the op is such a forward.
bool adds_losses(const Compute& op);

}  // namespace molen::program::detail
