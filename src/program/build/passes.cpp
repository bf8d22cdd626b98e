// The lowering passes after the micro-batch itself. Each takes a program and returns one.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "arch/context_parallel.h"
#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "base/match.h"
#include "program/build/build.h"
#include "program/build/build_detail.h"
#include "program/build/recompute.h"
#include "program/ir/slots.h"
#include "program/parts/part.h"
#include "program/values/costs.h"
#include "program/values/of_op.h"
#include "program/values/of_setting.h"

namespace molen::program {

namespace detail {

bool has_padding(const Program& p, const Unit& unit) {
  std::int64_t used = 0;
  bool uneven = false;  // some tensor ranks lack rows of a shared vocabulary
  for (const auto& entry : unit.entries) {
    const arch::Parameter& parameter = p.parameters[static_cast<std::size_t>(entry.parameter)];
    used += parameter.elements();
    const bool vocabulary = parameter.role == arch::Role::kEmbedding || parameter.role == arch::Role::kHead;
    uneven = uneven || (vocabulary && p.arch.vocabulary % p.setting.tensor_ranks() != 0);
  }
  return uneven || used < unit.elements;
}

void set_gradient_access(Program& p, Body& body, bool first) {
  for (Step& step : body.steps)
    if (const auto* c = std::get_if<Compute>(&step.op)) {
      if (!is_backward(c->pass)) continue;
      // Chunks of the head, and pieces of the rows, share one gradient. A tied embedding adds to the head's gradient.
      const bool head = of_head(c->part);
      const bool earlier_writer = ((head || by_pieces(p.setting.rows(), c->part)) && c->portion > 0) ||
                                  (p.arch.tied && declaration_of(c->part).reads_role(arch::Role::kEmbedding, true));
      if (step.find(Arg::kGrad))
        step.operand(Arg::kGrad).access = first && !earlier_writer ? Access::kWrite : Access::kUpdate;
    }
}

void clear_gradients(Program& p, Body& body, const Clearing& clearing) {
  std::set<int> written;
  for (const Step& step : body.steps)
    for (const Use& use : step.operands)
      if (const int u = p.unit_of_buffer(use.buffer); use.writes() && u >= 0) written.insert(u);
  if (clearing.all)
    for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
      const std::int64_t layer = p.units[static_cast<std::size_t>(u)].first;
      if (clearing.all->first <= layer && layer < clearing.all->end) written.insert(u);
    }
  const int embed = p.find_unit("embed");
  std::vector<Step> fills;
  for (const int u : written) {
    if (u == clearing.but) continue;
    const bool all = clearing.whole || (p.arch.tied && u == embed);  // head and embedding both add
    // A gradient that stays from step to step keeps the zeros with which the arena began.
    const bool padding = p.setting.reduces_each_micro_batch() && has_padding(p, p.units[static_cast<std::size_t>(u)]);
    if (all || padding) fills.push_back(make_step(p, ZeroFill{!all}, u, Phase::kBackward, Stream::kCompute));
  }
  body.steps.insert(body.steps.begin(), fills.begin(), fills.end());
}

void drop_unused_buffers(Program& p) {
  std::vector<bool> used(p.buffers.size(), false);
  const auto each_use = [&](const std::function<void(Use&)>& f) {
    for (auto& body : p.bodies)
      for (auto& step : body.steps) std::for_each(step.operands.begin(), step.operands.end(), f);
  };
  each_use([&](Use& use) { used[static_cast<std::size_t>(use.buffer)] = true; });
  std::vector<int> renumbered(p.buffers.size(), -1);
  std::vector<Buffer> kept;
  for (std::size_t i = 0; i < p.buffers.size(); ++i)
    if (used[i]) {
      renumbered[i] = static_cast<int>(kept.size());
      kept.push_back(p.buffers[i]);
    }
  p.buffers = std::move(kept);
  each_use([&](Use& use) { use.buffer = renumbered[static_cast<std::size_t>(use.buffer)]; });
}

void find_lifetimes(Program& p) {
  std::set<int> kept;
  for (const Body& body : p.bodies) {
    std::set<int> written;
    for (const Step& step : body.steps) {
      for (const Use& use : step.operands)
        if (use.reads() && !written.count(use.buffer)) kept.insert(use.buffer);
      for (const Use& use : step.operands)
        if (use.writes()) written.insert(use.buffer);
    }
  }
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    Lifetime& lifetime = p.buffers[b].lifetime;
    const bool value = lifetime == Lifetime::kTransient || lifetime == Lifetime::kMicroBatch;
    if (value && p.unit_of_buffer(static_cast<int>(b)) < 0)
      lifetime = kept.count(static_cast<int>(b)) ? Lifetime::kMicroBatch : Lifetime::kTransient;
  }
}

}  // namespace detail

namespace pass {
namespace {

const Compute* compute_of(const Step& step) {
  return std::get_if<Compute>(&step.op);
}

Body without_zero_fill(Body body) {
  std::erase_if(body.steps, [](const Step& s) { return std::holds_alternative<ZeroFill>(s.op); });
  return body;
}

// Rewrites the forward and the backward of one micro-batch in which every value still has a buffer for each layer.
class Recomputer {
 public:
  explicit Recomputer(Program& p) : p_(p) {}

  void run(Body& body) {
    for (Step& step : body.steps) {
      const Compute* c = compute_of(step);
      const bool backward = c && is_backward(c->pass);
      if (backward) make_again(step.op);
      // Values that ranks exchange at this point belong to the forward, so only those can be dropped.
      if (c || is_communication(step.op)) rename(step, backward ? "re" : "fwd");
      steps_.push_back(std::move(step));
    }
    body.steps = std::move(steps_);
  }

 private:
  std::optional<arch::Part> dropped(const Operand& o) {
    if (o.layer < 0 || o.layer >= p_.arch.layers) return std::nullopt;
    const Makers& makers = makers_.try_emplace(p_.arch.sparse(o.layer), p_, o.layer).first->second;
    const std::optional<Maker>& maker = makers.of(o.value);
    if (!maker || !p_.setting.recompute.in(maker->chosen, o.layer)) return std::nullopt;
    // Rows that have come from other ranks are kept. Placing the rank's own rows again would then save only a few
    // integers.
    if (maker->part == arch::Part::kDispatch && p_.setting.shares_experts()) return std::nullopt;
    return maker->part;
  }

  // Adds a recomputation of each dropped value that `op` reads, unless the value has already been computed again.
  void make_again(const Op& op) {
    for (const Operand& changed : signature(p_, op, -1).operands) {
      const Operand o = changed.as_found();
      const auto part = dropped(o);
      if (!reads(o.access) || !part) continue;
      const std::int64_t tile = by_tiles(p_.setting.rows(), *part) ? o.portion : -1;
      if (!again_.emplace(*part, o.layer, tile).second) continue;
      Step step = detail::compute_step(p_, *part, Pass::kRecompute, o.layer, tile);
      make_again(step.op);
      rename(step, "re");
      steps_.push_back(std::move(step));
    }
  }

  // Puts dropped values into slots that layers share: one slot for forward, one for backward.
  void rename(Step& step, const std::string& suffix) {
    const Signature s = signature(p_, step.op, -1);
    for (const Operand& o : s.operands)
      if (dropped(o)) step.operand(o.arg).buffer = detail::ensure_buffer(p_, o, suffix);
  }

  Program& p_;
  std::map<bool, Makers> makers_;  // one for dense layers and one for sparse layers
  std::set<std::tuple<arch::Part, std::int64_t, std::int64_t>> again_;  // part, layer and tile of experts
  std::vector<Step> steps_;
};

}  // namespace

Program recompute(Program p) {
  for (Body& body : p.bodies) Recomputer(p).run(body);
  detail::drop_unused_buffers(p);
  return p;
}

Program micro_batch_loop(Program p) {
  const std::int64_t count = p.setting.micro_batches();
  Body first = p.bodies.at(0);
  first.name = "first";
  Body later = without_zero_fill(p.bodies.at(0));
  detail::set_gradient_access(p, first, true);
  detail::clear_gradients(p, first);
  // When gradients leave, each is reduced and freed after its micro-batch. The sum is then in the shard, or on the
  // host.
  const bool fresh = p.setting.reduces_each_micro_batch();
  detail::set_gradient_access(p, later, fresh);
  if (fresh) detail::clear_gradients(p, later);

  p.bodies = {first};
  p.schedule = {{0, 0}};
  if (count > 2) {
    later.name = "middle";
    p.bodies.push_back(later);
    for (std::int64_t m = 1; m + 1 < count; ++m) p.schedule.push_back({static_cast<int>(p.bodies.size()) - 1, m});
  }
  if (count > 1) {
    later.name = "last";
    p.bodies.push_back(later);
    p.schedule.push_back({static_cast<int>(p.bodies.size()) - 1, count - 1});
  }
  return p;
}

Program costs(Program p) {
  for (Body& body : p.bodies)
    for (Step& step : body.steps) set_costs(p, step);
  return p;
}

}  // namespace pass
}  // namespace molen::program
