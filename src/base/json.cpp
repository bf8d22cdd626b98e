#include "base/json.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace molen {

Json parse_json(std::string_view text, std::string_view origin, int max_depth) {
  // The parser takes a NUL for the end of its input and would leave what follows unread.
  if (text.find('\0') != std::string_view::npos) throw UsageError("{}: not valid JSON: a NUL byte", origin);
  // The callback sees keys as they come, before the parser folds duplicates into one.
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > max_depth) throw UsageError("{}: JSON nested deeper than {} levels", origin, max_depth);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw UsageError("{}: JSON key '{}' stands twice in one object", origin, parsed.get<std::string>());
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    throw UsageError("{}: not valid JSON: {}", origin, error.what());
  }
}

Json read_json(const std::filesystem::path& path, std::int64_t limit) {
  return parse_json(read_file(path, limit), path.string());
}

const Json& json_member(const Json& object, std::string_view key, std::string_view origin) {
  if (!object.is_object() || !object.contains(key)) throw UsageError("{}: no '{}'", origin, key);
  return object.at(std::string(key));
}

}  // namespace molen
