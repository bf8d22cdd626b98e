// What a step does to the gradient and the parameters of each unit, op by op: the verifier's account of who has added
// what, where the sum of it is, and whether it was counted, updated and brought together again.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "program/program.h"

namespace molen::program {

class UnitLedger {
 public:
  // Where findings go, of an op or of the step as a whole; and who is told that the value in a buffer is used up.
  using Report = std::function<void(const Expanded*, const std::string&)>;
  using UsedUp = std::function<void(const Expanded&, int buffer)>;
  UnitLedger(const Program& program, Report report, UsedUp used_up);

  // Gradients that leave in every micro-batch are gone from where they were made.
  void begin_instance();
  void add(const Expanded& e, const Compute& c);  // what a backward adds to a gradient
  void clear(const Expanded& e, int unit, bool padding);
  void reduce(const Expanded& e, Axis axis, bool scatter, bool accumulate);
  void cast(const Expanded& e, const Cast& o);
  void copy_gradient(const Expanded& e, bool accumulate);
  void copy_parameters(const Expanded& e);
  void count(const Expanded& e);
  void clip(const Expanded& e);
  void update(const Expanded& e);
  void gather(const Expanded& e, Axis axis);
  void totals();  // at the end of the step

 private:
  // Which op adds what to a gradient: part, layer, chunk, micro-batch, and which half of its backward. A whole backward
  // makes both; where a half has no gradient of its own, the other makes both.
  using Contribution = std::tuple<int, std::int64_t, std::int64_t, std::int64_t, int>;

  // What of a gradient an op writes: of which part and layer, which half.
  using Target = std::tuple<int, std::int64_t, int>;

  // What has happened to a unit in this step.
  struct State {
    std::multiset<Contribution> contributions;  // all
    std::multiset<Contribution> pending;        // those in the whole gradient, not reduced yet
    std::set<Target> written;                   // by the pending ones
    std::size_t delivered = 0;                  // those that a reduction has taken along
    bool zeroed = false, padded = false;        // the whole gradient; its padding at least
    bool on_the_way = false;                    // some have left and have not come back as a sum
    std::size_t in_message = 0;                 // how many
    int reductions = 0, replicated = 0, counted = 0, updated = 0;
    int exchanged = 0;           // sums of what tensor ranks hold alike
    bool in_sum = false;         // the gradient's present contributions are summed over tensor ranks
    int joined = 0;              // sums of what both ends of a pipeline hold
    int copied = 0, came = 0;    // to the host for its update; updated parameters to the device
    std::size_t on_host = 0;     // contributions in what the host has
    std::vector<Axis> gathered;  // after the update
  };

  template <class... Args>
  void report(const Expanded& e, fmt::format_string<Args...> format, Args&&... args) {
    report_(&e, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void report_all(fmt::format_string<Args...> format, Args&&... args) {
    report_(nullptr, fmt::format(format, std::forward<Args>(args)...));
  }

  State& unit(const Expanded& e);  // whose operands are of one
  std::size_t expected_contributions(int u) const;
  // Contributions that a reduction takes along: those of its micro-batch in its instance, or all.
  std::size_t needed_in(const Expanded& e, int u) const;
  // Those of all ops of one micro-batch.
  std::size_t micro_batch_contributions(int u) const;
  // How often a gradient is reduced in a step.
  int reductions_needed(int u) const;
  // Adds up what the first and the last stage have of the table.
  void join_ends(const Expanded& e, int u, State& state, bool scatter);
  bool must_exchange(int u) const;
  // Sums what tensor ranks hold alike, once per reduction.
  void exchange_gradient(const Expanded& e, int u, State& state);
  // Over whom a layout sums gradients.
  void over_data_ranks(const Expanded& e, Axis axis);
  // What this rank gives to a sum is complete. It gives it where the reduction is or, of a message, where that is made.
  void depart(const Expanded& e, Axis axis, int u, State& state);
  // The sum, or this rank's part of it, is where it is kept.
  void arrive(const Expanded& e, Axis axis, State& state, bool accumulate);
  // What leaves the whole gradient: all contributions of its micro-batch, or of all where it stays, and nothing else.
  void complete(const Expanded& e, int u, const State& state);
  // A micro-batch's contributions are on their way to where the sum of all is made.
  void leave(const Expanded& e, State& state);
  bool reduced(int u) const;
  // Everything is in, and summed over all ranks.
  bool reduced_on_device(int u) const;

  const Program& p_;
  Report report_;
  UsedUp used_up_;
  std::vector<State> units_;
  std::vector<std::vector<std::size_t>> made_in_;  // contributions, by body and unit
};

}  // namespace molen::program
