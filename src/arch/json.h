// Converts an Architecture to and from JSON, for a checkpoint's state and for the text form of a program.
#pragma once

#include <string_view>

#include "arch/architecture.h"
#include "base/json.h"

namespace molen::arch {

// Returns the JSON of an architecture, with family, norm, position and activation by name.
Json to_json(const Architecture& arch);

// Returns the architecture that JSON describes; it is valid. Family, norm, position and activation may also be given by
// their index in their enum, as in older programs. Throws UsageError naming origin and key when a member is missing,
// unknown, of another type or invalid.
Architecture architecture_from_json(const Json& json, std::string_view origin);

}  // namespace molen::arch
