// Parses documents that consist mainly of one long list, without holding the whole list.
#pragma once

#include <functional>
#include <string_view>

#include "base/json.h"

namespace molen {

// Same as parse_json, but passes the objects and arrays in the root's member `list` to `element` one at a time and then
// drops them; the returned document lacks them.
Json parse_json_elements(std::string_view text, std::string_view origin, std::string_view list,
                         const std::function<void(std::size_t index, const Json& element)>& element);

}  // namespace molen
