#include "program/verify/verify_detail.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "program/ir/stages.h"
#include "program/parts/part.h"
#include "program/values/of_op.h"
#include "program/verify/inferred.h"

namespace molen::program::detail {

bool of_this_stage(const Program& p, const Traits& t, const Op& op) {
  const auto any = [&](const std::function<bool(const Chunk&)>& fits) {
    return std::any_of(p.chunks.begin(), p.chunks.end(), fits);
  };
  const auto peer = [&](int global) { return stage_of(t.placement, t.stages(), global); };
  const auto boundary = [&](const auto& o, bool sends) {
    const bool front = sends == (o.payload == Payload::kDResidual);
    return t.pipelined() && any([&](const Chunk& c) {
             return o.layer == (front ? c.first : c.end) && !(front ? c.embed : c.head) &&
                    o.peer == peer(c.global_stage + (front ? -1 : 1)) && o.peer != stage_shown(p);
           });
  };
  if (const auto* send = std::get_if<Send>(&op)) return boundary(*send, true);
  if (const auto* receive = std::get_if<Receive>(&op)) return boundary(*receive, false);
  const auto* c = std::get_if<Compute>(&op);
  if (!c) return true;
  if (c->layer >= 0) return any([&](const Chunk& k) { return k.first <= c->layer && c->layer < k.end; });
  return declaration_of(c->part).standing == Standing::kBefore ? p.embeds() : p.has_head();
}

std::size_t messages_needed(const Program& p, const Traits& t) {
  std::size_t each = 0;
  if (!t.pipelined()) return 0;
  const int stages = t.stages() * static_cast<int>(p.chunks.size());
  for (const Chunk& c : p.chunks)
    for (const int to : {c.global_stage - 1, c.global_stage + 1}) {
      const bool inside = to >= 0 && to < stages;
      if (inside && stage_of(t.placement, t.stages(), to) != stage_shown(p)) each += t.trains() ? 2 : 1;
    }
  return each * (t.trains() ? static_cast<std::size_t>(t.micro_batches) : 1);
}

std::vector<Axis> axes_of_sum(const Traits& t, std::int64_t scalar) {
  std::vector<Axis> axes;
  if (t.replica_group_size() > 1) {
    if (scalar != kSumSquares)
      axes.push_back(Axis::kDp);
    else if (t.owns_part())
      axes.push_back(t.sharded_gradients() && t.replicas() > 1 && !t.owns_part_of_shard() ? Axis::kShard : Axis::kDp);
    else if (t.shares_experts())
      axes.push_back(Axis::kEp);
  }
  if (t.tensor() && scalar == kSumSquares) axes.push_back(Axis::kTp);
  if (t.pipelined()) axes.push_back(Axis::kPp);
  return axes;
}

std::vector<Axis> axes_of_gather(const Traits& t, const Unit& unit) {
  if (!t.owns_part()) return {};
  if (!t.sharded_gradients()) return {axis_for(unit, Axis::kDp)};
  std::vector<Axis> axes;
  if (t.owns_part_of_shard()) axes.push_back(Axis::kReplicate);
  if (!t.sharded_parameters()) axes.push_back(axis_for(unit, Axis::kShard));
  return axes;
}

bool has_gaps(const Program& p, const Unit& unit) {
  std::int64_t used = 0;
  for (const UnitEntry& entry : unit.entries) {
    const arch::Parameter& parameter = p.parameters[static_cast<std::size_t>(entry.parameter)];
    // The last of the tensor ranks that share a vocabulary may have fewer rows than the others.
    const bool vocabulary = parameter.role == arch::Role::kEmbedding || parameter.role == arch::Role::kHead;
    if (vocabulary && p.arch.vocabulary % p.grid.sizes[mesh::Axis::kTp] != 0) return true;
    used += parameter.elements();
  }
  return used < unit.elements;
}

std::optional<std::string> stream_refused(const Traits& t, const Step& step) {
  const Stream usual = stream_of(t.offload, step.op);
  if (step.stream == usual || (communicates(usual) && communicates(step.stream))) return std::nullopt;
  std::string streams(name_of(usual));
  if (communicates(usual))
    for (const Stream other : kCommStreams)
      if (other != usual) streams += fmt::format(" (or {})", name_of(other));
  return fmt::format("belongs on the stream {}, not on {}", streams, name_of(step.stream));
}

bool adds_losses(const Compute& op) {
  const PartDeclaration& part = declaration_of(op.part);
  return !is_backward(op.pass) && part.in_layer() && !part.sums.empty();
}

std::vector<std::string> LossesOfLayers::missing(const Program& p, std::int64_t micro_batches, std::size_t most) const {
  std::vector<std::string> all;
  for (const Chunk& chunk : p.chunks)
    for (std::int64_t layer = chunk.first; layer < chunk.end; ++layer)
      for (const arch::Part part : arch::parts_of_layer(p.arch, layer)) {
        if (!adds_losses({part, Pass::kForward, layer, -1})) continue;
        for (std::int64_t m = 0; m < micro_batches && all.size() < most; ++m)
          if (!ran_.contains({part, layer, m}))
            all.push_back(fmt::format("forward {}, layer {}, micro-batch {}: is left out, and with it a loss",
                                      arch::name_of(part), layer, m));
      }
  return all;
}

}  // namespace molen::program::detail
