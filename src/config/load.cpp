// Reads TOML files with `extends`, `--set`, and JSON; merges them key by key, then reads them with the field list.
#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/suggest.h"
#include "base/utf8.h"
#include "config/config.h"
#include "config/names.h"

namespace molen::config {
namespace {

constexpr std::int64_t kLargestFile = 1 << 20;
constexpr int kDeepestExtends = 16;
constexpr int kDeepestValue = 8;

struct Entry {
  Json value;
  Origin origin;
};
using Entries = std::map<std::string, Entry, std::less<>>;

Origin file_origin(std::string_view name, const toml::node& node) {
  return {Origin::Kind::kFile, fmt::format("{}:{}", name, node.source().begin.line)};
}

Json node_json(const toml::node& node, const Origin& origin, int depth = 0) {
  if (depth > kDeepestValue) throw UsageError("{}: values are nested more than {} deep", origin.text, kDeepestValue);
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* array = node.as_array()) {
    Json json = Json::array();
    for (const toml::node& item : *array) json.push_back(node_json(item, origin, depth + 1));
    return json;
  }
  if (const auto* table = node.as_table()) {
    Json json = Json::object();
    for (const auto& [key, item] : *table) json[std::string(key.str())] = node_json(item, origin, depth + 1);
    return json;
  }
  throw UsageError("{}: a date or time of day has no meaning here; quote it if a string was meant", origin.text);
}

// Dotted keys nest tables, which are destroyed recursively, and the parser does not limit their depth. Long dotted keys
// are therefore refused here, so that they cannot overflow the stack.
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

// Returns the members in the order of the file, since the parser sorts them by name.
std::vector<std::pair<std::string, const toml::node*>> in_order(const toml::table& table) {
  std::vector<std::pair<std::string, const toml::node*>> members;
  for (const auto& [key, node] : table) members.emplace_back(std::string(key.str()), &node);
  std::stable_sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
    return a.second->source().begin.line < b.second->source().begin.line;
  });
  return members;
}

void collect_table(const std::string& table, const toml::node& node, std::string_view name, Entries& entries,
                   Problems& problems) {
  const Origin place = file_origin(name, node);
  if (!is_table(table)) {
    if (!node.is_table()) unknown_key(place.text + ": ", table);
    throw UsageError("{}: unknown table [{}]{}", place.text, shown(table), table_suggestion(table));
  }
  if (!node.is_table()) throw UsageError("{}: {}: expected a table, [{}]", place.text, table, table);
  for (const auto& member : in_order(*node.as_table())) {
    const std::string full = table + "." + member.first;
    const Origin origin = file_origin(name, *member.second);
    problems.none_of([&] {
      if (!find_field(full)) unknown_key(origin.text + ": ", full);
      entries.insert_or_assign(full, Entry{node_json(*member.second, origin), origin});
    });
  }
}

void collect(const toml::table& document, std::string_view name, Entries& entries, Problems& problems) {
  for (const auto& member : in_order(document))
    if (member.first != "extends")
      problems.none_of([&] { collect_table(member.first, *member.second, name, entries, problems); });
}

void collect_file(const fs::path& file, std::vector<fs::path>& chain, Entries& entries, Problems& problems) {
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
    collect_file(base, chain, entries, problems);
  }
  collect(document, name, entries, problems);
}

// Parses a TOML value, or takes the text itself when it is not TOML: `--set train.until="2000 steps"` loses its quotes
// to the shell.
Json set_value(const std::string& raw) {
  if (raw.find('\n') != std::string::npos) return raw;
  try {
    const toml::table document = toml::parse("v = " + raw);
    if (document.size() != 1) return raw;
    return node_json(document.begin()->second, {Origin::Kind::kSet, "--set"});
  } catch (const toml::parse_error&) {
    return raw;
  }
}

void collect_set(std::string_view argument, Entries& entries) {
  Assignment set = parse_assignment(argument);
  entries.insert_or_assign(set.key, Entry{std::move(set.value), {Origin::Kind::kSet, ""}});
}

void collect_variable(const EnvironmentKey& known, const Environment& environment, Entries& entries) {
  const char* value = environment ? environment(known.variable) : nullptr;
  if (value == nullptr || *value == '\0') return;
  Assignment set = parse_assignment(fmt::format("{}={}", known.key, value), known.variable);
  entries.insert_or_assign(set.key, Entry{std::move(set.value), {Origin::Kind::kOther, known.variable}});
}

// Reads a value. Adds the value's place to an error of its kind, since the kind knows only the value.
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

// Returns a tenth of the run, but at most 2000 steps. If the run's length is in epochs, whose number of steps depends
// on the data, returns a tenth of the epochs.
std::optional<Horizon> usual_warmup(const Config& c) {
  constexpr std::int64_t kMost = 2000, kPart = 10;
  const Horizon& until = c.train.until;
  const auto of_steps = [&](std::int64_t all) { return steps(std::min(kMost, all / kPart)); };
  switch (until.unit) {
    case Horizon::Unit::kSteps:
      return of_steps(until.count());
    case Horizon::Unit::kTokens: {
      const std::int64_t step = c.batch.global * c.data.sequence_length;
      return of_steps(until.count() / step + (until.count() % step != 0));
    }
    case Horizon::Unit::kEpochs:
      return Horizon{Horizon::Unit::kEpochs, until.value / kPart};
    case Horizon::Unit::kSeconds:
      return std::nullopt;  // a schedule has no length in seconds
  }
  return std::nullopt;
}

void derive(Config& c) {
  if (!c.schedule.warmup) {
    c.schedule.warmup = usual_warmup(c);
    if (c.schedule.warmup) c.origins["schedule.warmup"] = {Origin::Kind::kOther, "derived: of train.until"};
  }
  if (c.model.family && !c.model.preset && !c.model.max_sequence) {
    c.model.max_sequence = c.data.sequence_length;
    c.origins["model.max_sequence"] = {Origin::Kind::kOther, "derived: data.sequence_length"};
  }
}

// Drops errors that follow from a key whose own value was refused.
void add_checks(const Config& config, const std::vector<std::string>& refused, Problems& problems) {
  Problems checks;
  check(config, checks);
  for (const std::string& text : checks.all())
    if (std::none_of(refused.begin(), refused.end(),
                     [&](const std::string& key) { return text.find(key) != std::string::npos; }))
      problems.add("{}", text);
}

Config resolved(const Entries& entries, Problems& problems, const Completion& complete = {}) {
  Config config;
  std::vector<std::string> refused;
  for (const Field& f : fields()) {
    const auto entry = entries.find(f.key);
    if (entry == entries.end()) continue;
    if (!problems.none_of([&] { read(config, f, entry->second.value, entry->second.origin); }))
      refused.push_back(f.key);
  }
  derive(config);
  add_checks(config, refused, problems);
  if (complete && refused.empty()) complete(config, problems);
  problems.raise();
  return config;
}

}  // namespace

void Problems::raise() const {
  constexpr std::size_t kShownErrors = 50;
  if (all_.empty()) return;
  if (all_.size() == 1 && first_) std::rethrow_exception(first_);
  if (all_.size() == 1) throw UsageError(all_.front());
  std::string text = fmt::format("{} errors:", all_.size());
  for (std::size_t i = 0; i < std::min(all_.size(), kShownErrors); ++i) text += "\n  " + all_[i];
  if (all_.size() > kShownErrors) text += fmt::format("\n  and {} more", all_.size() - kShownErrors);
  throw UsageError(text);
}

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

Assignment parse_assignment(std::string_view argument, std::string_view option) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string_view::npos) throw UsageError("{} {}: expected table.key=value", option, shown(argument));
  const std::string key(trimmed(argument.substr(0, equals)));
  const std::string raw(trimmed(argument.substr(equals + 1)));
  const Field* known = find_field(key);
  if (!known) unknown_key(fmt::format("{}: ", option), key);
  if (static_cast<std::int64_t>(raw.size()) > kLargestFile || !valid_utf8(raw)) {
    throw UsageError("{} {}: the value is too long or not UTF-8", option, key);
  }
  refuse_long_dotted_keys(raw, fmt::format("{} {}", option, key));
  Json value = set_value(raw);
  if (known->textual && !value.is_string() && !value.is_structured()) value = raw;
  return {key, std::move(value)};
}

const Field& field(std::string_view key) {
  const Field* known = find_field(key);
  if (!known) unknown_key("", key);
  return *known;
}

const std::vector<EnvironmentKey>& environment_keys() {
  static const std::vector<EnvironmentKey> keys{{"MOLEN_ENERGY_POLICY", "energy.policy"},
                                                {"MOLEN_ENERGY_SLOWDOWN", "energy.slowdown"},
                                                {"MOLEN_ENERGY_POWER_BUDGET", "energy.power_budget"}};
  return keys;
}

Config load(const std::optional<fs::path>& file, const std::vector<std::string>& sets, const Completion& complete,
            const Environment& environment) {
  Entries entries;
  Problems problems;
  std::vector<fs::path> chain;
  if (file) collect_file(*file, chain, entries, problems);
  for (const EnvironmentKey& known : environment_keys())
    problems.none_of([&] { collect_variable(known, environment, entries); });
  for (const std::string& set : sets) problems.none_of([&] { collect_set(set, entries); });
  return resolved(entries, problems, complete);
}

Config parse(std::string_view toml, std::string_view name, const std::vector<std::string>& sets) {
  if (static_cast<std::int64_t>(toml.size()) > kLargestFile)
    throw UsageError("{}: larger than {} bytes", name, kLargestFile);
  const toml::table document = parse_toml(toml, name);
  if (const toml::node* extends = document.get("extends")) {
    throw UsageError("{}: extends: only a file can extend another", file_origin(name, *extends).text);
  }
  Entries entries;
  Problems problems;
  collect(document, name, entries, problems);
  for (const std::string& set : sets) problems.none_of([&] { collect_set(set, entries); });
  return resolved(entries, problems);
}

void assign(Config& config, std::string_view key, const Json& value, const Origin& origin) {
  read(config, field(key), value, origin);
}

Config from_json(const Json& json, std::string_view name) {
  if (!json.is_object()) throw UsageError("{}: expected an object of tables", name);
  Entries entries;
  Problems problems;
  for (const auto& [table, members] : json.items()) {
    if (!members.is_object()) throw UsageError("{}: {}: expected an object", name, shown(table));
    for (const auto& [key, value] : members.items()) {
      const std::string full = fmt::format("{}.{}", table, key);
      if (!find_field(full)) unknown_key(fmt::format("{}: ", name), full);
      entries.insert_or_assign(full, Entry{value, {Origin::Kind::kFile, std::string(name)}});
    }
  }
  return resolved(entries, problems);
}

}  // namespace molen::config
