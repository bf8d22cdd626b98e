#include "program/values/attributes.h"

#include <fmt/format.h>

#include "base/match.h"
#include "program/parts/part.h"

namespace molen::program {
namespace {

Attributes of_part(const Setting& s, const Compute& c) {
  Attributes a;
  a.rows = s.rows();
  a.compute = s.compute;
  a.kernel = s.kernels_of(c.part);
  a.threads = s.threads;
  // Losses are means over the positions of the batch.
  if (is_backward(c.pass) && !declaration_of(c.part).sums.empty()) a.positions = s.positions();
  if (of_head(c.part)) a.tile = s.head_chunk;
  return a;
}

// Rows of tensor ranks, of pipeline stages or of context ranks. Units are flat and have no rows.
Attributes of_move(const Setting& s, Moves moves) {
  Attributes a;
  if (moves != Moves::kUnit && moves != Moves::kHead) a.rows = s.rows();
  return a;
}

Attributes on_cores(const Setting& s) {
  Attributes a;
  a.threads = s.threads;
  return a;
}

}  // namespace

Attributes attributes_of(const Setting& s, const Op& op) {
  Attributes none;
  return std::visit(Match{
                        [&](const Compute& c) { return of_part(s, c); },
                        [&](const LoadBatch&) {
                          none.rows = {s.micro_batch, s.sequence};
                          return none;
                        },
                        [&](const SumSquares&) { return on_cores(s); },
                        [&](const OptimizerStep&) { return on_cores(s); },
                        [&](const CopyToHost&) { return on_cores(s); },
                        [&](const CopyToDevice&) { return on_cores(s); },
                        [&](const ClipScale&) {
                          none.positions = s.positions();
                          return none;
                        },
                        [&](const Agree&) {
                          none.scaled = s.scales_loss();
                          return none;
                        },
                        [&](const AllReduce&) { return none; },
                        [&](const ReduceScatter& o) { return of_move(s, o.moves); },
                        [&](const AllGather& o) { return of_move(s, o.moves); },
                        [&](const AllToAll& o) { return of_move(s, o.moves); },
                        [&](const Send& o) { return of_move(s, o.moves); },
                        [&](const Receive& o) { return of_move(s, o.moves); },
                        [&](const Shift& o) { return of_move(s, o.moves); },
                        [&](const ZeroFill&) { return none; },
                        [&](const Cast&) { return none; },
                        [&](const ReduceScalars&) { return none; },
                    },
                    op);
}

std::optional<std::string> attributes_refused(const Program& p, const Step& step) {
  const Attributes& has = step.attributes;
  Attributes want = attributes_of(p.setting, step.op);
  if (has.kernel && want.kernel) want.kernel = has.kernel;
  if (!(has == want)) return fmt::format("has the attributes [{}] where it needs [{}]", text_of(has), text_of(want));
  const auto* part = std::get_if<Compute>(&step.op);
  if (!part) return std::nullopt;
  const KernelRequest request{.compute = *has.compute,
                              .head_dim = p.arch.head_dim,
                              .documents = step.find(Arg::kDocuments) != nullptr,
                              .context_ranks = p.grid.sizes[mesh::Axis::kCp]};
  if (const auto why = kernels_refused(*has.kernel, part->part, request))
    return fmt::format("kernel={} cannot compute it: {}", arch::name_of(*has.kernel), *why);
  return std::nullopt;
}

std::string text_of(const Attributes& a) {
  std::string text;
  const auto add = [&](bool has, const char* key, const auto& value) {
    if (has) text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value);
  };
  add(a.rows.count() > 0, "rows", fmt::format("{}x{}", a.rows.sequences, a.rows.length));
  add(a.rows.pieces > 1, "pieces", a.rows.pieces);
  add(a.rows.sharded, "sharded", 1);
  add(a.tile > 0, "tile", a.tile);
  add(a.positions > 0, "positions", a.positions);
  add(a.scaled, "scaled", 1);
  add(a.compute.has_value(), "compute", a.compute ? name_of(*a.compute) : "");
  add(a.kernel.has_value(), "kernel", a.kernel ? arch::name_of(*a.kernel) : "");
  add(a.threads > 0, "threads", a.threads);
  return text;
}

}  // namespace molen::program
