// The communication of expert ranks: rows go to the ranks of their experts, and the outputs of the experts return.
#include <string>
#include <utility>

#include "program/build/build.h"
#include "program/build/build_detail.h"
#include "program/values/of_setting.h"

namespace molen::program::pass {
namespace {

// Appends the exchanges that follow an op of a sparse layer.
void exchange_behind(Program& p, const Compute& c, Phase phase, std::vector<Step>& steps) {
  const std::string suffix = p.setting.purpose == Purpose::kTrain ? "" : "slot";
  const auto add = [&](Op op) {
    const Stream stream = stream_of(p, op);
    steps.push_back(detail::make_step(p, std::move(op), -1, phase, stream, suffix));
  };
  if (c.part == arch::Part::kDispatch && c.pass == ComputePass::kForward) {
    add(AllGather{Axis::kEp, Moves::kOffsets, c.layer});
    add(AllToAll{Axis::kEp, Moves::kExpertRows, c.layer});
  } else if (c.part == arch::Part::kExpertDown && c.pass == ComputePass::kForward) {
    add(AllToAll{Axis::kEp, Moves::kExpertOut, c.layer});
  } else if (c.part == arch::Part::kCombine && is_backward(c.pass)) {
    add(AllToAll{Axis::kEp, Moves::kDExpertOut, c.layer});
  } else if (c.part == arch::Part::kExpertUp && is_backward(c.pass)) {
    add(AllToAll{Axis::kEp, Moves::kDExpertRows, c.layer});
  }
}

}  // namespace

Program exchange_experts(Program p) {
  if (!p.setting.shares_experts()) return p;
  for (Body& body : p.bodies) {
    std::vector<Step> steps;
    for (Step& step : body.steps) {
      steps.push_back(std::move(step));
      const Step last = steps.back();
      if (const auto* c = std::get_if<Compute>(&last.op)) exchange_behind(p, *c, last.phase, steps);
    }
    body.steps = std::move(steps);
  }
  return p;
}

}  // namespace molen::program::pass
