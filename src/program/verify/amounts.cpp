#include "program/verify/amounts.h"

#include "program/parts/part.h"
#include "program/values/value_memory.h"

namespace molen::program {
namespace {

// Returns how many of `elements`, which belong to `all` rows, belong to `some` of these rows.
std::int64_t elements_of_rows(std::int64_t elements, std::int64_t some, std::int64_t all) {
  return all > 0 ? elements / all * some : 0;
}

arch::Sequences sequences_of(const Traits& t) {
  return {t.rows.sequences, t.rows.length, t.context_ranks()};
}

}  // namespace

Amounts::Amounts(const Program& p, const Traits& t, const Step& step, const std::vector<Need>& needs)
    : p_(p), t_(t), uses_(step.operands), needs_(needs) {
  rows_ = t.tokens();
  own_ = t.rows.in_pieces() ? kept_rows(t.rows, t.grid, {}) : row_range(t.rows, t.grid, {}).second;
  if (const auto* c = std::get_if<Compute>(&step.op)) {
    const PartDeclaration& part = declaration_of(c->part);
    if (part.standing == Standing::kHead) {
      of_head_ = true;
      rows_ = t.head_chunk_tokens(c->portion);
    } else if (part.computes_experts()) {
      take_experts(c->portion);
    } else if (part.halves) {
      take_piece(c->portion);
    }
  } else if (const auto* exchange = std::get_if<AllToAll>(&step.op)) {
    take_experts(exchange->portion);
  } else if (const auto* sum = std::get_if<ReduceScatter>(&step.op)) {
    take_piece(sum->portion);
  } else if (const auto* gather = std::get_if<AllGather>(&step.op)) {
    take_piece(gather->portion);
  }
}

void Amounts::take_piece(std::int64_t piece) {
  if (piece < 0) return;
  const auto [first, end] = rows_of_piece(t_.rows, piece);
  const auto [first_own, end_own] = row_range(t_.rows, t_.grid, {}, piece);
  rows_ = end - first;
  own_ = end_own - first_own;
}

// A rank cannot know how many rows its experts get. On average, they get as many as the rank's own tokens have, of
// which context ranks have equal shares, and a tile gets the share of its experts.
void Amounts::take_experts(std::int64_t tile) {
  if (!p_.arch.sparse()) return;
  by_experts_ = true;
  const arch::Experts& experts = p_.arch.sparse_experts();
  const std::int64_t all = even_rows_of_experts(experts, sequences_of(t_)), of_rank = experts.count / t_.expert_ranks();
  const auto [first, end] = arch::experts_of_tile(of_rank, tile, t_.rows.expert_tiles);
  experts_ = end - first;
  rows_ = arch::even_share(all, end, of_rank) - arch::even_share(all, first, of_rank);
}

const Need* Amounts::find(Arg arg) const {
  for (const Need& need : needs_)
    if (need.operand.arg == arg) return &need;
  return nullptr;
}

bool Amounts::updates(Arg arg) const {
  for (std::size_t i = 0; i < needs_.size(); ++i)
    if (needs_[i].operand.arg == arg) return uses_[i].access == Access::kUpdate;
  return false;
}

std::int64_t Amounts::bytes(Arg arg) const {
  const Need* need = find(arg);
  return need ? bytes(*need) : 0;
}

// The first letter of a value's shape says what its rows are (values/value.h).
std::int64_t Amounts::elements(const Need& need) const {
  const Operand& o = need.operand;
  if (of_unit(o.value)) {
    const Unit& unit = p_.units[static_cast<std::size_t>(o.layer)];
    // Only in a unit with parameters that must not be divided may another rank have a larger part.
    if (o.range == Range::kAll && !unit.has_whole()) return need.elements;
    const auto [first, end] = unit_range(t_.grid, {}, unit, o.range == Range::kAll ? need.extent : o.range);
    return elements_before(p_, o.value, unit, end) - elements_before(p_, o.value, unit, first);
  }
  const std::string_view shape = info_of(o.value).shape;
  switch (shape.empty() ? ' ' : shape.front()) {
    case 'R':
      if (t_.sharded_rows()) return elements_of_rows(need.elements, own_, kept_rows(t_.rows, t_.grid, {}));
      [[fallthrough]];
    case 'N':
      return elements_of_rows(need.elements, rows_, t_.tokens());
    case 'P':
      return piece_apart(p_, o) ? need.elements : elements_of_rows(need.elements, rows_, t_.tokens());
    case 'C':
    case 'T':
      return of_head_ ? elements_of_rows(need.elements, rows_, t_.head_chunk_tokens(0)) : need.elements;
    case 'M':
    case 'G': {
      const arch::Experts& experts = p_.arch.sparse_experts();
      const int ranks = shape.front() == 'M' ? 1 : t_.expert_ranks();
      return elements_of_rows(need.elements, by_experts_ ? rows_ : even_rows_of_experts(experts, sequences_of(t_)),
                              most_rows_of_experts(experts, sequences_of(t_), ranks));
    }
    case 'O':
    case 'o':
      return by_experts_ ? experts_ + 1 : need.elements;  // where the rows of each expert begin, and the end
    default:
      return need.elements;
  }
}

}  // namespace molen::program
