// The files of assets/, compiled into the program.
#pragma once

#include <string_view>

namespace molen::serve {

// Returns a file of assets/ by its path there ("uplot/LICENSE"). Throws Error for a name that CMakeLists.txt does not
// list.
std::string_view asset(std::string_view name);

}  // namespace molen::serve
