// Provenance: whether a program is the one that its setting asked for. A program may be sound, so that the verifier
// accepts it, and still have another layout, batch or precision than its setting says. The verifier does not read the
// setting. This check only compares the program with the setting. A program may run when both accept it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "program/verify/verify.h"

namespace molen::program {

// Returns how the program differs from its setting, at most 20 findings. It compares the traits that the program shows
// (verify/inferred.h), its grid of ranks and its stage; the attributes of each op; and the optimizer of each update.
// The kernel of an op may be any that can compute its part.
std::vector<Finding> differs_from_setting(const Program& program);

// Returns the findings of `verify` and of `differs_from_setting`.
std::vector<Finding> check(const Program& program, std::optional<Bytes> device_memory = std::nullopt);
// Returns the findings for all stages of a pipeline together: those of `verify_world`, and one for each stage whose
// setting differs from that of the first stage given.
std::vector<Finding> check_world(const std::vector<Program>& stages);

// Throws UsageError with all findings of `check` when there are any.
void require_sound(const Program& program, std::string_view origin, std::optional<Bytes> device_memory = std::nullopt);

}  // namespace molen::program
