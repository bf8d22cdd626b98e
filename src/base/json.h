// JSON (nlohmann) with limits: every document from outside is read with `parse_json`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace molen {

// Keys keep their order, so that a document reads as it was written.
using Json = nlohmann::ordered_json;

// Parses a whole document. Throws UsageError with `origin` (a file name, say), the byte position and the reason.
// Refuses duplicate keys (two readers may disagree on them), more than `max_depth` levels, invalid UTF-8, and trailing
// text after the document.
Json parse_json(std::string_view text, std::string_view origin, int max_depth = 64);
Json read_json(const std::filesystem::path& path, std::int64_t limit = std::int64_t{1} << 30);

// Returns a member, or throws an error that names origin and key.
const Json& json_member(const Json& object, std::string_view key, std::string_view origin);

}  // namespace molen
