// Which activations are computed again instead of being kept: by part of a layer, in every layer or in every k-th.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "arch/parts.h"
#include "program/signature.h"

namespace molen::program {

// The part of a layer that makes a value which backward reads and a recomputation can make again. None for what layers
// hand to each other: it is always kept.
std::optional<arch::Part> made_by(Value value);

// "none", "full", "norm_qkv,attention", each but the first with "/2" behind it for every second layer.
std::string text_of(const Recompute& recompute);
// Reads that, the parts in any order. Throws UsageError without a place: who calls knows it.
Recompute recompute_from_text(std::string_view text);
// Adds a part by its name. Throws UsageError for a name that is no part of a layer, and for "down".
void add_part(Recompute& recompute, std::string_view part);

}  // namespace molen::program
