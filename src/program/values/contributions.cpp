#include "program/values/contributions.h"

#include <algorithm>

#include "program/parts/part.h"
#include "program/values/of_op.h"

namespace molen::program {

std::vector<int> halves_of(const Program& p, const Compute& c) {
  const bool own = declaration_of(c.part).halves_share() && p.arch.norm != arch::Norm::kLayerPlain;
  switch (c.pass) {
    case Pass::kBackward:
      return {0, 1};
    case Pass::kBackwardInput:
      if (!declaration_of(c.part).halves) return {0, 1};  // the backward is not split
      return own ? std::vector{0} : std::vector<int>{};
    case Pass::kBackwardWeights:
      return own ? std::vector{1} : std::vector{0, 1};
    case Pass::kForward:
    case Pass::kRecompute:
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

std::size_t expected_contributions(const Program& p, const Traits& t, int unit) {
  std::size_t parts = 0;
  const auto add = [&](arch::Part part, std::int64_t layer, std::size_t n) {
    if (declaration_of(part).has_backward() && unit_of_part(p, part, layer) == unit) parts += n;
  };
  if (p.embeds())
    for (const arch::Part part : arch::parts_before(p.arch)) add(part, -1, 1);
  if (p.has_head()) {
    for (const arch::Part part : arch::parts_after(p.arch)) add(part, -1, 1);
    for (const arch::Part part : arch::parts_of_head(p.arch, t.tensor()))
      add(part, -1, static_cast<std::size_t>(t.head_chunks()));
  }
  const Unit& u = p.units[static_cast<std::size_t>(unit)];
  const std::size_t pieces = pieces_of_rows(t.rows).size();
  for (std::int64_t l = u.first; l < u.end; ++l)
    for (const arch::Part part : arch::parts_of_layer(p.arch, l)) {
      const PartDeclaration& d = declaration_of(part);
      const Sublayer sublayer = d.standing == Standing::kAttentionBlock ? Sublayer::kAttention : Sublayer::kMlp;
      const bool experts = t.shares_experts() && std::ranges::any_of(d.roles, arch::of_expert);
      if (u.has(l, sublayer) && u.experts == experts && d.has_parameters(p.arch))
        parts += by_tiles(t.rows, part)    ? static_cast<std::size_t>(t.rows.expert_tiles)
                 : by_pieces(t.rows, part) ? pieces
                                           : 1;
    }
  return 2 * parts * static_cast<std::size_t>(t.micro_batches);
}

}  // namespace molen::program
