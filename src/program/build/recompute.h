// Text form and helpers of recomputation: which parts of a layer are computed again, in every layer or in every k-th.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "arch/parts.h"
#include "program/values/signature.h"

namespace molen::program {

// How recomputation makes a value again: the part of a layer that leaves it, and the part that the choice of
// recomputation names for it. They differ for a part that turns a value in place, which always runs with the part that
// made the value.
struct Maker {
  arch::Part part{}, chosen{};
};
// Returns the makers of the values of a layer; dense and sparse layers have different ones. There are none for values
// that layers hand to each other, which are always kept, and for those that no forward makes.
class Makers {
 public:
  Makers(const Program& program, std::int64_t layer);
  const std::optional<Maker>& of(Value value) const { return of_.at(static_cast<std::size_t>(value)); }

 private:
  std::array<std::optional<Maker>, kValues.size()> of_;
};

// Returns "none", "full" or "norm_qkv,attention"; all but "none" may end with "/2", which means every second layer.
std::string text_of(const Recompute& recompute);
// Reads that form, the parts in any order. Throws UsageError without a place in a file: the caller knows it.
Recompute recompute_from_text(std::string_view text);
// Adds a part by its name. Throws UsageError for a name that is no part of a layer, and for "down".
void add_part(Recompute& recompute, std::string_view part);

}  // namespace molen::program
