// An Architecture as JSON, under "arch" in a checkpoint's state: what an export or a resume needs to know of the model.
#pragma once

#include <string_view>

#include "arch/architecture.h"
#include "base/json.h"

namespace molen::checkpoint {

Json to_json(const arch::Architecture& arch);
// Throws UsageError naming origin and key; the result is valid.
arch::Architecture architecture_from_json(const Json& json, std::string_view origin);

}  // namespace molen::checkpoint
