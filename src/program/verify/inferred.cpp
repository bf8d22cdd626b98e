#include "program/verify/inferred.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "program/ir/stages.h"
#include "program/parts/part.h"

namespace molen::program {
namespace {

// Collects the values of one trait that ops or buffers show, to see whether they agree.
template <class T>
class Votes {
 public:
  void add(const T& value) {
    for (auto& [of, number] : votes_)
      if (of == value) {
        ++number;
        return;
      }
    votes_.emplace_back(value, 1);
  }
  // Returns the value that was added most often, or `otherwise` when none was added. Among equally frequent values,
  // returns the first one.
  T most(T otherwise) const {
    const auto first = std::max_element(votes_.begin(), votes_.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    return first == votes_.end() ? otherwise : first->first;
  }

 private:
  std::vector<std::pair<T, int>> votes_;
};

template <class F>
void for_each_step(const Program& p, const F& f) {
  for (const Body& body : p.bodies)
    for (const Step& step : body.steps) f(step);
}

// Infers traits from the attributes of ops, and from whether attention is computed in steps of a ring or at once.
void infer_from_ops(const Program& p, Traits& t) {
  Votes<Rows> rows;
  Votes<std::int64_t> tiles, positions;
  Votes<DType> computes;
  Votes<bool> rings, scaled;
  for_each_step(p, [&](const Step& step) {
    const Attributes& a = step.attributes;
    if (a.positions > 0) positions.add(a.positions);
    if (a.tile > 0) tiles.add(a.tile);
    if (std::holds_alternative<SetFlag>(step.op)) scaled.add(a.scaled);
    const auto* c = std::get_if<Compute>(&step.op);
    if (!c) return;
    rows.add(a.rows);
    if (a.compute) computes.add(*a.compute);
    if (declaration_of(c->part).ring_step) rings.add(c->portion >= 0);
  });
  t.rows = rows.most({});
  t.tile = tiles.most(t.rows.count());  // if no op gives a tile, the head is one chunk
  t.positions = positions.most(0);
  t.compute = computes.most(DType::kF32);
  t.in_a_ring = rings.most(false);
  t.scaled = scaled.most(false);
}

// A step goes over all positions of the global batch. Ranks with fewer micro-batches than others run empty ones. If a
// program does not give the number of positions, its micro-batches are those of its schedule.
std::int64_t micro_batches_of(const Program& p, const Traits& t) {
  const std::int64_t sequence = t.rows.length * t.context_ranks(), ranks = t.grid.along(mesh::kDataParallel);
  const std::int64_t round = t.rows.sequences * ranks;
  if (t.positions > 0 && sequence > 0 && round > 0) return (t.positions / sequence + round - 1) / round;
  std::set<std::int64_t> scheduled;
  for (const Instance& i : p.schedule)
    if (i.micro_batch >= 0) scheduled.insert(i.micro_batch);
  return static_cast<std::int64_t>(scheduled.size());
}

// Returns whether `has` is true of most buffers that hold a value; copies of other buffers are not counted.
template <class Has>
bool most_hold(const Program& p, Value role, const Has& has) {
  Votes<bool> votes;
  for (const Buffer& b : p.buffers)
    if (b.role == role && b.copy == 0) votes.add(has(b));
  return votes.most(false);
}

// Finds which values lie in the host's memory: states, and values that leave the device while they are not used.
void infer_offload(const Program& p, Traits& t) {
  Votes<bool> states;
  for (const Buffer& b : p.buffers) {
    if (class_of(b.role) == ValueClass::kState) states.add(b.place == Place::kHost);
    t.offload.activations = t.offload.activations || (b.place == Place::kHost && !of_unit(b.role));
  }
  const auto leaves = [](const Buffer& b) { return b.lifetime == Lifetime::kTransient; };
  t.offload.optimizer = states.most(false);
  t.offload.gradients = most_hold(p, t.sharded_gradients() ? Value::kGradShard : Value::kGrad, leaves);
  t.offload.parameters = most_hold(p, t.sharded_parameters() ? Value::kParamShard : Value::kParam, leaves);
}

// Infers traits from the roles, types, places and lifetimes of buffers.
void infer_from_buffers(const Program& p, Traits& t) {
  Votes<bool> external;  // votes of parameters that stay after an instance
  Votes<DType> masters, messages;
  for (const Buffer& b : p.buffers) {
    const bool parameters = b.role == Value::kParam || b.role == Value::kParamShard || b.role == Value::kParamHost;
    if (parameters && b.lifetime != Lifetime::kTransient) external.add(b.lifetime == Lifetime::kExternal);
    if (b.role == Value::kMaster) masters.add(b.dtype);
    if (b.role == Value::kGradCommunication) messages.add(b.dtype);
    t.parameters_cut = t.parameters_cut || b.role == Value::kParamShard;
    t.documents = t.documents || b.role == Value::kDocuments;
  }
  // An evaluation reads the parameters of a training.
  t.purpose = external.most(false) ? Purpose::kEvaluate : Purpose::kTrain;
  t.master = masters.most(t.compute);
  t.message = messages.most(DType::kF32);
  // If the second halves of backwards still read the residual gradients, each layer has a buffer for its own.
  t.halves = most_hold(p, Value::kDResidual, [](const Buffer& b) { return b.layer >= 0; });
  infer_offload(p, t);
}

// Returns the placement that fits the chunks of the stage. If both placements fit, the peers of most of its messages
// decide.
Placement placement_of(const Program& p, const Traits& t) {
  const int stages = t.stages(), stage = stage_shown(p);
  if (p.chunks.size() != 2 || p.chunks[1].global_stage != global_stage_of(Placement::kV, stages, stage, 1))
    return Placement::kInterleaved;
  if (p.chunks[1].global_stage != global_stage_of(Placement::kInterleaved, stages, stage, 1)) return Placement::kV;
  const Chunk& second = p.chunks[1];
  Votes<Placement> votes;
  const auto message = [&](const auto& o, bool sends) {
    const bool front = sends == (o.payload == Payload::kDResidual);
    if (o.layer != (front ? second.first : second.end)) return;
    for (const Placement fits : {Placement::kInterleaved, Placement::kV})
      if (o.peer == stage_of(fits, stages, second.global_stage + (front ? -1 : 1))) votes.add(fits);
  };
  for_each_step(p, [&](const Step& step) {
    if (const auto* send = std::get_if<Send>(&step.op)) message(*send, true);
    if (const auto* receive = std::get_if<Receive>(&step.op)) message(*receive, false);
  });
  return votes.most(Placement::kInterleaved);
}

}  // namespace

Traits inferred_traits(const Program& p) {
  Traits t;
  t.grid = p.grid;
  infer_from_ops(p, t);
  infer_from_buffers(p, t);
  t.micro_batches = micro_batches_of(p, t);
  t.placement = placement_of(p, t);
  return t;
}

KernelChoice usual_choice(const Program& p) {
  Votes<arch::Kernels> kernels;
  Votes<int> threads;
  for_each_step(p, [&](const Step& step) {
    if (step.attributes.kernel) kernels.add(*step.attributes.kernel);
    if (step.attributes.threads > 0) threads.add(step.attributes.threads);
  });
  return {kernels.most(arch::Kernels::kReference), threads.most(1)};
}

}  // namespace molen::program
