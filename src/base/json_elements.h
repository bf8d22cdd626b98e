// Parses documents that consist mainly of one long list, without holding the whole list.
#pragma once

#include <functional>
#include <string_view>

#include "base/json.h"

namespace molen {

// Parses like parse_json, with one difference: each object or array in the root's member `list` is passed to `element`
// and then dropped. The returned document lacks them.
Json parse_json_elements(std::string_view text, std::string_view origin, std::string_view list,
                         const std::function<void(std::size_t index, const Json& element)>& element);

}  // namespace molen
