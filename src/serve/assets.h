// The files of assets/, compiled into the program.
#pragma once

#include <string_view>

namespace molen::serve {

// `name` as below assets/, "uplot/LICENSE" say. Throws Error for a name that CMakeLists.txt does not list.
std::string_view asset(std::string_view name);

}  // namespace molen::serve
