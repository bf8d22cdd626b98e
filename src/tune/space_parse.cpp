// Reads spaces from arguments and TOML files, and writes them as JSON.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/suggest.h"
#include "config/names.h"
#include "plan/grid.h"
#include "tune/space.h"

namespace molen::tune {
namespace {

bool stands_for_keys(std::string_view key) {
  return key == kAccumulation || key == kNodes;
}

// Throws UsageError with the nearest name for a key that is neither a configuration key nor one of this module's.
void require_key(const std::string& where, const std::string& key) {
  if (stands_for_keys(key) || config::find_field(key)) return;
  if (key.find('.') == std::string::npos) {
    const std::vector<std::string> own{std::string(kAccumulation), std::string(kNodes)};
    if (const std::string hint = did_you_mean(key, own); !hint.empty())
      throw UsageError("{}: unknown key '{}'{}", where, config::shown(key), hint);
  }
  config::unknown_key(where + ": ", key);
}

// Throws UsageError for a value that the key does not take.
void require_value(const std::string& where, const std::string& key, const Json& value) {
  if (stands_for_keys(key)) {
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1 || value.get<std::int64_t>() > 1000000)
      throw UsageError("{}: {}: expected whole numbers from 1 to 1000000, got {}", where, key, value.dump());
    return;
  }
  config::Config scratch;
  try {
    config::assign(scratch, key, value, {});
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", where, error.what());
  }
}

Dimension list_of(const std::string& where, const std::string& key, std::vector<Json> values) {
  if (values.empty()) throw UsageError("{}: the list of values of {} is empty", where, key);
  if (static_cast<std::int64_t>(values.size()) > kMostLevels)
    throw UsageError("{}: {} has more than {} values", where, key, kMostLevels);
  for (const Json& value : values) require_value(where, key, value);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::find(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(i), values[i]) !=
        values.begin() + static_cast<std::ptrdiff_t>(i))
      throw UsageError("{}: {}: the value {} is there twice", where, key, values[i].dump());
  const bool numbers = std::all_of(values.begin(), values.end(), [](const Json& v) { return v.is_number(); });
  if (numbers)
    std::sort(values.begin(), values.end(),
              [](const Json& a, const Json& b) { return a.get<double>() < b.get<double>(); });
  return {key, numbers ? Dimension::Kind::kList : Dimension::Kind::kCategories, std::move(values)};
}

Dimension range_of(const std::string& where, const std::string& key, std::int64_t low, std::int64_t high,
                   bool logarithmic) {
  if (low > high) throw UsageError("{}: {}: the range {}..{} is empty", where, key, low, high);
  if (logarithmic && low < 1)
    throw UsageError("{}: {}: a range with a logarithmic scale begins at 1 or above, not at {}", where, key, low);
  if (high - low >= kMostLevels)
    throw UsageError("{}: {}: the range {}..{} has more than {} numbers; a list such as {}={},{} has fewer", where, key,
                     low, high, kMostLevels, key, low, high);
  Dimension range{key, logarithmic ? Dimension::Kind::kLogRange : Dimension::Kind::kRange, {}};
  for (std::int64_t v = low; v <= high; ++v) range.values.emplace_back(v);
  require_value(where, key, range.values.front());
  require_value(where, key, range.values.back());
  return range;
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || std::abs(value) > (std::int64_t{1} << 53))
    return std::nullopt;
  return value;
}

Dimension parse_range(const std::string& where, const std::string& key, std::string_view text) {
  const bool logarithmic = text.ends_with(":log");
  const std::string_view numbers = logarithmic ? text.substr(0, text.size() - 4) : text;
  const std::size_t dots = numbers.find("..");
  const auto low = whole_number(config::trimmed(numbers.substr(0, dots)));
  const auto high = whole_number(config::trimmed(numbers.substr(dots + 2)));
  if (!low || !high)
    throw UsageError("{}: '{}' is no range; a range is {}=4..20 or {}=1..64:log, with whole numbers", where, text, key,
                     key);
  return range_of(where, key, *low, *high, logarithmic);
}

Json value_of(const std::string& where, const std::string& key, const std::string& text) {
  if (text.empty()) throw UsageError("{}: a value is empty; the values are a list such as {}=1,2,4", where, key);
  if (!stands_for_keys(key)) return config::parse_assignment(key + "=" + text, "--search").value;
  if (const auto value = whole_number(text)) return *value;
  throw UsageError("{}: expected whole numbers, got '{}'", where, text);
}

Dimension parse_dimension(std::string_view argument) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string_view::npos)
    throw UsageError("--search {}: expected key=1,2,4 or key=4..20", config::shown(argument));
  const std::string key(config::trimmed(argument.substr(0, equals)));
  const std::string_view text = config::trimmed(argument.substr(equals + 1));
  require_key("--search", key);
  const std::string where = "--search " + key;
  if (text.empty()) throw UsageError("{}: the list of values is empty", where);
  const auto parts = plan::parts_of_list(text);
  const bool quoted = text.find_first_of("\"'[{") != std::string_view::npos;
  if (parts.size() == 1 && !quoted && text.find("..") != std::string_view::npos) return parse_range(where, key, text);
  std::vector<Json> values;
  for (const std::string& part : parts) values.push_back(value_of(where, key, part));
  return list_of(where, key, std::move(values));
}

// A value of a search file, which has no dates and no tables.
Json json_of_toml(const std::string& where, const toml::node& node) {
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_boolean()) return v->get();
  const auto* list = node.as_array();
  if (!list) throw UsageError("{}: a value is a number, a text, true, false or a list of these", where);
  Json all = Json::array();
  for (const toml::node& item : *list) {
    if (item.is_array()) throw UsageError("{}: a list within the list of a value has no meaning", where);
    all.push_back(json_of_toml(where, item));
  }
  return all;
}

// The parser nests a table for each dot of a key without a limit, and destroys them recursively.
void refuse_nested_keys(std::string_view text, std::string_view name) {
  constexpr int kMostDots = 1000;
  int line = 1, dots = 0;
  for (const char c : text) {
    if (c == '\n')
      ++line, dots = 0;
    else if (c == '.' && ++dots > kMostDots)
      throw UsageError("{}:{}: the line has more than {} dots", name, line, kMostDots);
  }
}

std::int64_t end_of_range(const std::string& where, const toml::table& table, const char* name) {
  const auto value = table[name].value_exact<std::int64_t>();
  if (!value)
    throw UsageError("{}: a range has whole numbers as `from` and `to`; `{}` is missing or none", where, name);
  return *value;
}

Dimension dimension_of_toml(std::string_view name, const toml::table& table) {
  const std::string where = fmt::format("{}:{}", name, table.source().begin.line);
  static const std::vector<std::string> known{"key", "values", "from", "to", "scale"};
  for (const auto& [key, node] : table)
    if (std::find(known.begin(), known.end(), key.str()) == known.end())
      throw UsageError("{}:{}: unknown key '{}'{}", name, node.source().begin.line, config::shown(key.str()),
                       did_you_mean(key.str(), known));
  const auto key = table["key"].value_exact<std::string>();
  if (!key) throw UsageError("{}: `key` is missing, or no text", where);
  require_key(where, *key);
  if (const toml::array* list = table["values"].as_array()) {
    if (table.size() != 2) throw UsageError("{}: {} has values, so it has no range", where, *key);
    std::vector<Json> values;
    for (const toml::node& item : *list) values.push_back(json_of_toml(where, item));
    return list_of(where, *key, std::move(values));
  }
  if (table.contains("values")) throw UsageError("{}: `values` is a list", where);
  const std::string scale = table.contains("scale") ? table["scale"].value_or(std::string()) : "linear";
  if (scale != "linear" && scale != "log") throw UsageError("{}: `scale` is \"linear\" or \"log\"", where);
  return range_of(where, *key, end_of_range(where, table, "from"), end_of_range(where, table, "to"), scale == "log");
}

}  // namespace

Space parse_space(const std::vector<std::string>& arguments) {
  std::vector<Dimension> dimensions;
  for (const std::string& argument : arguments) dimensions.push_back(parse_dimension(argument));
  return Space(std::move(dimensions));
}

Space parse_space_file(std::string_view text, std::string_view name) {
  refuse_nested_keys(text, name);
  toml::table document;
  try {
    document = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw UsageError("{}:{}: not TOML: {}", name, error.source().begin.line, error.description());
  }
  for (const auto& [key, node] : document)
    if (key.str() != "dimension")
      throw UsageError("{}:{}: unknown table '{}'; the file is a list of [[dimension]]", name, node.source().begin.line,
                       config::shown(key.str()));
  const toml::array* list = document["dimension"].as_array();
  if (!list || !list->is_homogeneous<toml::table>())
    throw UsageError("{}: there is no list of [[dimension]], each with a key and its values", name);
  std::vector<Dimension> dimensions;
  for (const toml::node& item : *list) dimensions.push_back(dimension_of_toml(name, *item.as_table()));
  try {
    return Space(std::move(dimensions));
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", name, error.what());
  }
}

Space frontier_space() {
  return parse_space({"parallel.pipeline=1,2,4,8,12,16", "parallel.tensor=1,2,4,8", "batch.micro=4..20", "gas=5,10",
                      "parallel.zero=0,1", "nodes=12,16"});
}

Json to_json(const Space& space) {
  Json all = Json::array();
  for (const Dimension& d : space.dimensions()) {
    if (d.kind == Dimension::Kind::kList || d.kind == Dimension::Kind::kCategories)
      all.push_back({{"key", d.key}, {"values", d.values}});
    else
      all.push_back({{"key", d.key},
                     {"from", d.values.front()},
                     {"to", d.values.back()},
                     {"scale", d.kind == Dimension::Kind::kRange ? "linear" : "log"}});
  }
  return all;
}

}  // namespace molen::tune
