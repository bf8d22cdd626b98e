// The setting line of the text form, which the printer and the parser share.
#pragma once

#include <map>
#include <string>

#include "program/ir/program.h"

namespace molen::program::detail {

std::string setting_to_text(const Setting& setting);
// Returns the setting of the line's keys and values. Throws UsageError for an unknown or missing key.
Setting setting_from_text(const std::map<std::string, std::string>& values, const std::string& where);

}  // namespace molen::program::detail
