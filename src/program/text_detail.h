// The two header lines of the text form, which printer and parser share.
#pragma once

#include <map>
#include <string>

#include "base/json.h"
#include "program/program.h"

namespace molen::program::detail {

Json arch_to_json(const arch::Architecture& arch);
arch::Architecture arch_from_json(const Json& json, std::string_view origin);

std::string setting_to_text(const Setting& setting);
// Throws UsageError for an unknown or missing key.
Setting setting_from_text(const std::map<std::string, std::string>& values, const std::string& where);

}  // namespace molen::program::detail
