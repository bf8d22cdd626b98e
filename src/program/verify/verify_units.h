// The verifier's record of each unit in a step, op by op: which contributions the unit's gradient has, where their sum
// is, and whether the unit was counted, updated and gathered again.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "program/ir/traits.h"

namespace molen::program {

class GradientTracker {
 public:
  // Report receives findings about an op, or about the step as a whole if the op is null.
  using Report = std::function<void(const Expanded*, const std::string&)>;
  GradientTracker(const Program& program, const Traits& traits, Report report);

  // Forgets gradients that leave in every micro-batch, since they are no longer in the buffers in which they were made.
  void begin_instance();
  void add(const Expanded& e, const Compute& c);  // records the contributions of a backward to a gradient
  void clear(const Expanded& e, int unit, bool padding);
  void reduce(const Expanded& e, Axis axis, bool scatter, bool adds);
  void cast(const Expanded& e, const Cast& o);
  void copy_gradient(const Expanded& e, bool adds);
  void copy_parameters(const Expanded& e);
  void count(const Expanded& e);
  void clip(const Expanded& e);
  void update(const Expanded& e);
  void gather(const Expanded& e, Axis axis);
  void totals();  // checks the totals at the end of the step

 private:
  // One contribution of an op to a gradient: part, layer, chunk, micro-batch, and half of the backward. A whole
  // backward makes both halves; when a half has no gradient of its own, the other half makes both.
  using Contribution = std::tuple<int, std::int64_t, std::int64_t, std::int64_t, int>;

  // The parameters of a gradient that an op writes: part, layer, half, and the tile of experts, which is -1 if the op
  // writes those of all experts or of none.
  using Target = std::tuple<int, std::int64_t, int, std::int64_t>;

  // The history of a unit in this step.
  struct State {
    std::multiset<Contribution> contributions;  // all contributions so far
    std::multiset<Contribution> pending;        // contributions in the whole gradient, not reduced yet
    std::set<Target> written;                   // targets of the pending contributions
    std::size_t delivered = 0;                  // contributions that a reduction has taken along
    bool zeroed = false, padded = false;        // the whole gradient is cleared; at least its padding is cleared
    bool on_the_way = false;                    // some contributions have left and have not come back as a sum
    std::size_t in_message = 0;                 // how many contributions are on the way
    int reductions = 0, replicated = 0, counted = 0, updated = 0;
    int directed = 0;            // directions made of gradient and momentum
    int exchanged = 0;           // sums of elements that all tensor ranks hold
    bool in_sum = false;         // the gradient's present contributions are summed over tensor ranks
    int joined = 0;              // sums of a unit that both ends of a pipeline hold
    int copied = 0, came = 0;    // copies of gradients to the host; of updated parameters to the device
    std::size_t on_host = 0;     // contributions in the host's gradient
    std::vector<Axis> gathered;  // axes gathered over after the update
  };

  template <class... Args>
  void report(const Expanded& e, fmt::format_string<Args...> format, Args&&... args) {
    report_(&e, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void report_all(fmt::format_string<Args...> format, Args&&... args) {
    report_(nullptr, fmt::format(format, std::forward<Args>(args)...));
  }

  State& unit(const Expanded& e);  // returns the unit of an op's operands
  std::size_t expected_contributions(int u) const;
  // Returns the contributions that a reduction must include: those of its micro-batch in its instance, or all.
  std::size_t needed_in(const Expanded& e, int u) const;
  // Returns the contributions of all ops of one micro-batch.
  std::size_t micro_batch_contributions(int u) const;
  // Returns the number of reductions of a gradient in a step.
  int reductions_needed(int u) const;
  // Records the sum of the first and the last stage's gradients of the shared embedding table.
  void join_ends(const Expanded& e, int u, State& state, bool scatter);
  bool must_exchange(int u) const;
  // Records the sum of the elements that all tensor ranks hold, which is made once for each reduction.
  void exchange_gradient(const Expanded& e, int u, State& state);
  // Checks the ranks over which a layout sums gradients.
  void over_data_ranks(const Expanded& e, int unit, Axis axis);
  // Records that this rank's term of a sum is complete and leaves its buffer: in the reduction or, for a message, in
  // the cast that makes the message.
  void depart(const Expanded& e, Axis axis, int u, State& state);
  // Records that the sum, or this rank's part of it, has reached the place where it is kept.
  void arrive(const Expanded& e, Axis axis, State& state, bool adds);
  // Checks that the gradient that leaves has all contributions of its micro-batch (of all micro-batches when gradients
  // stay), and nothing else.
  void complete(const Expanded& e, int u, const State& state);
  // Records that a micro-batch's contributions are on the way to the place where all micro-batches are summed.
  void leave(State& state);
  bool reduced(int u) const;
  // Returns whether all contributions are included and summed over all ranks.
  bool reduced_on_device(int u) const;

  const Program& p_;
  const Traits& t_;
  Report report_;
  std::vector<State> units_;
  std::vector<std::vector<std::size_t>> made_in_;  // contributions, by body and unit
  std::vector<std::size_t> expected_;              // contributions of a step, by unit
};

}  // namespace molen::program
