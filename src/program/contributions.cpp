#include "program/contributions.h"

#include "program/signature.h"

namespace molen::program {

std::vector<int> halves_of(const Program& p, const Compute& c) {
  const bool norm = c.part == arch::Part::kNormQkv || c.part == arch::Part::kNormUp;
  const bool own = norm && p.arch.norm != arch::Norm::kLayerPlain;
  switch (c.pass) {
    case ComputePass::kBackward:
      return {0, 1};
    case ComputePass::kInput:
      return own ? std::vector{0} : std::vector<int>{};
    case ComputePass::kWeights:
      return own ? std::vector{1} : std::vector{0, 1};
    case ComputePass::kForward:
    case ComputePass::kRecompute:
      break;
  }
  return {};
}

std::vector<std::size_t> contributions_in(const Program& p, const Body& body) {
  std::vector<std::size_t> made(p.units.size(), 0);
  for (const Step& step : body.steps)
    if (const auto* c = std::get_if<Compute>(&step.op))
      if (const int u = unit_of_part(p, c->part, c->layer); u >= 0)
        made[static_cast<std::size_t>(u)] += halves_of(p, *c).size();
  return made;
}

std::size_t expected_contributions(const Program& p, int unit) {
  std::size_t parts = 0;
  const auto add = [&](arch::Part part, std::int64_t layer, std::size_t n) {
    if (unit_of_part(p, part, layer) == unit) parts += n;
  };
  if (p.embeds()) add(arch::Part::kEmbed, -1, 1);
  if (p.has_head()) {
    add(arch::Part::kFinalNorm, -1, 1);
    add(p.setting.tensor() ? arch::Part::kHeadLoss : arch::Part::kHead, -1,
        static_cast<std::size_t>(p.setting.head_chunks()));
  }
  // The parts of a layer that have gradients: norm_qkv and out_projection, norm_up and down.
  const Unit& u = p.units[static_cast<std::size_t>(unit)];
  parts +=
      static_cast<std::size_t>(u.end - u.first) * (u.blocks == Blocks::kBoth ? 4 : 2) * row_chunks(p.setting).size();
  return 2 * parts * static_cast<std::size_t>(p.setting.micro_batches());
}

}  // namespace molen::program
