// Writes the resolved configuration as TOML with origins and as JSON; also the differences between two configurations,
// and the reference page.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/config.h"

namespace molen::config {
namespace {

constexpr std::size_t kCommentColumn = 48;

std::string table_of(const Field& f) {
  return f.key.substr(0, f.key.find('.'));
}
std::string name_of(const Field& f) {
  return f.key.substr(f.key.find('.') + 1);
}

// Returns a basic string of TOML. It has JSON's escapes, and an escape for DEL, which TOML does not allow raw.
std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\u{:04x}", byte);
    else
      out += c;
  }
  return out + "\"";
}

std::string toml_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);  // the shortest text that is read back as the same value
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

bool bare(const std::string& key) {
  return !key.empty() &&
         std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
}

bool list_of_tables(const Json& value) {
  return value.is_array() && value.size() > 1 && value[0].is_object();
}

std::string value_lines(const Json& value) {
  if (!list_of_tables(value)) return toml_value(value);
  std::string out = "[\n";
  for (const Json& item : value) out += "  " + toml_value(item) + ",\n";
  return out + "]";
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::string default_of(const Field& f) {
  static const Config defaults;
  const Json value = f.write(defaults);
  return value.is_null() ? "not set" : toml_value(value);
}

std::string without_article(const std::string& type) {
  for (const char* article : {"a ", "an "}) {
    if (type.starts_with(article)) return type.substr(std::string_view(article).size());
  }
  return type;
}

}  // namespace

std::string toml_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string:
      return toml_string(value.get<std::string>());
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::number_float:
      return toml_number(value.get<double>());
    case Json::value_t::number_integer:
      return std::to_string(value.get<std::int64_t>());
    case Json::value_t::number_unsigned:
      return std::to_string(value.get<std::uint64_t>());
    case Json::value_t::array: {
      std::vector<std::string> items;
      for (const Json& item : value) items.push_back(toml_value(item));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
    case Json::value_t::object: {
      std::vector<std::string> items;
      for (const auto& [key, item] : value.items()) {
        items.push_back(fmt::format("{} = {}", bare(key) ? key : toml_string(key), toml_value(item)));
      }
      return items.empty() ? "{}" : fmt::format("{{ {} }}", fmt::join(items, ", "));
    }
    default:
      return "none";
  }
}

std::string to_toml(const Config& config) {
  std::string out = "# Resolved configuration of molen; each value with its origin.\n", table;
  for (const Field& f : fields()) {
    if (table_of(f) != table) {
      table = table_of(f);
      out += fmt::format("\n[{}]\n", table);
    }
    const Json value = f.write(config);
    if (value.is_null()) {
      out += fmt::format("# {} is not set\n", name_of(f));
      continue;
    }
    const auto origin = config.origins.find(f.key);
    const std::string line = fmt::format("{} = {}", name_of(f), value_lines(value));
    const std::string from = origin == config.origins.end() ? "default" : origin->second.describe();
    out += fmt::format("{:<{}}  # {}\n", line, list_of_tables(value) ? 0 : kCommentColumn, one_line(from));
  }
  return out;
}

Json to_json(const Config& config) {
  Json json = Json::object();
  for (const Field& f : fields()) {
    Json value = f.write(config);
    if (!json.contains(table_of(f))) json[table_of(f)] = Json::object();
    if (!value.is_null()) json[table_of(f)][name_of(f)] = std::move(value);
  }
  return json;
}

std::vector<Difference> diff(const Config& before, const Config& after) {
  std::vector<Difference> list;
  for (const Field& f : fields()) {
    const Json a = f.write(before), b = f.write(after);
    if (a != b) list.push_back({f.key, toml_value(a), toml_value(b), f.effect});
  }
  return list;
}

std::string reference() {
  std::string out =
      "Configuration of molen: one TOML file, `extends = \"base.toml\"`, then `--set table.key=value`.\n"
      "Keys marked * decide the numbers: they must not change on resume unless --allow-change names them.\n"
      "A key that is \"not set\" by default is reset by \"none\".\n"
      "Lengths of training: \"2000 steps\", \"450B tokens\", \"12 h\", \"3 epochs\". Times: \"100 ms\", \"30 s\", \"12 "
      "h\".\n"
      "Powers: \"300 W\", \"1.2 MW\". Sizes: \"40 GB\", \"512 MiB\".\n";
  std::string table;
  for (const Field& f : fields()) {
    if (table_of(f) != table) {
      table = table_of(f);
      out += fmt::format("\n[{}]\n", table);
    }
    out += fmt::format("{:<17} {} {}; default: {}\n", name_of(f), f.effect == Effect::kNumbers ? "*" : " ",
                       without_article(f.type), default_of(f));
    out += fmt::format("{:<20}{}\n", "", f.meaning);
    if (!f.choices.empty()) out += fmt::format("{:<20}choices: {}\n", "", fmt::join(f.choices, ", "));
  }
  return out;
}

Json reference_json() {
  static const Config defaults;
  Json list = Json::array();
  for (const Field& f : fields()) {
    list.push_back({{"key", f.key},
                    {"type", without_article(f.type)},
                    {"default", f.write(defaults)},
                    {"meaning", f.meaning},
                    {"choices", f.choices},
                    {"decides_numbers", f.effect == Effect::kNumbers}});
  }
  return list;
}

}  // namespace molen::config
