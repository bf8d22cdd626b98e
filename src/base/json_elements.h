// Documents that are a long list and little else, without holding the whole of them.
#pragma once

#include <functional>
#include <string_view>

#include "base/json.h"

namespace molen {

// As parse_json, but objects and arrays in the list that is the root's member `list` are handed over one at a time and
// then forgotten; in the document that is returned they are missing.
Json parse_json_elements(std::string_view text, std::string_view origin, std::string_view list,
                         const std::function<void(std::size_t index, const Json& element)>& element);

}  // namespace molen
