#include "program/verify/verify_units.h"

#include <algorithm>

#include "program/parts/part.h"
#include "program/values/contributions.h"
#include "program/values/of_op.h"
#include "program/values/optimizer.h"
#include "program/verify/verify_detail.h"

namespace molen::program {

GradientTracker::GradientTracker(const Program& program, const Traits& traits, Report report)
    : p_(program), t_(traits), report_(std::move(report)), units_(program.units.size()) {
  for (const Body& body : p_.bodies) made_in_.push_back(contributions_in(p_, body));
  for (std::size_t u = 0; u < p_.units.size(); ++u)
    expected_.push_back(program::expected_contributions(p_, t_, static_cast<int>(u)));
}

void GradientTracker::begin_instance() {
  if (!t_.reduces_each_micro_batch()) return;
  for (State& s : units_) {
    s.pending.clear();
    s.written.clear();
    s.zeroed = s.padded = false;
  }
}

void GradientTracker::add(const Expanded& e, const Compute& c) {
  const std::vector<int> halves = halves_of(p_, c);
  if (halves.empty()) return;
  const int u = unit_of_part(p_, c.part, c.layer);
  if (u < 0) return;
  State& state = units_[static_cast<std::size_t>(u)];
  if (state.reductions > 0 && !t_.reduces_each_micro_batch())
    report(e, "adds to gradient {} after it was reduced", p_.units[static_cast<std::size_t>(u)].name);
  // Parts write disjoint parameters of a unit. Only the head's chunks and a tied embedding write the same table.
  const bool table =
      of_head(c.part) || (p_.arch.tied && declaration_of(c.part).reads_role(arch::Role::kEmbedding, true));
  const auto target = [&](int half) {
    if (table) return Target{-1, -1, half, -1};
    return Target{static_cast<int>(c.part), c.layer, half, by_tiles(t_.rows, c.part) ? c.portion : -1};
  };
  bool earlier = state.zeroed;
  for (const int half : halves) earlier = earlier || state.written.count(target(half)) > 0;
  const bool adds = e.step->updates(Arg::kGrad);
  if (adds && !earlier) report(e, "adds to a gradient that no op has cleared or written before");
  if (!adds && earlier) report(e, "overwrites what was accumulated before");
  for (const int half : halves) {
    const Contribution made{static_cast<int>(c.part), c.layer, c.portion, e.micro_batch, half};
    state.contributions.insert(made);
    state.pending.insert(made);
    state.written.insert(target(half));
  }
  state.in_sum = false;
}

void GradientTracker::clear(const Expanded& e, int u, bool padding) {
  State& state = units_[static_cast<std::size_t>(u)];
  if (padding && (!t_.reduces_each_micro_batch() || !detail::has_gaps(p_, p_.units[static_cast<std::size_t>(u)])))
    report(e, "there is no padding to clear");
  if (!padding && !state.pending.empty()) report(e, "clears a gradient that is already in use");
  state.zeroed = state.zeroed || !padding;
  state.padded = true;
}

void GradientTracker::clip(const Expanded& e) {
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (units_[u].counted != (p_.counts(static_cast<int>(u)) ? 1 : 0))
      report(e, "the norm counts gradient {} {} times", p_.units[u].name, units_[u].counted);
}

void GradientTracker::totals() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const std::string& name = p_.units[u].name;
    const State& s = units_[u];
    const std::set<Contribution> distinct(s.contributions.begin(), s.contributions.end());
    if (s.contributions.size() != distinct.size() || distinct.size() != expected_contributions(static_cast<int>(u)))
      report_all("gradient {} has {} contributions ({} distinct) where {} are needed", name, s.contributions.size(),
                 distinct.size(), expected_contributions(static_cast<int>(u)));
    if (!reduced(static_cast<int>(u)))
      report_all("gradient {} is not summed over all ranks ({} reductions, {} of {} contributions, {} over replicas)",
                 name, s.reductions, s.delivered, expected_contributions(static_cast<int>(u)), s.replicated);
    if (s.updated != 1) report_all("unit {} is updated {} times", name, s.updated);
    const bool comes = t_.offload.optimizer && !t_.offload.parameters;
    if (s.came != (comes ? 1 : 0)) report_all("unit {} comes from the host {} times after its update", name, s.came);
    if (const std::size_t axes = detail::axes_of_gather(t_, p_.units[u]).size(); s.gathered.size() != axes)
      report_all("unit {} is gathered over {} of {} axes after its update", name, s.gathered.size(), axes);
  }
}

GradientTracker::State& GradientTracker::unit(const Expanded& e) {
  return units_.at(static_cast<std::size_t>(unit_of_step(p_, *e.step)));
}

std::size_t GradientTracker::expected_contributions(int u) const {
  return expected_[static_cast<std::size_t>(u)];
}

std::size_t GradientTracker::needed_in(const Expanded& e, int u) const {
  return t_.reduces_each_micro_batch() ? made_in_[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(u)]
                                       : expected_contributions(u);
}

std::size_t GradientTracker::micro_batch_contributions(int u) const {
  return expected_contributions(u) / static_cast<std::size_t>(std::max<std::int64_t>(1, t_.micro_batches));
}

int GradientTracker::reductions_needed(int u) const {
  if (!t_.reduces_each_micro_batch()) return 1;
  int n = 0;
  for (const Instance& i : p_.schedule)
    n += made_in_[static_cast<std::size_t>(i.body)][static_cast<std::size_t>(u)] > 0;
  return n;
}

void GradientTracker::join_ends(const Expanded& e, int u, State& state, bool scatter) {
  if (!p_.shared_by_ends(u)) report(e, "the other end of the pipeline has no such gradient");
  if (scatter) report(e, "both ends keep the sum");
  if (t_.sharded_gradients() ? state.delivered != expected_contributions(u)
                             : state.pending.size() != expected_contributions(u))
    report(e, "adds the ends' shares before they are complete");
  if (state.reductions > 0 && !t_.sharded_gradients()) report(e, "adds the ends' shares after the data-parallel sum");
  if (++state.joined > 1) report(e, "adds the ends' shares a second time");
}

bool GradientTracker::must_exchange(int u) const {
  return p_.units[static_cast<std::size_t>(u)].replicated > 0;
}

void GradientTracker::exchange_gradient(const Expanded& e, int u, State& state) {
  const std::size_t needed = needed_in(e, u);
  if (!must_exchange(u))
    report(e, "sums over tensor ranks, but the unit has no parameters that every tensor rank holds");
  if (state.pending.size() != needed)
    report(e, "sums over tensor ranks with {} of {} contributions made", state.pending.size(), needed);
  if (state.in_sum) report(e, "sums over tensor ranks a second time");
  state.in_sum = true;
  ++state.exchanged;
}

void GradientTracker::reduce(const Expanded& e, Axis axis, bool scatter, bool adds) {
  State& state = unit(e);
  const int u = unit_of_step(p_, *e.step);
  if (axis == Axis::kTp) {
    if (scatter) report(e, "scatters a sum that every tensor rank must keep whole");
    exchange_gradient(e, u, state);
    return;
  }
  if (axis == Axis::kEmbedding) {
    join_ends(e, u, state, scatter);
    return;
  }
  over_data_ranks(e, u, axis);
  const bool wanted = axis == Axis::kReplicate ? t_.owns_part_of_shard() : t_.owns_part();
  if (scatter != wanted)
    report(e, "{} here, so the sum is made by {}", wanted ? "ranks own parts of it" : "every rank keeps all of it",
           wanted ? "reduce_scatter" : "all_reduce");
  if (t_.narrow_over(axis)) return;
  depart(e, axis, u, state);
  arrive(e, axis, state, adds);
}

void GradientTracker::cast(const Expanded& e, const Cast& o) {
  State& state = unit(e);
  if (!t_.narrow_over(o.over))
    report(e, "casts a gradient, but here gradients travel in the type in which they are kept");
  over_data_ranks(e, unit_of_step(p_, *e.step), o.over);
  if (!o.back) {
    depart(e, o.over, unit_of_step(p_, *e.step), state);
    return;
  }
  arrive(e, o.over, state, e.step->updates(Arg::kTo));
}

void GradientTracker::over_data_ranks(const Expanded& e, int u, Axis axis) {
  if (t_.replica_group_size() == 1) report(e, "reduces a gradient, but no other rank has a share of it");
  const Axis want = axis_for(p_.units[static_cast<std::size_t>(u)], t_.sharded_gradients() ? Axis::kShard : Axis::kDp);
  if (axis == Axis::kReplicate) {
    if (!t_.sharded_gradients() || t_.replicas() == 1) report(e, "there are no replicas to sum over");
  } else if (axis != want) {
    report(e, "this gradient must be reduced over the axis {}", name_of(want));
  }
}

void GradientTracker::depart(const Expanded& e, Axis axis, int u, State& state) {
  if (state.on_the_way) report(e, "starts to reduce a gradient whose earlier message has not arrived");
  if (axis == Axis::kReplicate) {
    if (t_.offload.gradients ? state.replicated >= state.reductions : state.delivered != expected_contributions(u))
      report(e, "sums a shard over the replicas with {} of {} contributions in it", state.delivered,
             expected_contributions(u));
    if (p_.shared_by_ends(u) && state.joined == 0)
      report(e, "sums over the replicas before the other end of the pipeline has added its share");
    state.on_the_way = true;
    return;
  }
  if (t_.pipelined() && p_.shared_by_ends(u) && !t_.sharded_gradients() && state.joined == 0)
    report(e, "reduces before the other end of the pipeline has added its share");
  complete(e, u, state);
  leave(state);
}

void GradientTracker::arrive(const Expanded& e, Axis axis, State& state, bool adds) {
  if (!std::exchange(state.on_the_way, false))
    report(e, "takes the sum of a gradient from a message that no op has sent");
  if (axis == Axis::kReplicate) {
    if (adds) report(e, "adds the sum over replicas to its target, but must overwrite it");
    ++state.replicated;
    return;
  }
  if (adds != (t_.sharded_gradients() && !t_.offload.gradients && state.delivered > 0))
    report(e, "{}", adds ? "adds to what the last step left" : "overwrites what earlier micro-batches left");
  state.delivered += std::exchange(state.in_message, 0);
}

// Records a copy of the gradient to the host for its update: for each micro-batch as soon as it is summed over the
// ranks, or for all micro-batches at once.
void GradientTracker::copy_gradient(const Expanded& e, bool adds) {
  State& state = unit(e);
  const int u = unit_of_step(p_, *e.step);
  if (!t_.offload.optimizer) report(e, "copies a gradient to the host, but no optimizer states are there");
  if (adds != (t_.offload.gradients && state.copied > 0))
    report(e, "{}", adds ? "adds to what the last step left" : "overwrites what is there already");
  ++state.copied;
  if (!t_.offload.gradients) {
    if (state.copied > 1) report(e, "copies the gradient a second time");
    if (!reduced_on_device(u) || state.contributions.size() != expected_contributions(u))
      report(e, "copies a gradient that is not reduced");
    state.on_host = state.contributions.size();
    return;
  }
  const std::size_t needed = needed_in(e, u);
  if (t_.replica_group_size() == 1) {  // no reduction: the copy takes the gradient from where it was made
    complete(e, u, state);
    leave(state);
    arrive(e, Axis::kDp, state, false);
  }
  if (needed == 0) report(e, "copies a gradient that no op of this instance has made");
  if (state.delivered != state.on_host + needed ||
      (t_.sharded_gradients() && t_.replicas() > 1 && state.replicated != state.reductions))
    report(e, "copies what is not summed over all ranks, or has been copied before");
  state.on_host = state.delivered;
}

void GradientTracker::complete(const Expanded& e, int u, const State& state) {
  const std::size_t needed = needed_in(e, u);
  if (state.pending.size() != needed)
    report(e, "sends on a gradient with {} of {} contributions", state.pending.size(), needed);
  if (must_exchange(u) && !state.in_sum)
    report(e,
           "sends on a gradient too early: the part for parameters that every tensor rank holds is not yet summed over "
           "tensor ranks");
  if (!t_.reduces_each_micro_batch()) return;
  if (!state.zeroed && needed != micro_batch_contributions(u))
    report(e, "sends on gradients of parameters that no op of this instance has written");
  if (!state.padded && detail::has_gaps(p_, p_.units[static_cast<std::size_t>(u)]))
    report(e, "sends on padding that no op has cleared");
}

void GradientTracker::leave(State& state) {
  state.on_the_way = true;
  state.in_message = state.pending.size();
  state.pending.clear();
  state.written.clear();
  ++state.reductions;
}

// Records a copy of parameters that ops are about to use, or that the host has updated.
void GradientTracker::copy_parameters(const Expanded& e) {
  State& state = unit(e);
  if (t_.offload.parameters) {
    if (state.updated > 0) report(e, "fetches parameters that no op of this step reads any more");
    return;
  }
  if (!t_.offload.optimizer) report(e, "fetches parameters from the host, but none are there");
  if (state.updated != 1) report(e, "fetches parameters that are not updated yet");
  if (!e.step->unless) report(e, "unless=non_finite is missing");
  if (++state.came > 1) report(e, "fetches the parameters a second time");
}

bool GradientTracker::reduced(int u) const {
  const State& state = units_[static_cast<std::size_t>(u)];
  return reduced_on_device(u) && (!t_.offload.gradients || state.on_host == expected_contributions(u));
}

bool GradientTracker::reduced_on_device(int u) const {
  const State& state = units_[static_cast<std::size_t>(u)];
  const int sums = must_exchange(u) ? reductions_needed(u) : 0;
  if (state.exchanged != sums || (sums > 0 && !state.in_sum)) return false;
  if (state.joined != (p_.shared_by_ends(u) ? 1 : 0)) return false;
  if (t_.replica_group_size() == 1 && !t_.offload.gradients) return true;
  if (state.delivered != expected_contributions(u)) return false;
  const int sums_over_replicas =
      t_.sharded_gradients() && t_.replicas() > 1 ? t_.offload.gradients ? state.reductions : 1 : 0;
  return state.reductions == reductions_needed(u) && state.replicated == sums_over_replicas;
}

void GradientTracker::count(const Expanded& e) {
  State& s = unit(e);
  const int u = unit_of_step(p_, *e.step);
  if (!reduced(u) || s.contributions.size() != expected_contributions(u))
    report(e, "counts a gradient that is not reduced");
  if (!p_.counts(u)) report(e, "counts what the first stage of the pipeline counts");
  ++s.counted;
}

void GradientTracker::update(const Expanded& e) {
  State& s = unit(e);
  if (!e.step->unless) report(e, "would update from a non-finite gradient: unless=non_finite is missing");
  const auto& [kind, stage] = std::get<OptimizerStep>(e.step->op);
  if (kind != p_.optimizer->name) report(e, "updates by {} where the states are those of {}", kind, p_.optimizer->name);
  const int u = unit_of_step(p_, *e.step);
  if (shares_whole_matrices(p_, u) != (stage != UpdateStage::kWhole))
    report(
        e, "{}",
        stage == UpdateStage::kWhole
            ? "updates in one stage, but tensor ranks hold parts of these matrices, so they must be updated in stages"
            : "updates in stages, but the matrices are whole on this rank and must be updated in one stage");
  if (s.contributions.size() != expected_contributions(u) ||
      (t_.offload.optimizer && s.on_host != expected_contributions(u)))
    report(e, "updates from an incomplete gradient");
  if (stage == UpdateStage::kDirection) {
    if (++s.directed > 1) report(e, "moves the momentum a second time");
    return;
  }
  ++s.updated;
}

void GradientTracker::gather(const Expanded& e, Axis axis) {
  State& state = unit(e);
  if (axis == Axis::kTp) {  // directions; the values that ops read and write determine their order
    if (!e.step->unless) report(e, "unless=non_finite is missing");
    return;
  }
  const int u = unit_of_step(p_, *e.step);
  if (t_.sharded_parameters() &&
      axis == axis_for(p_.units[static_cast<std::size_t>(u)], Axis::kShard)) {  // gathered for use, not to be kept
    if (state.updated > 0) report(e, "gathers parameters that no op of this step reads any more");
    return;
  }
  const std::vector<Axis> axes = detail::axes_of_gather(t_, p_.units[static_cast<std::size_t>(u)]);
  if (state.gathered.size() >= axes.size())
    report(e, "gathers parameters that are whole already");
  else if (axes[state.gathered.size()] != axis)
    report(e, "the parameters must be gathered over {} next", name_of(axes[state.gathered.size()]));
  if (state.updated != 1 || (t_.offload.optimizer && state.came != 1))
    report(e, "gathers parameters that are not updated yet");
  if (!e.step->unless) report(e, "unless=non_finite is missing");
  state.gathered.push_back(axis);
}

}  // namespace molen::program
