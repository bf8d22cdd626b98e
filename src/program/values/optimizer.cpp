#include "program/values/optimizer.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/suggest.h"

namespace molen::program {

namespace {

// Returns the cost of five iterations on a matrix x of s x l elements, s <= l (optim/muon.cpp). Each iteration computes
// x x', a polynomial of it, and the product with x. Scratch holds x twice and two matrices of s x s.
MatrixCost newton_schulz_cost(std::int64_t rows, std::int64_t columns) {
  const std::int64_t s = std::min(rows, columns), l = std::max(rows, columns);
  const double flops = 5.0 * (4.0 * static_cast<double>(s) * static_cast<double>(s) * static_cast<double>(l) +
                              2.0 * static_cast<double>(s) * static_cast<double>(s) * static_cast<double>(s));
  const auto aligned = [](std::int64_t elements) { return (elements + 15) / 16 * 16; };
  return {Flops(flops), 2 * aligned(s * l) + 2 * aligned(s * s)};
}

}  // namespace

const std::vector<Optimizer>& optimizers() {
  static const std::vector<Optimizer> all{
      {"adamw", {{Value::kMoment1, Arg::kMoment1}, {Value::kMoment2, Arg::kMoment2}}},
      {"lion", {{Value::kMoment1, Arg::kMoment1}}},
      {"muon",
       {{Value::kMoment1, Arg::kMoment1}, {Value::kMoment2, Arg::kMoment2, StateOf::kRest}},
       newton_schulz_cost},
      {"adafactor",
       {{Value::kRowMoment2, Arg::kRowMoment2, StateOf::kRows},
        {Value::kColumnMoment2, Arg::kColumnMoment2, StateOf::kColumns},
        {Value::kMoment2, Arg::kMoment2, StateOf::kVectors}},
       nullptr,
       true,
       4},  // reads for the means of rows and of columns, for the size of the update, and to apply it
  };
  return all;
}

std::vector<std::int64_t> OptimizerState::shape(std::int64_t rows, std::int64_t columns) const {
  const bool matrix = columns > 0;
  if (of == StateOf::kVectors && !matrix) return {rows};
  if (of == StateOf::kRows && matrix) return {rows};
  if (of == StateOf::kColumns && matrix) return {columns};
  return {};
}

bool Optimizer::updates_whole(const arch::Parameter& parameter) const {
  return whole_parameters || (whole_matrices && parameter.layer >= 0 && parameter.shape.size() == 2);
}

const OptimizerState* Optimizer::find(Value state) const {
  const auto found =
      std::find_if(states.begin(), states.end(), [&](const OptimizerState& kept) { return kept.value == state; });
  return found == states.end() ? nullptr : &*found;
}

const Optimizer& optimizer_named(std::string_view name) {
  std::vector<std::string> names;
  for (const Optimizer& optimizer : optimizers()) {
    if (optimizer.name == name) return optimizer;
    names.emplace_back(optimizer.name);
  }
  throw UsageError("there is no optimizer '{}'{}", name, did_you_mean(name, names));
}

}  // namespace molen::program
