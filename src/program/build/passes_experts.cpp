// The communication of expert ranks: rows go to the ranks of their experts, and the outputs of the experts return. If
// the experts of a rank are cut into tiles, the rows of one tile travel while the GEMMs of another run.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "program/build/build.h"
#include "program/build/build_detail.h"
#include "program/parts/part.h"
#include "program/values/of_setting.h"

namespace molen::program::pass {
namespace {

class ExpertExchange {
 public:
  explicit ExpertExchange(Program& p) : p_(p), suffix_(p.setting.purpose == Purpose::kTrain ? "" : "slot") {
    const std::int64_t tiles = p.setting.expert_tiles;
    for (std::int64_t tile = 0; tile < tiles; ++tile) tiles_.push_back(tiles > 1 ? tile : -1);
  }

  void run(Body& body) {
    for (std::size_t i = 0; i < body.steps.size();) {
      const std::size_t end = end_of_experts(body.steps, i);
      if (end == i)
        add_with_exchanges(std::move(body.steps[i++]));
      else
        // All parts of one tile come before the next tile, so that its rows can return meanwhile.
        for (const std::int64_t tile : tiles_)
          for (std::size_t k = i; k < end; ++k) add_tile(std::get<Compute>(body.steps[k].op), tile);
      i = std::max(i, end);
    }
    body.steps = std::exchange(steps_, {});
  }

 private:
  // Returns the end of the parts of experts that begin at step `first`: `first` itself if there are none.
  static std::size_t end_of_experts(const std::vector<Step>& steps, std::size_t first) {
    std::size_t end = first;
    for (; end < steps.size(); ++end) {
      const auto* c = std::get_if<Compute>(&steps[end].op);
      if (!c || !declaration_of(c->part).computes_experts()) break;
    }
    return end;
  }

  // The rows of all tiles leave at once, in the order in which the tiles are computed.
  void add_with_exchanges(Step step) {
    const Phase phase = step.phase;
    const Op op = step.op;
    steps_.push_back(std::move(step));
    const auto* compute = std::get_if<Compute>(&op);
    if (!compute) return;
    const Compute& c = *compute;
    if (c.part == arch::Part::kDispatch && c.pass == Pass::kForward) {
      add(AllGather{Axis::kEp, Payload::kOffsets, c.layer}, phase);
      for (const std::int64_t tile : tiles_) add(AllToAll{Axis::kEp, Payload::kExpertRows, c.layer, tile}, phase);
    } else if (c.part == arch::Part::kCombine && is_backward(c.pass)) {
      for (const std::int64_t tile : tiles_) add(AllToAll{Axis::kEp, Payload::kDExpertOut, c.layer, tile}, phase);
    }
  }

  void add_tile(const Compute& c, std::int64_t tile) {
    steps_.push_back(detail::compute_step(p_, c.part, c.pass, c.layer, tile, suffix_));
    const Phase phase = steps_.back().phase;
    if (c.part == arch::Part::kExpertDown && c.pass == Pass::kForward)
      add(AllToAll{Axis::kEp, Payload::kExpertOut, c.layer, tile}, phase);
    else if (c.part == arch::Part::kExpertUp && is_backward(c.pass))
      add(AllToAll{Axis::kEp, Payload::kDExpertRows, c.layer, tile}, phase);
  }

  void add(Op op, Phase phase) {
    const Stream stream = stream_of(p_, op);
    steps_.push_back(detail::make_step(p_, std::move(op), -1, phase, stream, suffix_));
  }

  Program& p_;
  std::string suffix_;
  std::vector<std::int64_t> tiles_;  // only -1 if the experts are not cut into tiles
  std::vector<Step> steps_;
};

}  // namespace

Program exchange_experts(Program p) {
  if (!p.setting.shares_experts()) return p;
  ExpertExchange exchange(p);
  for (Body& body : p.bodies) exchange.run(body);
  return p;
}

}  // namespace molen::program::pass
