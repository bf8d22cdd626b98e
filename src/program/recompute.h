// Text form and helpers of recomputation: which parts of a layer are computed again, in every layer or in every k-th.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "arch/parts.h"
#include "program/signature.h"

namespace molen::program {

// Returns the part of a layer that makes a value, if backward reads the value and recomputation can make it again.
// Returns nothing for the values that layers hand to each other, which are always kept.
std::optional<arch::Part> made_by(Value value);

// Returns "none", "full" or "norm_qkv,attention"; all but "none" may end with "/2", which means every second layer.
std::string text_of(const Recompute& recompute);
// Reads that form, the parts in any order. Throws UsageError without a place in a file: the caller knows it.
Recompute recompute_from_text(std::string_view text);
// Adds a part by its name. Throws UsageError for a name that is no part of a layer, and for "down".
void add_part(Recompute& recompute, std::string_view part);

}  // namespace molen::program
