#include "program/verify/part_cost_rules.h"

#include <algorithm>

#include "arch/context_parallel.h"
#include "arch/tensor_parallel.h"
#include "program/parts/part.h"

namespace molen::program {
namespace {

using arch::Part;
using arch::Role;

// By default, an op reads or writes each operand as a whole and once, and updates it by a read and a write. These are
// the operands of which it uses less or more.
enum class UsedPart { kRowsOfTable, kQueriesAndKeys, kTwice };
struct PartlyUsed {
  Part part;
  Arg arg;
  UsedPart used;
  bool in_backward = false;  // in backward alone
};
constexpr PartlyUsed kPartlyUsed[] = {
    {Part::kEmbed, Arg::kParam, UsedPart::kRowsOfTable},  // a token takes one row of the table
    {Part::kEmbed, Arg::kGrad, UsedPart::kRowsOfTable},
    {Part::kRotate, Arg::kQkv, UsedPart::kQueriesAndKeys},  // values are not turned
    {Part::kRotate, Arg::kDQkv, UsedPart::kQueriesAndKeys},
    {Part::kQkNorm, Arg::kX, UsedPart::kQueriesAndKeys, true},  // values have no norm; forward copies them
    {Part::kQkNorm, Arg::kDQkv, UsedPart::kQueriesAndKeys},
    {Part::kHeadLoss, Arg::kLogits, UsedPart::kTwice},  // they become their gradient in place
};

const PartlyUsed* partly_used(const Compute& c, Arg arg) {
  for (const PartlyUsed& of : kPartlyUsed)
    if (of.part == c.part && of.arg == arg && (!of.in_backward || is_backward(c.pass))) return &of;
  return nullptr;
}

constexpr bool of_keys(Role role) {
  return role == Role::kKey || role == Role::kValue || role == Role::kKeyBias || role == Role::kValueBias;
}
constexpr bool of_queries_or_keys(Role role) {
  return of_keys(role) || role == Role::kQuery || role == Role::kQueryBias;
}
constexpr bool scales(Role role) {
  return arch::of_norm(role) || role == Role::kQueryNorm || role == Role::kKeyNorm;
}
constexpr bool is_bias(Role role) {
  return role == Role::kQueryBias || role == Role::kKeyBias || role == Role::kValueBias || role == Role::kOutputBias ||
         role == Role::kUpBias || role == Role::kDownBias || role == Role::kRouterBias;
}

// Returns how many pairs (position, key) have their position below `end` and their key, which is in the run, before the
// position.
double pairs_below(std::int64_t end, const PositionRun& keys) {
  const auto n = static_cast<double>(keys.size()), z = static_cast<double>(std::max<std::int64_t>(end - keys.first, 0));
  return z <= n ? z * (z - 1) / 2 : n * (n - 1) / 2 + (z - n) * n;
}

// Counts the pairs of a query and an earlier key, and half of the pairs at one position.
double causal_pairs_of(const std::vector<PositionRun>& queries, const std::vector<PositionRun>& keys) {
  double pairs = 0;
  for (const PositionRun& q : queries)
    for (const PositionRun& k : keys) {
      pairs += pairs_below(q.last, k) - pairs_below(q.first, k);
      pairs +=
          static_cast<double>(std::max<std::int64_t>(std::min(q.last, k.last) - std::max(q.first, k.first), 0)) / 2;
    }
  return pairs;
}

}  // namespace

PartCostRules::PartCostRules(const Program& p, const Traits& t) : p_(p), t_(t) {
  elements_.resize(static_cast<std::size_t>(p.arch.layers) + 1);
  const int ranks = t.ranks(mesh::Axis::kTp);
  copies_heads_ = ranks > 1 && p.arch.kv_heads % ranks != 0;
  for (const Unit& unit : p.units)
    for (const UnitEntry& entry : unit.entries) {
      const arch::Parameter& parameter = p.parameters[static_cast<std::size_t>(entry.parameter)];
      std::int64_t elements = parameter.elements();
      // Every rank holds all heads of keys and values, and multiplies with those that its queries need.
      if (copies_heads_ && of_keys(parameter.role))
        elements = elements / p.arch.kv_heads * static_cast<std::int64_t>(arch::kv_heads_of(p.arch, 0, ranks).size());
      elements_[static_cast<std::size_t>(parameter.layer + 1)][static_cast<std::size_t>(parameter.role)] += elements;
    }
  const std::int64_t length = t.rows.length, sequence = length * t.context_ranks();
  if (length < 1 || sequence < 2 * t.context_ranks()) return;  // ranks cannot share it, and other rules say so
  const std::vector<PositionRun> queries = arch::context_runs(sequence, 0, t.context_ranks());
  for (int step = 0; step < t.context_ranks(); ++step)
    pairs_.push_back(causal_pairs_of(
        queries, arch::context_runs(sequence, (t.context_ranks() - step) % t.context_ranks(), t.context_ranks())));
}

std::int64_t PartCostRules::elements_of(const Compute& c, Role role) const {
  const std::int64_t layer = declaration_of(c.part).in_layer() ? c.layer : -1;
  return elements_.at(static_cast<std::size_t>(layer + 1))[static_cast<std::size_t>(role)];
}

ParameterSizes PartCostRules::sizes_of(const Compute& c, const Amounts& amounts) const {
  const PartDeclaration& part = declaration_of(c.part);
  ParameterSizes sizes;
  const auto add = [&](Role role) {
    (scales(role) ? sizes.norms : is_bias(role) ? sizes.biases : sizes.matrices) += elements_of(c, role);
  };
  std::ranges::for_each(part.roles, add);
  if (p_.arch.tied) std::ranges::for_each(part.tied, add);
  // The experts of a rank have matrices of one size.
  if (part.computes_experts() && t_.rows.expert_tiles > 1)
    sizes.matrices = sizes.matrices / (p_.arch.sparse_experts().count / t_.expert_ranks()) * amounts.experts();
  return sizes;
}

// Backward reads the matrices for the gradient of the input, and the weights of a norm, whose result it computes again.
// It reads no biases.
ParameterSizes PartCostRules::read_by(const Compute& c, const Amounts& amounts) const {
  const ParameterSizes all = sizes_of(c, amounts);
  if (!is_backward(c.pass)) return all;
  return {.matrices = c.pass == Pass::kBackwardWeights ? 0 : all.matrices, .norms = all.norms};
}

// If the part's backward runs in halves, the first makes the gradients of the norm and the second makes the others. A
// part without halves runs entirely with the first halves of the others.
ParameterSizes PartCostRules::gradients_of(const Compute& c, const Amounts& amounts) const {
  ParameterSizes all = sizes_of(c, amounts);
  if (!declaration_of(c.part).halves) return all;
  if (c.pass == Pass::kBackwardInput) all.matrices = all.biases = 0;
  if (c.pass == Pass::kBackwardWeights) all.norms = 0;
  return all;
}

double PartCostRules::pairs(const Compute& c) const {
  if (c.portion >= 0) return c.portion < std::ssize(pairs_) ? pairs_[static_cast<std::size_t>(c.portion)] : 0;
  double all = 0;
  for (const double of_step : pairs_) all += of_step;
  return all;
}

// Each product takes a multiplication and an addition for each row and element of its matrix. Forward takes one
// product; backward takes one for the gradient of its input and one for that of its matrix. An op that makes losses
// without logits from another op computes these logits itself. Attention takes two products for each pair of a query
// and a key that is not after it, and twice as many in backward.
double PartCostRules::flops(const Compute& c, const Amounts& amounts) const {
  if (c.part == Part::kAttention)
    return (is_backward(c.pass) ? 2.0 : 1.0) * 4.0 * pairs(c) * static_cast<double>(t_.rows.sequences) *
           static_cast<double>(p_.local.query_size());
  if (c.part == Part::kEmbed) return 0;  // looks rows up
  if (!amounts.find(Arg::kParam) && !amounts.find(Arg::kGrad)) return 0;
  double elements = 0;
  const auto add_product = [&](std::int64_t matrices) { elements += static_cast<double>(matrices); };
  const ParameterSizes all = sizes_of(c, amounts);
  const bool makes_logits = amounts.find(Arg::kLosses) && !amounts.find(Arg::kLogits);
  if (!is_backward(c.pass) || makes_logits) add_product(all.matrices);
  if (amounts.find(Arg::kDX)) add_product(all.matrices);
  if (amounts.find(Arg::kGrad)) add_product(gradients_of(c, amounts).matrices);
  // A row of an expert is multiplied with the matrices of this expert alone.
  if (declaration_of(c.part).computes_experts()) {
    if (amounts.experts() == 0) return 0;
    elements /= static_cast<double>(amounts.experts());
  }
  return 2.0 * static_cast<double>(amounts.rows()) * elements;
}

std::int64_t PartCostRules::bytes_used(const Compute& c, const Need& need, const Amounts& amounts) const {
  const Arg arg = need.operand.arg;
  if (arg == Arg::kScalars) return 0;  // a few numbers
  if (c.part == Part::kAttention && t_.context()) return attention_bytes(c, need, amounts);
  // Even a plain store to a gradient reads its cache line.
  std::int64_t elements = amounts.elements(need), times = arg == Arg::kGrad || amounts.updates(arg) ? 2 : 1;
  if (arg == Arg::kParam) elements = read_by(c, amounts).all();
  if (arg == Arg::kGrad) elements = gradients_of(c, amounts).all();
  // Each tensor rank adds the residual in its own rows.
  if (arg == Arg::kResidual && info_of(need.operand.value).shape.front() == 'R')
    elements = amounts.own_rows() * p_.arch.hidden;
  if (const PartlyUsed* of = partly_used(c, arg)) switch (of->used) {
      case UsedPart::kRowsOfTable:
        elements = amounts.rows() * p_.arch.hidden;
        // Positions are rows of another table, in which all sequences have the same rows.
        if (elements_of(c, Role::kPositions) > 0) elements += t_.rows.length * p_.arch.hidden;
        break;
      case UsedPart::kQueriesAndKeys:
        elements = amounts.rows() * (p_.local.query_size() + p_.local.kv_size());
        break;
      case UsedPart::kTwice:
        times = 2;
        break;
    }
  return times * elements * size_of(need.dtype);
}

// Keys and values of other context ranks are an operand of their own, beside which the op uses only the queries of
// q|k|v and makes only their gradients. Attention over gathered keys goes over the keys of one rank after another. Each
// time it reads the queries and all that belongs to them, and it adds to the sums of the times before: to results, or
// to the gradients of queries. Sums are in fp32 if the result is narrower; an epilogue rounds them.
std::int64_t PartCostRules::attention_bytes(const Compute& c, const Need& need, const Amounts& amounts) const {
  const Arg arg = need.operand.arg;
  const bool ring = c.portion >= 0;
  const bool summed = is_backward(c.pass) ? arg == Arg::kDQkv : arg == Arg::kY || arg == Arg::kLse;
  std::int64_t elements = amounts.elements(need), width = size_of(need.dtype);
  if ((arg == Arg::kQkv && amounts.find(Arg::kKeys)) || arg == Arg::kDQkv)
    elements = amounts.rows() * p_.local.query_size();
  if (arg == Arg::kKeys || arg == Arg::kDKeys) return elements * width;
  if (ring) {
    if (arg == Arg::kY && amounts.find(Arg::kYSoFar)) return 0;
    return (arg == Arg::kYSoFar || amounts.updates(arg) ? 2 : 1) * elements * width;
  }
  const std::int64_t times = t_.context_ranks();
  return summed ? (2 * times - 1) * elements * std::max<std::int64_t>(width, size_of(DType::kF32))
                : times * elements * width;
}

std::int64_t PartCostRules::moved(const Compute& c, const Amounts& amounts) const {
  std::int64_t bytes = 0;
  for (const Need& need : amounts.needs()) bytes += bytes_used(c, need, amounts);
  return bytes;
}

// Weights are copied into a matrix. Gradients are copied out of one, or added: always to those of keys and values,
// since several of a rank's heads may be copies of one head, and to those of queries if the op adds to its gradient.
std::int64_t PartCostRules::assembled(const Compute& c, const Amounts& amounts) const {
  if (!copies_heads_ || !declaration_of(c.part).reads_role(Role::kKey, p_.arch.tied)) return 0;
  std::int64_t queries = 0, keys = 0;
  for (const Role role : declaration_of(c.part).roles)
    if (of_queries_or_keys(role)) (of_keys(role) ? keys : queries) += elements_of(c, role);
  std::int64_t bytes = 0;
  if (const Need* weights = amounts.find(Arg::kParam); weights && read_by(c, amounts).matrices > 0)
    bytes += 2 * (queries + keys) * size_of(weights->dtype);
  if (const Need* gradient = amounts.find(Arg::kGrad); gradient && gradients_of(c, amounts).matrices > 0)
    bytes += ((amounts.updates(Arg::kGrad) ? 4 : 2) * queries + 4 * keys) * size_of(gradient->dtype);
  return bytes;
}

}  // namespace molen::program
