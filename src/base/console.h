// Messages to the user that are in no log and no record.
#pragma once

#include <string_view>

namespace molen {

// Writes "molen: TEXT" and a newline to stderr at once. Control characters are escaped (printable() in base/utf8.h),
// because messages quote names and texts from files.
void say(std::string_view text);

}  // namespace molen
