#include "program/values/attributes.h"

#include <fmt/format.h>

#include "base/match.h"
#include "program/parts/part.h"

namespace molen::program {
namespace {

Attributes of_part(const Traits& t, const Compute& c, const KernelChoice& choice) {
  Attributes a;
  a.rows = t.rows;
  a.compute = t.compute;
  a.kernel = choice.kernel;
  a.threads = choice.threads;
  // Losses are means over the positions of the batch.
  if (is_backward(c.pass) && !declaration_of(c.part).sums.empty()) a.positions = t.positions;
  if (of_head(c.part)) a.tile = t.tile;
  return a;
}

// Returns the attributes of an exchange between tensor ranks, pipeline stages or context ranks. Units are flat and have
// no rows.
Attributes of_move(const Traits& t, Payload payload) {
  Attributes a;
  if (payload != Payload::kUnit && payload != Payload::kHead) a.rows = t.rows;
  return a;
}

Attributes on_cores(const KernelChoice& choice) {
  Attributes a;
  a.threads = choice.threads;
  return a;
}

}  // namespace

Attributes attributes_of(const Traits& t, const Op& op, const KernelChoice& choice) {
  Attributes none;
  return std::visit(Match{
                        [&](const Compute& c) { return of_part(t, c, choice); },
                        [&](const LoadBatch&) {
                          none.rows = {t.rows.sequences, t.rows.length * t.context_ranks()};
                          return none;
                        },
                        [&](const SumSquares&) { return on_cores(choice); },
                        [&](const OptimizerStep&) { return on_cores(choice); },
                        [&](const CopyToHost&) { return on_cores(choice); },
                        [&](const CopyToDevice&) { return on_cores(choice); },
                        [&](const ClipScale&) {
                          none.positions = t.positions;
                          return none;
                        },
                        [&](const SetFlag&) {
                          none.scaled = t.scaled;
                          return none;
                        },
                        [&](const SetClock&) { return none; },
                        [&](const AllReduce&) { return none; },
                        [&](const ReduceScatter& o) { return of_move(t, o.payload); },
                        [&](const AllGather& o) { return of_move(t, o.payload); },
                        [&](const AllToAll& o) { return of_move(t, o.payload); },
                        [&](const Send& o) { return of_move(t, o.payload); },
                        [&](const Receive& o) { return of_move(t, o.payload); },
                        [&](const RingExchange& o) { return of_move(t, o.payload); },
                        [&](const ZeroFill&) { return none; },
                        [&](const Cast&) { return none; },
                        [&](const ReduceScalars&) { return none; },
                    },
                    op);
}

std::optional<std::string> kernel_refused(const Program& p, const Step& step, bool cuda) {
  const auto* part = std::get_if<Compute>(&step.op);
  const Attributes& has = step.attributes;
  if (!part || !has.kernel || !has.compute) return std::nullopt;
  const KernelRequest request{.compute = *has.compute,
                              .head_dim = p.arch.head_dim,
                              .documents = step.find(Arg::kDocuments) != nullptr,
                              .context_ranks = p.grid.sizes[mesh::Axis::kCp],
                              .cuda = cuda};
  if (const auto why = kernels_refused(*has.kernel, part->part, request))
    return fmt::format("kernel={} cannot compute it: {}", arch::name_of(*has.kernel), *why);
  return std::nullopt;
}

std::optional<std::string> attributes_refused(const Program& p, const Traits& traits, const KernelChoice& usual,
                                              const Step& step) {
  const Attributes& has = step.attributes;
  const KernelChoice choice{has.kernel.value_or(usual.kernel), has.threads > 0 ? has.threads : usual.threads};
  const Attributes want = attributes_of(traits, step.op, choice);
  if (!(has == want)) return fmt::format("has the attributes [{}] where it needs [{}]", text_of(has), text_of(want));
  return kernel_refused(p, step);
}

std::string text_of(const Attributes& a) {
  std::string text;
  const auto add = [&](bool has, const char* key, const auto& value) {
    if (has) text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value);
  };
  add(a.rows.count() > 0, "rows", fmt::format("{}x{}", a.rows.sequences, a.rows.length));
  add(a.rows.pieces > 1, "pieces", a.rows.pieces);
  add(a.rows.sharded, "sharded", 1);
  add(a.rows.expert_tiles > 1, "expert_tiles", a.rows.expert_tiles);
  add(a.tile > 0, "tile", a.tile);
  add(a.positions > 0, "positions", a.positions);
  add(a.scaled, "scaled", 1);
  add(a.compute.has_value(), "compute", a.compute ? name_of(*a.compute) : "");
  add(a.kernel.has_value(), "kernel", a.kernel ? arch::name_of(*a.kernel) : "");
  add(a.threads > 0, "threads", a.threads);
  return text;
}

}  // namespace molen::program
