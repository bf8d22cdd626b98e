// Reading: TOML files with `extends`, `--set`, and JSON, merged key by key and then read by the field list.
#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/suggest.h"
#include "base/utf8.h"
#include "config/config.h"

namespace molen::config {
namespace {

constexpr std::int64_t kLargestFile = 1 << 20;
constexpr int kDeepestExtends = 16;
constexpr std::size_t kLongestKey = 100;  // characters compared with valid keys, and shown
constexpr int kDeepestValue = 8;

struct Entry {
  Json value;
  Origin origin;
};
using Entries = std::map<std::string, Entry, std::less<>>;

const std::map<std::string, const Field*, std::less<>>& by_key() {
  static const auto index = [] {
    std::map<std::string, const Field*, std::less<>> map;
    for (const Field& f : fields()) map[f.key] = &f;
    return map;
  }();
  return index;
}

std::vector<std::string> keys_of(std::string_view table) {
  std::vector<std::string> keys;
  for (const Field& f : fields()) {
    if (f.key.starts_with(std::string(table) + ".")) keys.push_back(f.key.substr(table.size() + 1));
  }
  return keys;
}

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const Field& f : fields()) {
    const std::string table = f.key.substr(0, f.key.find('.'));
    if (names.empty() || names.back() != table) names.push_back(table);
  }
  return names;
}

bool is_table(std::string_view name) {
  const auto names = table_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Where the same name stands in another table, then the nearest name of its table, then of all.
std::string suggestion(std::string_view key) {
  if (key.size() > kLongestKey) return "";
  const std::size_t dot = key.find('.');
  const std::string_view table = key.substr(0, dot), name = dot == std::string_view::npos ? key : key.substr(dot + 1);
  if (dot != std::string_view::npos && is_table(table)) {
    const std::string hint = nearest(name, keys_of(table));
    if (!hint.empty()) return fmt::format("; did you mean '{}.{}'?", table, hint);
  }
  std::vector<std::string> all;
  for (const Field& f : fields()) {
    if (f.key.substr(f.key.find('.') + 1) == name) return fmt::format("; did you mean '{}'?", f.key);
    all.push_back(f.key);
  }
  return did_you_mean(key, all);
}

std::string shown(std::string_view key) {
  return key.size() <= kLongestKey ? std::string(key) : std::string(key.substr(0, kLongestKey)) + "...";
}

[[noreturn]] void unknown_key(std::string_view where, std::string_view key) {
  throw UsageError("{}unknown key {}{} (`molen config reference` lists all)", where, shown(key), suggestion(key));
}

Origin file_origin(std::string_view name, const toml::node& node) {
  return {Origin::Kind::kFile, fmt::format("{}:{}", name, node.source().begin.line)};
}

Json json_of(const toml::node& node, const Origin& origin, int depth = 0) {
  if (depth > kDeepestValue) throw UsageError("{}: values are nested more than {} deep", origin.text, kDeepestValue);
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* array = node.as_array()) {
    Json json = Json::array();
    for (const toml::node& item : *array) json.push_back(json_of(item, origin, depth + 1));
    return json;
  }
  if (const auto* table = node.as_table()) {
    Json json = Json::object();
    for (const auto& [key, item] : *table) json[std::string(key.str())] = json_of(item, origin, depth + 1);
    return json;
  }
  throw UsageError("{}: a date or time of day has no meaning here; quote it if a string was meant", origin.text);
}

// Chains of dotted keys nest tables without a limit of the parser's, and tables are destroyed recursively.
void refuse_long_dotted_keys(std::string_view text, std::string_view name) {
  int line = 1, dots = 0;
  for (const char c : text) {
    if (c == '\n')
      ++line, dots = 0;
    else if (c == '.' && ++dots > 10000)
      throw UsageError("{}:{}: line has too many dots", name, line);
  }
}

toml::table parse_toml(std::string_view text, std::string_view name) {
  refuse_long_dotted_keys(text, name);
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw UsageError("{}:{}: not TOML: {}", name, error.source().begin.line, error.description());
  }
}

void collect(const toml::table& document, std::string_view name, Entries& entries) {
  for (const auto& [table_key, node] : document) {
    const std::string table(table_key.str());
    if (table == "extends") continue;
    const Origin place = file_origin(name, node);
    if (!is_table(table)) {
      if (!node.is_table()) unknown_key(place.text + ": ", table);
      throw UsageError("{}: unknown table [{}]{}", place.text, shown(table),
                       table.size() > kLongestKey ? "" : did_you_mean(table, table_names()));
    }
    if (!node.is_table()) throw UsageError("{}: {}: expected a table, [{}]", place.text, table, table);
    for (const auto& [key, value] : *node.as_table()) {
      const std::string full = table + "." + std::string(key.str());
      const Origin origin = file_origin(name, value);
      if (!by_key().contains(full)) unknown_key(origin.text + ": ", full);
      entries.insert_or_assign(full, Entry{json_of(value, origin), origin});
    }
  }
}

void collect_file(const fs::path& file, std::vector<fs::path>& chain, Entries& entries) {
  const std::string name = file.string();
  const toml::table document = parse_toml(read_file(file, kLargestFile), name);
  std::error_code ignored;
  chain.push_back(fs::weakly_canonical(file, ignored));
  if (const toml::node* extends = document.get("extends")) {
    const std::string where = file_origin(name, *extends).text;
    const auto* text = extends->as_string();
    if (!text || text->get().empty()) throw UsageError("{}: extends: expected the path of a file", where);
    const fs::path base = (file.parent_path() / text->get()).lexically_normal();
    if (!fs::is_regular_file(base, ignored)) throw UsageError("{}: extends: there is no file {}", where, base.string());
    if (std::find(chain.begin(), chain.end(), fs::weakly_canonical(base, ignored)) != chain.end()) {
      throw UsageError("{}: extends: {} extends itself through this file", where, base.string());
    }
    if (chain.size() >= kDeepestExtends) {
      throw UsageError("{}: extends: more than {} files in a chain", where, kDeepestExtends);
    }
    collect_file(base, chain, entries);
  }
  collect(document, name, entries);
}

// A TOML value, or the text itself where it is none: `--set train.until="2000 steps"` loses its quotes to the shell.
Json set_value(const std::string& raw) {
  if (raw.find('\n') != std::string::npos) return raw;
  try {
    const toml::table document = toml::parse("v = " + raw);
    if (document.size() != 1) return raw;
    return json_of(document.begin()->second, {Origin::Kind::kSet, "--set"});
  } catch (const toml::parse_error&) {
    return raw;
  }
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

void collect_set(std::string_view argument, Entries& entries) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string_view::npos) throw UsageError("--set {}: expected table.key=value", shown(argument));
  const std::string key(trimmed(argument.substr(0, equals)));
  const std::string raw(trimmed(argument.substr(equals + 1)));
  const auto known = by_key().find(key);
  if (known == by_key().end()) unknown_key("--set: ", key);
  if (static_cast<std::int64_t>(raw.size()) > kLargestFile || !valid_utf8(raw)) {
    throw UsageError("--set {}: the value is too long or not UTF-8", key);
  }
  refuse_long_dotted_keys(raw, "--set " + key);
  Json value = set_value(raw);
  if (known->second->textual && !value.is_string() && !value.is_structured()) value = raw;
  entries.insert_or_assign(key, Entry{std::move(value), {Origin::Kind::kSet, ""}});
}

// The reader of a kind knows the value, not its place: this adds it.
void read(Config& config, const Field& f, const Json& value, const Origin& origin) {
  config.origins[f.key] = origin;
  std::string problem;
  try {
    f.read(config, value);
    return;
  } catch (const UsageError& error) {
    problem = error.what();
  }
  throw UsageError("{}: {}", config.where(f.key), problem);
}

Config resolved(const Entries& entries) {
  Config config;
  for (const Field& f : fields()) {
    const auto entry = entries.find(f.key);
    if (entry != entries.end()) read(config, f, entry->second.value, entry->second.origin);
  }
  check(config);
  return config;
}

}  // namespace

std::string Origin::describe() const {
  switch (kind) {
    case Kind::kDefault:
      return "default";
    case Kind::kSet:
      return "--set";
    case Kind::kFile:
    case Kind::kOther:
      return text;
  }
  return text;
}

std::string Config::where(std::string_view key) const {
  const auto origin = origins.find(std::string(key));
  if (origin == origins.end() || origin->second.kind == Origin::Kind::kDefault) return std::string(key);
  if (origin->second.kind == Origin::Kind::kSet) return fmt::format("--set {}", key);
  return fmt::format("{}: {}", origin->second.text, key);
}

const Field& field(std::string_view key) {
  const auto known = by_key().find(key);
  if (known == by_key().end()) unknown_key("", key);
  return *known->second;
}

Config load(const std::optional<fs::path>& file, const std::vector<std::string>& sets) {
  Entries entries;
  std::vector<fs::path> chain;
  if (file) collect_file(*file, chain, entries);
  for (const std::string& set : sets) collect_set(set, entries);
  return resolved(entries);
}

Config parse(std::string_view toml, std::string_view name, const std::vector<std::string>& sets) {
  if (static_cast<std::int64_t>(toml.size()) > kLargestFile)
    throw UsageError("{}: larger than {} bytes", name, kLargestFile);
  const toml::table document = parse_toml(toml, name);
  if (const toml::node* extends = document.get("extends")) {
    throw UsageError("{}: extends: only a file can extend another", file_origin(name, *extends).text);
  }
  Entries entries;
  collect(document, name, entries);
  for (const std::string& set : sets) collect_set(set, entries);
  return resolved(entries);
}

void assign(Config& config, std::string_view key, const Json& value, const Origin& origin) {
  read(config, field(key), value, origin);
}

Config from_json(const Json& json, std::string_view name) {
  if (!json.is_object()) throw UsageError("{}: expected an object of tables", name);
  Entries entries;
  for (const auto& [table, members] : json.items()) {
    if (!members.is_object()) throw UsageError("{}: {}: expected an object", name, shown(table));
    for (const auto& [key, value] : members.items()) {
      const std::string full = table + "." + key;
      if (!by_key().contains(full)) unknown_key(fmt::format("{}: ", name), full);
      entries.insert_or_assign(full, Entry{value, {Origin::Kind::kFile, std::string(name)}});
    }
  }
  return resolved(entries);
}

}  // namespace molen::config
