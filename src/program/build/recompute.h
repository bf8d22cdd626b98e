// Text form and helpers of recomputation. Recomputation runs parts of a layer again, in every layer or in every k-th.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "arch/parts.h"
#include "program/values/signature.h"

namespace molen::program {

// How recomputation makes a value again: the part of a layer that leaves the value, and the part that
// Setting::recompute names for it. These parts differ when the first one transforms a value in place. Such a part
// always runs together with the part that made the value.
struct Maker {
  arch::Part part{}, chosen{};
};
// Returns the makers of the values of a layer. Dense and sparse layers have different makers. A value that layers hand
// to each other has no maker, because it is always kept, and neither has a value that no forward makes.
class Makers {
 public:
  Makers(const Program& program, std::int64_t layer);
  const std::optional<Maker>& of(Value value) const { return of_.at(static_cast<std::size_t>(value)); }

 private:
  std::array<std::optional<Maker>, kValues.size()> of_;
};

// Returns "none", "full" or "norm_qkv,attention". All but "none" may end with "/2", which means every second layer.
std::string text_of(const Recompute& recompute);
// Reads that form, with the parts in any order. Throws UsageError without a place in a file, because only the caller
// knows the place.
Recompute recompute_from_text(std::string_view text);
// Adds a part by its name. Throws UsageError for a name that is no part of a layer, and for "down".
void add_part(Recompute& recompute, std::string_view part);

}  // namespace molen::program
