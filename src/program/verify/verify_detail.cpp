#include "program/verify/verify_detail.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "program/parts/part.h"
#include "program/values/signature.h"

namespace molen::program::detail {

bool of_this_stage(const Program& p, const Op& op) {
  const Setting& s = p.setting;
  const auto any = [&](const std::function<bool(const Chunk&)>& fits) {
    return std::any_of(p.chunks.begin(), p.chunks.end(), fits);
  };
  const auto peer = [&](int global) { return stage_of(s.pipeline.placement, s.stages(), global); };
  const auto boundary = [&](const auto& o, bool sends) {
    const bool front = sends == (o.moves == Moves::kDResidual);
    return s.pipelined() && any([&](const Chunk& c) {
             return o.layer == (front ? c.first : c.end) && !(front ? c.embed : c.head) &&
                    o.peer == peer(c.global_stage + (front ? -1 : 1)) && o.peer != s.pipeline.stage;
           });
  };
  if (const auto* send = std::get_if<Send>(&op)) return boundary(*send, true);
  if (const auto* receive = std::get_if<Receive>(&op)) return boundary(*receive, false);
  const auto* c = std::get_if<Compute>(&op);
  if (!c) return true;
  if (c->layer >= 0) return any([&](const Chunk& k) { return k.first <= c->layer && c->layer < k.end; });
  return declaration_of(c->part).standing == Standing::kBefore ? p.embeds() : p.has_head();
}

std::size_t messages_needed(const Program& p) {
  std::size_t each = 0;
  const Setting& s = p.setting;
  if (!s.pipelined()) return 0;
  const bool train = s.purpose == Purpose::kTrain;
  for (const Chunk& c : p.chunks)
    for (const int to : {c.global_stage - 1, c.global_stage + 1}) {
      const bool inside = to >= 0 && to < s.stages() * s.pipeline.chunks;
      if (inside && stage_of(s.pipeline.placement, s.stages(), to) != s.pipeline.stage) each += train ? 2 : 1;
    }
  return each * (train ? static_cast<std::size_t>(s.micro_batches()) : 1);
}

std::vector<Axis> axes_of_sum(const Setting& s, std::int64_t scalar) {
  std::vector<Axis> axes;
  if (s.holders() > 1) {
    if (scalar != kSumSquares)
      axes.push_back(Axis::kDp);
    else if (s.owns_part())
      axes.push_back(s.sharded_gradients() && s.replicas() > 1 && !s.own_over_dp ? Axis::kShard : Axis::kDp);
    else if (s.shares_experts())
      axes.push_back(Axis::kEp);
  }
  if (s.tensor() && scalar == kSumSquares) axes.push_back(Axis::kTp);
  if (s.pipelined()) axes.push_back(Axis::kPp);
  return axes;
}

std::optional<std::string> stream_refused(const Program& p, const Step& step) {
  const Stream usual = stream_of(p, step.op);
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

std::vector<std::string> LossesOfLayers::missing(const Program& p) const {
  std::vector<std::string> all;
  for (const Chunk& chunk : p.chunks)
    for (std::int64_t layer = chunk.first; layer < chunk.end; ++layer)
      for (const arch::Part part : arch::parts_of_layer(p.arch, layer))
        for (std::int64_t m = 0; m < p.setting.micro_batches(); ++m)
          if (adds_losses({part, ComputePass::kForward, layer, -1}) && !ran_.contains({part, layer, m}))
            all.push_back(fmt::format("forward {}, layer {}, micro-batch {}: is left out, and with it a loss",
                                      arch::name_of(part), layer, m));
  return all;
}

}  // namespace molen::program::detail
