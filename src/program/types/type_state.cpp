#include "program/types/type_state.h"

#include <algorithm>

#include "program/parts/part.h"
#include "program/types/part_rules.h"
#include "program/values/tiles.h"

namespace molen::program {

bool of_parameters(const Buffer& buffer) {
  return of_unit(buffer.role) && buffer.unit >= 0;
}

bool of_directions(const Buffer& buffer) {
  return buffer.role == Value::kDirection || buffer.role == Value::kDirectionAll;
}

std::int64_t piece_of_rows(const Op& op) {
  if (const auto* c = std::get_if<Compute>(&op)) return has_halves(c->part) ? c->portion : -1;
  if (const auto* o = std::get_if<ReduceScatter>(&op)) return o->portion;
  if (const auto* o = std::get_if<AllGather>(&op)) return o->portion;
  return -1;
}

TypeStates::TypeStates(const Program& p) : slots_(p), first_(slots_.places()) {
  std::int64_t pieces = 1;
  for (const Body& body : p.bodies)
    for (const Step& step : body.steps) {
      pieces = std::max(pieces, piece_of_rows(step.op) + 1);
      if (step.attributes.rows.expert_tiles == 1) continue;
      for (const Use& use : step.operands) pieces = std::max(pieces, tile_of(p, step, use).number + 1);
    }
  std::size_t states = 0;
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    const Buffer& buffer = p.buffers[b];
    std::size_t segments = buffer.portion >= 0 ? 1 : static_cast<std::size_t>(pieces);
    if (of_parameters(buffer)) segments = p.units.at(static_cast<std::size_t>(buffer.unit)).entries.size();
    if (buffer.role == Value::kScalars) segments = kNumScalars;
    segments_.push_back(segments);
    const std::size_t begin = states;
    const std::size_t place = slots_.place(static_cast<int>(b), -1);
    for (int slot = 0; slot < slots_.count(static_cast<int>(b)); ++slot, states += segments)
      first_[place + static_cast<std::size_t>(slot)] = states;
    if (buffer.lifetime == Lifetime::kTransient) transients_.emplace_back(begin, states);
  }
  states_.resize(states);
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    if (class_of(p.buffers[b].role) == ValueClass::kConstant)
      for (std::size_t i = 0; i < segments_[b]; ++i)
        at(static_cast<int>(b), -1, i) = {TypeState::Content::kTyped, constant_type(p, p.buffers[b].role)};
    if (!of_parameters(p.buffers[b])) continue;
    const Unit& unit = p.units[static_cast<std::size_t>(p.buffers[b].unit)];
    for (std::size_t i = 0; i < unit.entries.size(); ++i)
      if (const auto kept =
              kept_type(p, p.buffers[b], p.parameters[static_cast<std::size_t>(unit.entries[i].parameter)]))
        at(static_cast<int>(b), -1, i) = {TypeState::Content::kTyped, *kept};
  }
}

void TypeStates::forget_transients() {
  for (const auto& [begin, end] : transients_)
    std::fill(states_.begin() + static_cast<std::ptrdiff_t>(begin), states_.begin() + static_cast<std::ptrdiff_t>(end),
              TypeState{});
}

}  // namespace molen::program
