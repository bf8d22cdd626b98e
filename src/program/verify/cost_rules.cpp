#include "program/verify/cost_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "program/values/scratch.h"

namespace molen::program {
namespace {

struct CostsAsked {
  double model_flops = 0, hardware_flops = 0;
  std::int64_t moved = 0, scratch = 0;
};

// The work of an optimizer's update that its operands do not show. An optimizer that is not listed goes over its
// gradient once and multiplies no matrices.
struct UpdateCost {
  std::string_view kind;
  std::int64_t passes = 1;                                 // how often it goes over the gradient
  double (*flops)(double rows, double columns) = nullptr;  // for a matrix that is updated whole
};
// Muon takes five steps of the iteration of Newton and Schulz, each of which multiplies the matrix x of s rows and l
// columns, s <= l, with x', the product with itself, and the polynomial of both with x.
double five_iterations(double rows, double columns) {
  const double s = std::min(rows, columns), l = std::max(rows, columns);
  return 5 * (2 * s * l * s + 2 * s * s * s + 2 * s * s * l);
}
constexpr UpdateCost kUpdateCosts[] = {
    {"muon", 1, five_iterations},
    {"adafactor", 4},  // for the means of rows and of columns, for the size of the update, and to apply it
};

UpdateCost update_cost(std::string_view kind) {
  const auto found = std::ranges::find(kUpdateCosts, kind, &UpdateCost::kind);
  return found == std::end(kUpdateCosts) ? UpdateCost{kind} : *found;
}

class CostsOfStep {
 public:
  CostsOfStep(const Program& p, const Traits& t, const PartCostRules& parts, const Step& step, const Amounts& amounts)
      : p_(p), t_(t), parts_(parts), step_(step), a_(amounts) {}

  CostsAsked operator()(const Compute& c) const {
    const double flops = parts_.flops(c, a_);
    // To compute a result again is work of the hardware, but not of the model.
    return {c.pass == Pass::kRecompute ? 0 : flops, flops, parts_.moved(c, a_), kernel_scratch(p_, step_).value};
  }
  CostsAsked operator()(const LoadBatch&) const { return moves(crossings() - crossings(Arg::kScalars)); }
  CostsAsked operator()(const ZeroFill&) const { return moves(crossings()); }
  CostsAsked operator()(const SumSquares&) const { return moves(a_.bytes(Arg::kGrad)); }
  CostsAsked operator()(const ClipScale&) const { return moves(crossings()); }
  CostsAsked operator()(const SetFlag&) const { return moves(crossings()); }
  CostsAsked operator()(const SetClock&) const { return moves(crossings()); }
  CostsAsked operator()(const OptimizerStep& o) const { return update(o); }

  // The payload of a collective is what all ranks of its group give or get together; that of a message is what is sent
  // or received. A rank that shifts sends as much as it receives.
  CostsAsked operator()(const AllReduce&) const { return moves(a_.bytes(Arg::kTo)); }
  CostsAsked operator()(const ReduceScatter&) const { return moves(a_.bytes(Arg::kFrom)); }
  CostsAsked operator()(const AllGather&) const { return moves(a_.bytes(Arg::kTo)); }
  CostsAsked operator()(const Send&) const { return moves(a_.bytes(Arg::kFrom)); }
  CostsAsked operator()(const Receive&) const { return moves(a_.bytes(Arg::kTo)); }
  CostsAsked operator()(const RingExchange&) const { return moves(2 * a_.bytes(Arg::kTo)); }
  CostsAsked operator()(const ReduceScalars& o) const { return moves(o.count * size_of(DType::kF64)); }
  // The rows of all ranks for the experts of a tile may all arrive at one rank, which puts them in order in its
  // scratch.
  CostsAsked operator()(const AllToAll& o) const {
    const std::int64_t most =
        most_rows_of_experts(p_.arch.sparse_experts(), {t_.rows.sequences, t_.rows.length, t_.context_ranks()},
                             t_.expert_ranks(), a_.experts());
    CostsAsked asked = moves(a_.bytes(Arg::kFrom));
    asked.scratch = arch::aligned(most * p_.arch.hidden * size_of(a_.find(o.home() ? Arg::kFrom : Arg::kTo)->dtype));
    return asked;
  }

  // A copy states the bytes that cross the link between device and host, on which its time depends.
  CostsAsked operator()(const CopyToHost&) const { return moves(a_.bytes(Arg::kFrom)); }
  CostsAsked operator()(const CopyToDevice&) const { return moves(a_.bytes(Arg::kTo)); }
  // A cast that adds widens its sum one block at a time.
  CostsAsked operator()(const Cast&) const {
    CostsAsked asked = moves(crossings());
    if (a_.updates(Arg::kTo))
      asked.scratch = std::min(a_.elements(*a_.find(Arg::kTo)), arch::kWidenBlock) * size_of(DType::kF32);
    return asked;
  }

 private:
  static CostsAsked moves(std::int64_t bytes) { return {.moved = bytes}; }

  // An operand that an op reads or writes crosses memory once; an operand that it updates crosses memory twice.
  std::int64_t crossings(Arg arg) const { return (a_.updates(arg) ? 2 : 1) * a_.bytes(arg); }
  std::int64_t crossings() const {
    std::int64_t bytes = 0;
    for (const Need& need : a_.needs()) bytes += crossings(need.operand.arg);
    return bytes;
  }

  // An update goes over gradients several times, whether they are the rank's own or those of all tensor ranks. It reads
  // all else once. Each write crosses memory twice, because even a plain store to a parameter reads its cache line.
  CostsAsked update(const OptimizerStep& o) const {
    const UpdateCost cost = update_cost(o.kind);
    CostsAsked asked;
    for (const Need& need : a_.needs()) {
      const Arg arg = need.operand.arg;
      const bool writes = step_.find(arg)->writes(), gradient = arg == Arg::kGrad || arg == Arg::kDirection;
      const std::int64_t passes = gradient && o.stage != UpdateStage::kDirection ? cost.passes : 1;
      if (arg != Arg::kScalars) asked.moved += (writes ? 2 : passes) * a_.bytes(need);
    }
    asked.scratch = kernel_scratch(p_, step_).value;
    if (!cost.flops || o.stage == UpdateStage::kDirection) return asked;
    const Unit& unit = p_.units[static_cast<std::size_t>(a_.find(Arg::kGrad)->operand.layer)];
    const auto [first, end] = unit_range(t_.grid, {}, unit, Range::kOwn);
    for (const UnitEntry& entry : unit.entries)
      if (entry.columns > 0 && first <= entry.offset && entry.offset < end)
        asked.hardware_flops += cost.flops(static_cast<double>(entry.rows), static_cast<double>(entry.columns));
    return asked;
  }

  const Program& p_;
  const Traits& t_;
  const PartCostRules& parts_;
  const Step& step_;
  const Amounts& a_;
};

// Returns whether two counts of FLOPs are the same. They are products of the same sizes, multiplied in another order.
bool same_flops(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}

template <class Stated, class Asked>
std::string mismatch(std::string_view what, const Stated& stated, const Asked& asked) {
  return fmt::format(
      "its {} are {} where its operands ask for {}; remove the costs from its line to have them computed", what, stated,
      asked);
}

}  // namespace

std::optional<std::string> CostRules::refused(const Step& step, const std::vector<Need>& needs) const {
  const Amounts amounts(p_, t_, step, needs);
  const CostsAsked asked = std::visit(CostsOfStep(p_, t_, parts_, step, amounts), step.op);
  if (!same_flops(step.model_flops.value, asked.model_flops))
    return mismatch("model FLOPs", step.model_flops.value, asked.model_flops);
  if (!same_flops(step.hardware_flops.value, asked.hardware_flops))
    return mismatch("hardware FLOPs", step.hardware_flops.value, asked.hardware_flops);
  if (step.moved.value != asked.moved) return mismatch("bytes moved", step.moved.value, asked.moved);
  if (step.scratch.value != asked.scratch) return mismatch("bytes of scratch", step.scratch.value, asked.scratch);
  const EpiloguesAsked epilogues = epilogues_asked(t_, parts_, step, amounts);
  if (!epilogues.are(step.epilogues)) return mismatch("epilogues", text_of(step.epilogues), text_of(epilogues.list()));
  return std::nullopt;
}

}  // namespace molen::program
