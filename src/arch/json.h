// An Architecture as JSON: in a checkpoint's state, and in the text form of a program.
#pragma once

#include <string_view>

#include "arch/architecture.h"
#include "base/json.h"

namespace molen::arch {

// Family, norm, position and activation stand by name.
Json to_json(const Architecture& arch);

// Reads those choices by their place in their enum, too, as older programs have them. The result is valid. Throws
// UsageError naming origin and key where one is missing, unknown, of another type or cannot be.
Architecture architecture_from_json(const Json& json, std::string_view origin);

}  // namespace molen::arch
