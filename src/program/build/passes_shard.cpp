// The passes of data parallelism: the reduction of gradients, the update, and the gathering of parameters.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "program/build/build.h"
#include "program/build/build_detail.h"
#include "program/values/of_setting.h"

namespace molen::program {

namespace detail {

int copy_of(Program& p, int buffer, int copy) {
  if (copy == 0) return buffer;
  Buffer another = p.buffers[static_cast<std::size_t>(buffer)];
  another.name += "/" + std::to_string(copy);
  another.copy = copy;
  if (const int found = p.find_buffer(another.name); found >= 0) return found;
  p.buffers.push_back(another);
  return static_cast<int>(p.buffers.size()) - 1;
}

std::vector<Axis> gathered_over(const Program& p, int unit) {
  const Setting& s = p.setting;
  const Unit& of = p.units[static_cast<std::size_t>(unit)];
  std::vector<Axis> axes;
  if (!s.owns_part()) return axes;
  if (!s.sharded_gradients()) return {axis_for(of, Axis::kDp)};
  if (s.own_over_dp) axes.push_back(Axis::kReplicate);
  if (!s.sharded_parameters()) axes.push_back(axis_for(of, Axis::kShard));
  return axes;
}

}  // namespace detail

namespace pass {
namespace {

// Inserts new steps before steps of a body, which are named by their old index. `after` edges within the body keep
// their targets.
class Insertion {
 public:
  void add(std::size_t before, Step step) { new_.emplace(before, std::move(step)); }

  void apply(Body& body) const {
    std::vector<Step> steps;
    std::vector<int> moved(body.steps.size());
    std::vector<std::size_t> fresh;
    for (std::size_t k = 0; k <= body.steps.size(); ++k) {
      const auto [from, to] = new_.equal_range(k);
      for (auto step = from; step != to; ++step) {
        fresh.push_back(steps.size());
        steps.push_back(step->second);
      }
      if (k == body.steps.size()) break;
      moved[k] = static_cast<int>(steps.size());
      steps.push_back(body.steps[k]);
    }
    // The `after` edges of new steps also use old indices.
    for (Step& step : steps)
      for (OpRef& ref : step.after)
        if (ref.body < 0) ref.op = moved[static_cast<std::size_t>(ref.op)];
    body.steps = std::move(steps);
  }

 private:
  std::multimap<std::size_t, Step> new_;
};

// The steps from the first to the last that share one gathered copy of a unit. Between them, no step reads another unit
// but those of the experts of the unit's own layers.
struct Cluster {
  int unit;
  std::size_t first, last;
  std::size_t before;  // the last step before `first` that reads parameters; 0 for the first cluster
};

// Whether a unit stays on the rank while ops use `other`. A unit of several layers is used before and after the experts
// of each of its layers but the last, which are units of their own, and would otherwise be gathered for every layer.
bool stays_beside(const Unit& unit, const Unit& other) {
  return other.experts && !unit.experts && unit.has(other.first, Sublayer::kMlp);
}

// Returns the clusters of a body in the order in which they come into use.
std::vector<Cluster> clusters_of(const Program& p, const Body& body) {
  const auto unit_at = [&](int unit) -> const Unit& { return p.units[static_cast<std::size_t>(unit)]; };
  std::vector<Cluster> clusters;
  std::size_t before = 0;
  for (std::size_t k = 0; k < body.steps.size(); ++k)
    for (const Use& use : body.steps[k].operands) {
      if (!use.reads() || p.buffers[static_cast<std::size_t>(use.buffer)].role != Value::kParam) continue;
      const int unit = p.unit_of_buffer(use.buffer);
      const auto latest = std::find_if_not(clusters.rbegin(), clusters.rend(), [&](const Cluster& c) {
        return c.unit != unit && stays_beside(unit_at(unit), unit_at(c.unit));
      });
      if (latest != clusters.rend() && latest->unit == unit)
        latest->last = k;
      else
        clusters.push_back({unit, k, k, before});
      before = k;
    }
  return clusters;
}

// Makes the steps that bring the parameters of a cluster to the device: a copy from the host, an all-gather over the
// ranks that share the unit, or the copy followed by the all-gather. The first step waits for `bound`.
std::vector<Step> bring(Program& p, int unit, int copy, int whole, std::optional<OpRef> bound) {
  const Setting& s = p.setting;
  std::vector<Step> steps;
  const auto add = [&](Op op) -> Step& {
    const Stream stream = stream_of(p, op);
    steps.push_back(detail::make_step(p, std::move(op), unit, Phase::kParameterGather, stream));
    return steps.back();
  };
  if (s.offload.parameters) {
    Step& step = add(CopyToDevice{});
    Use& to = step.operand(Arg::kTo);
    to.buffer = s.sharded_parameters() ? detail::copy_of(p, to.buffer, copy) : whole;
  }
  if (s.sharded_parameters()) {
    const int shard = steps.empty() ? -1 : steps.back().operand(Arg::kTo).buffer;
    Step& gather = add(AllGather{axis_for(p.units[static_cast<std::size_t>(unit)], Axis::kShard)});
    if (shard >= 0) gather.operand(Arg::kFrom).buffer = shard;
    gather.operand(Arg::kTo).buffer = whole;
  }
  if (bound) steps.front().after.push_back(*bound);
  return steps;
}

void gather_in(Program& p, Body& body) {
  const std::vector<Cluster> clusters = clusters_of(p, body);
  const auto ahead = static_cast<std::size_t>(p.setting.prefetch);
  std::map<int, int> copies;  // number of copies of each unit so far
  Insertion insertion;
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    const Cluster& cluster = clusters[c];
    const int copy = copies[cluster.unit]++;
    const int whole = detail::copy_of(p, p.find_buffer(Value::kParam, cluster.unit), copy);
    for (std::size_t k = cluster.first; k <= cluster.last; ++k)
      for (Use& use : body.steps[k].operands)
        if (use.reads() && p.buffers[static_cast<std::size_t>(use.buffer)].role == Value::kParam &&
            p.unit_of_buffer(use.buffer) == cluster.unit)
          use.buffer = whole;
    // Bounds the memory: at most `ahead` gathered units are there besides those in use. A unit comes when the unit
    // `ahead` places before it comes into use, and not before the last use of parameters that precedes that.
    const Cluster& begun = clusters[c > ahead ? c - ahead : 0];
    std::optional<OpRef> bound;
    if (c > ahead) bound = OpRef{-1, static_cast<int>(begun.before)};
    for (Step& step : bring(p, cluster.unit, copy, whole, bound)) insertion.add(begun.first, std::move(step));
  }
  insertion.apply(body);
}

// Returns, for each unit that the body writes, the last writer of its gradient, as a map from that writer to the unit.
std::map<std::size_t, int> last_writers(const Program& p, const Body& body) {
  std::vector<int> last(p.buffers.size(), -1);  // by buffer: the last step that writes it
  for (std::size_t k = 0; k < body.steps.size(); ++k)
    for (const Use& use : body.steps[k].operands)
      if (use.writes()) last[static_cast<std::size_t>(use.buffer)] = static_cast<int>(k);
  std::map<std::size_t, int> unit_after_step;
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
    const int grad = p.find_buffer(Value::kGrad, u), writer = grad < 0 ? -1 : last[static_cast<std::size_t>(grad)];
    if (writer >= 0) unit_after_step[static_cast<std::size_t>(writer)] = u;
  }
  return unit_after_step;
}

// An op on a unit's gradient. `adds` says whether it adds to the sum of earlier micro-batches in its operand `to`.
struct Reduction {
  Op op;
  bool adds = false;
};

// Adds a reduction over data-parallel ranks, either of the gradient itself or of a message in a narrower type. The
// casts run on the stream of the reduction, at the same time as the following backward ops, so that only one message at
// a time is in memory.
template <class O>
void add_reduction(const Setting& s, O op, std::vector<Reduction>& ops, bool adds = false) {
  if (!s.narrow_over(op.axis)) {
    ops.push_back({op, adds});
    return;
  }
  ops.insert(ops.end(), {{Cast{op.axis}}, {op}, {Cast{op.axis, true}, adds}});
}

// Adds the reduction that completes the sum: of whole gradients over dp, or of shards over the replicas. For a unit
// that both ends of a pipeline hold, this reduction runs after the sum over the ends.
void add_sums_over_data(const Setting& s, const Unit& unit, std::vector<Reduction>& ops) {
  const Axis axis = axis_for(unit, s.sharded_gradients() ? Axis::kReplicate : Axis::kDp);
  if ((s.sharded_gradients() ? s.replicas() : s.replica_group_size()) == 1) return;
  if (s.sharded_gradients() ? s.own_over_dp : s.owns_part())
    add_reduction(s, ReduceScatter{axis}, ops);
  else
    add_reduction(s, AllReduce{axis}, ops);
}

// Returns the ops that reduce and move a finished gradient of one micro-batch.
std::vector<Reduction> reductions(const Program& p, int u, bool first, bool last) {
  const Setting& s = p.setting;
  // When gradients stay, the whole gradient first sums all micro-batches, so there is nothing to reduce before the
  // last.
  if (!s.reduces_each_micro_batch() && !last) return {};
  const Unit& unit = p.units[static_cast<std::size_t>(u)];
  std::vector<Reduction> ops;
  // Each tensor rank has only its share of the gradient of the elements that all of them hold.
  if (unit.replicated > 0) ops.push_back({AllReduce{Axis::kTp}});
  if (s.sharded_gradients())
    add_reduction(s, ReduceScatter{axis_for(unit, Axis::kShard)}, ops, !first && !s.offload.gradients);
  // The host adds only gradients that are already summed over all ranks, because ranks do not communicate on the host.
  if ((last || s.offload.gradients) && !p.shared_by_ends(u)) add_sums_over_data(s, unit, ops);
  if (s.offload.gradients) ops.push_back({CopyToHost{}, !first});
  return ops;
}

// For each unit, the bodies of the first and of the last instance that write its gradient.
struct Writers {
  std::vector<std::map<std::size_t, int>> in;  // last_writers of each body
  std::vector<int> first, last;                // by unit
  explicit Writers(const Program& p) : first(p.units.size(), -1), last(p.units.size(), -1) {
    for (const Body& body : p.bodies) in.push_back(last_writers(p, body));
    for (const Instance& instance : p.schedule)
      for (const auto& [step, unit] : in[static_cast<std::size_t>(instance.body)]) {
        const auto u = static_cast<std::size_t>(unit);
        if (first[u] < 0) first[u] = instance.body;
        last[u] = instance.body;
      }
  }
};

// Returns the steps that reduce the gradient of a unit in body `b`, which writes it.
std::vector<Step> reducing_steps(Program& p, int b, int unit, const Writers& writers) {
  const auto u = static_cast<std::size_t>(unit);
  std::vector<Step> steps;
  for (const auto& [op, adds] : reductions(p, unit, writers.first[u] == b, writers.last[u] == b)) {
    steps.push_back(detail::make_step(p, op, unit, Phase::kGradientReduce, stream_of(p, op)));
    if (adds) steps.back().operand(Arg::kTo).access = Access::kUpdate;
  }
  return steps;
}

// Adds the reductions to a body. Those over data-parallel ranks become steps of `behind` instead, unless it is null.
void reduce_in(Program& p, int b, const Writers& writers, Body* behind) {
  Body& body = p.bodies[static_cast<std::size_t>(b)];
  Insertion insertion;
  for (const auto& [step, unit] : writers.in[static_cast<std::size_t>(b)]) {
    // Communication that the next part waits for comes first.
    std::size_t at = step + 1;
    while (at < body.steps.size() && is_communication(body.steps[at].op)) ++at;
    for (Step& reduction : reducing_steps(p, b, unit, writers))
      if (behind && reduction.stream == Stream::kDpComm)
        behind->steps.push_back(std::move(reduction));
      else
        insertion.add(at, std::move(reduction));
  }
  insertion.apply(body);
}

bool is_message(const Body& body) {
  return std::any_of(body.steps.begin(), body.steps.end(), [](const Step& step) {
    return std::holds_alternative<Send>(step.op) || std::holds_alternative<Receive>(step.op);
  });
}

// Returns the place in the schedule behind the last message, or 0 if there is none.
std::size_t behind_messages(const Program& p) {
  std::size_t place = 0;
  for (std::size_t i = 0; i < p.schedule.size(); ++i)
    if (is_message(p.bodies[static_cast<std::size_t>(p.schedule[i].body)])) place = i + 1;
  return place;
}

}  // namespace

Program shard_parameters(Program p) {
  if (!p.setting.materializes_parameters()) return p;
  for (Body& body : p.bodies) gather_in(p, body);
  return p;
}

// Devices may run their communication in list order (comm::Communicator::one_at_a_time). A message then waits for the
// reductions in front of it, and so does the next stage, whose reductions hold up the stage after it.
Program reduce_gradients(Program p) {
  const Writers writers(p);
  const std::size_t place = p.setting.reduces_each_micro_batch() ? 0 : behind_messages(p);
  Body behind{"reduce", {}};
  std::vector<bool> deferred(p.bodies.size(), false);
  // A body that completes a gradient has one instance, so the reductions keep the order of the schedule.
  for (std::size_t i = 0; i < place; ++i) {
    const int b = p.schedule[i].body;
    if (std::find(writers.last.begin(), writers.last.end(), b) == writers.last.end()) continue;
    reduce_in(p, b, writers, &behind);
    deferred[static_cast<std::size_t>(b)] = true;
  }
  for (std::size_t b = 0; b < deferred.size(); ++b)
    if (!deferred[b]) reduce_in(p, static_cast<int>(b), writers, nullptr);
  if (behind.steps.empty()) return p;
  p.schedule.insert(p.schedule.begin() + static_cast<std::ptrdiff_t>(place), {static_cast<int>(p.bodies.size()), -1});
  p.bodies.push_back(std::move(behind));
  return p;
}

Program update(Program p) {
  const Setting& s = p.setting;
  const int units = static_cast<int>(p.units.size());
  Body body{"update", {}};
  const auto add = [&](Op op, int unit, Phase phase) -> Step& {
    const Stream stream = stream_of(p, op);
    body.steps.push_back(detail::make_step(p, std::move(op), unit, phase, stream));
    return body.steps.back();
  };
  // This sum comes after all messages, because one end of a pipeline finishes long before the other.
  for (int u = 0; u < units; ++u) {
    if (!p.shared_by_ends(u)) continue;
    std::vector<Reduction> ops{{AllReduce{Axis::kEmbedding}}};
    add_sums_over_data(s, p.units[static_cast<std::size_t>(u)], ops);
    for (const Reduction& reduction : ops) add(reduction.op, u, Phase::kGradientReduce);
  }
  // In backward order, the gradients that were reduced first are also read first.
  for (int u = units - 1; u >= 0; --u) {
    if (s.offload.optimizer && !s.offload.gradients) add(CopyToHost{}, u, Phase::kGradientReduce);
    if (p.counts(u)) add(SumSquares{}, u, Phase::kClip);
  }
  if (s.replica_group_size() > 1) {
    // When every rank holds the same whole gradient or shard, every rank already has the same sum of squares.
    const bool squares = s.owns_part(), apart = s.sharded_gradients() && s.replicas() > 1 && !s.own_over_dp;
    add(ReduceScalars{Axis::kDp, kLossSum, squares && !apart ? 3 : 2}, -1, Phase::kClip);
    if (apart) add(ReduceScalars{Axis::kShard, kSumSquares, 1}, -1, Phase::kClip);
    // Expert ranks have different experts. The first of them also counts all other units.
    if (s.shares_experts() && !squares) add(ReduceScalars{Axis::kEp, kSumSquares, 1}, -1, Phase::kClip);
  }
  if (s.tensor()) add(ReduceScalars{Axis::kTp, kSumSquares, 1}, -1, Phase::kClip);
  if (s.pipelined()) add(ReduceScalars{Axis::kPp, kLossSum, 3}, -1, Phase::kClip);
  if (p.arch.sparse()) {
    const std::int64_t of_routers = num_scalars(p.arch) - kBalanceLoss;
    if (s.replica_group_size() > 1) add(ReduceScalars{Axis::kDp, kBalanceLoss, of_routers}, -1, Phase::kClip);
    if (s.pipelined()) add(ReduceScalars{Axis::kPp, kBalanceLoss, of_routers}, -1, Phase::kClip);
  }
  add(ClipScale{}, -1, Phase::kClip);
  add(SetFlag{Flag::kNonFinite}, -1, Phase::kClip);
  for (int u = 0; u < units; ++u) {
    if (shares_whole_matrices(p, u)) {
      add(OptimizerStep{s.optimizer, UpdateStage::kDirection}, u, Phase::kOptimizer).unless = Flag::kNonFinite;
      add(AllGather{Axis::kTp}, u, Phase::kOptimizer).unless = Flag::kNonFinite;
      add(OptimizerStep{s.optimizer, UpdateStage::kApply}, u, Phase::kOptimizer).unless = Flag::kNonFinite;
    } else {
      add(OptimizerStep{s.optimizer}, u, Phase::kOptimizer).unless = Flag::kNonFinite;
    }
    if (s.offload.optimizer && !s.offload.parameters)
      add(CopyToDevice{}, u, Phase::kParameterGather).unless = Flag::kNonFinite;
    for (const Axis axis : detail::gathered_over(p, u))
      add(AllGather{axis}, u, Phase::kParameterGather).unless = Flag::kNonFinite;
  }
  p.bodies.push_back(std::move(body));
  p.schedule.push_back({static_cast<int>(p.bodies.size()) - 1, -1});
  return p;
}

}  // namespace pass
}  // namespace molen::program
