// An Architecture as JSON, for a checkpoint's state and for the text form of a program.
#pragma once

#include <string_view>

#include "arch/architecture.h"
#include "base/json.h"

namespace molen::arch {

// Writes family, norm, position and activation by name.
Json to_json(const Architecture& arch);

// Also reads these choices by their index in their enum, which older programs contain. The result is valid. Throws
// UsageError naming origin and key when a member is missing, unknown, of another type or invalid.
Architecture architecture_from_json(const Json& json, std::string_view origin);

}  // namespace molen::arch
