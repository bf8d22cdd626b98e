// Whether a program is what its setting asked for. A program may be sound, and so be accepted by the verifier, and yet
// be of another layout, batch or precision than its setting says. The verifier does not know the setting; this check
// knows nothing else. A program runs when both accept it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "program/verify/verify.h"

namespace molen::program {

// Returns what differs from the setting, at most the first 20 findings: the traits that the program shows
// (verify/inferred.h), its grid of ranks and its stage; the attributes of each op, except that its kernel may be any
// that can compute its part; the optimizer of each update.
std::vector<Finding> differs_from_setting(const Program& program);

// The findings of `verify` and of `differs_from_setting`.
std::vector<Finding> check(const Program& program, std::optional<Bytes> device_memory = std::nullopt);
// The same of the programs of all stages of a pipeline together: those of `verify_world`, and settings that differ.
std::vector<Finding> check_world(const std::vector<Program>& stages);

// Throws UsageError with all findings of `check`.
void require_sound(const Program& program, std::string_view origin, std::optional<Bytes> device_memory = std::nullopt);

}  // namespace molen::program
