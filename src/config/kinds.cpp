// The kinds of value of the field list.
#include "config/kinds.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/suggest.h"
#include "base/utf8.h"

namespace molen::config::kinds {
namespace {

constexpr std::size_t kShown = 60;  // characters of a rejected value in its error
constexpr std::size_t kLongText = 4096;
constexpr std::size_t kMostItems = 4096;

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

std::string suggestion(const std::string& word, const std::vector<std::string>& choices) {
  return word.size() > kShown ? "" : did_you_mean(word, choices);
}

// Returns whether the text is on one line and has no character that controls a terminal.
bool is_printable(const std::string& text) {
  return text.find_first_of("\n\t") == std::string::npos && printable(text) == text;
}

bool same_but_case(const std::string& a, const std::string& b) {
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

std::string string_of(const Json& value, std::string_view expected) {
  if (!value.is_string()) reject(expected, value);
  std::string text = value.get<std::string>();
  if (text.empty() || text.size() > kLongText || !is_printable(text)) reject(expected, value);
  return text;
}

// Returns a number. Integers are accepted as numbers, but other numbers are not accepted as integers.
double number_of(const Json& value, std::string_view expected) {
  if (!value.is_number()) reject(expected, value);
  const double number = value.get<double>();
  if (!std::isfinite(number)) reject(expected, value);
  return number;
}

Kind<double> number(std::string expected, std::function<bool(double)> allowed) {
  return {.type = expected, .read = [=](const Json& value) {
            const double number = number_of(value, expected);
            if (!allowed(number)) reject(expected, value);
            return number;
          }};
}

Kind<std::int64_t> integer(std::string expected, std::int64_t least, std::int64_t most) {
  return {.type = expected, .read = [=](const Json& value) {
            if (!value.is_number_integer() || value.is_number_unsigned()) {
              // Documents contain signed integers; unsigned integers come from programs.
              if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::uint64_t(INT64_MAX))
                reject(expected, value);
            }
            const std::int64_t n = value.get<std::int64_t>();
            if (n < least) reject(expected, value);
            if (n > most) reject(fmt::format("at most {}", most), value);
            return n;
          }};
}

// Reads a list of strings, or one string, in which commas separate the members, for `--set`.
std::vector<std::string> words_of(const Json& value, std::string_view expected) {
  std::vector<std::string> words;
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    if (text.size() > kLongText || !is_printable(text)) reject(expected, value);
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      std::string word = text.substr(begin, end - begin);
      word.erase(0, word.find_first_not_of(' '));
      word.erase(word.find_last_not_of(' ') + 1);
      if (!word.empty()) words.push_back(std::move(word));
      begin = end + 1;
    }
    return words;
  }
  if (!value.is_array() || value.size() > kMostItems) reject(expected, value);
  for (const Json& item : value) words.push_back(string_of(item, expected));
  return words;
}

void reject_unknown_members(const Json& value, const std::vector<std::string>& known, std::string_view expected) {
  for (const auto& [key, member] : value.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      reject(expected, value, fmt::format("; unknown key '{}'{}", key.substr(0, kShown), suggestion(key, known)));
    }
  }
}

template <class Unit>
Kind<Unit> quantity(std::string type, Result<Unit> (*parse)(std::string_view), bool zero) {
  return {.type = std::move(type),
          .read =
              [=](const Json& value) {
                if (!value.is_string()) reject(parse("").reason(), value);
                const Result<Unit> parsed = parse(value.get<std::string>());
                if (!parsed) reject(parsed.reason(), value);
                if (!zero && !(parsed.value().value > 0)) reject(parse("").reason() + ", above zero", value);
                return parsed.value();
              },
          .write = [](const Unit& value) { return Json(print(value)); },
          .textual = true};
}

DataSource source_of(const Json& value) {
  static const std::string kExpected =
      "a path, or a table such as { path = \"data/nl\", weight = 1.0, languages = [\"nl\"] }";
  DataSource source;
  if (value.is_string()) {
    source.path = string_of(value, kExpected);
    return source;
  }
  if (!value.is_object()) reject(kExpected, value);
  reject_unknown_members(value, {"path", "weight", "languages"}, kExpected);
  if (!value.contains("path")) reject(kExpected, value, "; path is missing");
  source.path = string_of(value["path"], "path to be a string");
  if (value.contains("weight")) source.weight = positive_number().read(value["weight"]);
  if (value.contains("languages"))
    source.languages = words_of(value["languages"], "languages such as [\"nl\", \"en\"]");
  return source;
}

Json json_of(const DataSource& source) {
  Json json{{"path", source.path}, {"weight", source.weight}};
  if (!source.languages.empty()) json["languages"] = source.languages;
  return json;
}

}  // namespace

void reject(std::string_view expected, const Json& got, std::string_view hint) {
  std::string shown = toml_value(got);
  if (shown.size() > kShown) {
    std::size_t end = kShown;
    while (end > 0 && (static_cast<unsigned char>(shown[end]) & 0xc0) == 0x80) --end;  // not inside a UTF-8 sequence
    shown = shown.substr(0, end) + "...";
  }
  throw UsageError("expected {}, got {}{}", expected, shown, hint);
}

Kind<std::int64_t> positive(std::int64_t most) {
  return integer("a positive integer", 1, most);
}
Kind<std::int64_t> natural(std::int64_t most) {
  return integer("an integer of 0 or more", 0, most);
}

Kind<double> positive_number() {
  return number("a positive number", [](double v) { return v > 0.0; });
}
Kind<double> natural_number() {
  return number("a number of 0 or more", [](double v) { return v >= 0.0; });
}
Kind<double> loss_scale() {
  return number("a number from 1 to 2^126", [](double v) { return v >= 1.0 && v <= 0x1p+126; });
}
Kind<double> below_one() {
  return number("a number from 0 to below 1", [](double v) { return v >= 0.0 && v < 1.0; });
}
Kind<double> at_least_one() {
  return number("a number of 1 or more", [](double v) { return v >= 1.0; });
}
Kind<double> at_most_zero() {
  return number("a number of 0 or less", [](double v) { return v <= 0.0; });
}

Kind<double> share() {
  Kind<double> kind = number("a share such as 0.05 or \"5 %\"", [](double v) { return v >= 0.0 && v <= 10.0; });
  kind.read = [plain = kind.read, expected = kind.type](const Json& value) {
    if (!value.is_string()) return plain(value);
    // The text is parsed as watts, because both units have the same grammar of numbers.
    std::string text = value.get<std::string>();
    if (text.empty() || text.back() != '%') reject(expected, value);
    text.back() = 'W';
    const Result<Watts> percent = parse_watts(text);
    if (!percent) reject(expected, value);
    const double result = percent.value().value / 100.0;
    if (result > 10.0) reject(expected, value);
    return result;
  };
  return kind;
}

Kind<bool> boolean() {
  return {.type = "true or false", .read = [](const Json& value) {
            if (!value.is_boolean()) reject("true or false", value);
            return value.get<bool>();
          }};
}

Kind<std::string> text() {
  return {.type = "a string",
          .read = [](const Json& value) { return string_of(value, "a string of printable characters"); },
          .textual = true};
}

Kind<std::string> path() {
  return {.type = "a path", .read = [](const Json& value) { return string_of(value, "a path"); }, .textual = true};
}

Kind<std::string> run_name() {
  static const std::string kExpected = "a directory name without '/'";
  return {.type = "a name",
          .read =
              [](const Json& value) {
                std::string name = string_of(value, kExpected);
                if (name.find('/') != std::string::npos || name == "." || name == ".." || name.size() > 200)
                  reject(kExpected, value);
                return name;
              },
          .textual = true};
}

Kind<std::string> choice(std::vector<std::string> choices) {
  const std::string expected = "one of " + joined(choices, ", ");
  return {.type = "a choice",
          .read =
              [=](const Json& value) {
                if (!value.is_string()) reject(expected, value);
                const std::string word = value.get<std::string>();
                const auto found = std::find_if(choices.begin(), choices.end(),
                                                [&](const std::string& known) { return same_but_case(word, known); });
                if (found == choices.end()) reject(expected, value, suggestion(word, choices));
                return *found;
              },
          .choices = choices,
          .textual = true};
}

Kind<std::string> choice_or_file(std::vector<std::string> choices) {
  Kind<std::string> kind = choice(std::move(choices));
  kind.type = "a choice, or a file (with a '/' or ending in .csv)";
  kind.read = [named = kind.read](const Json& value) {
    if (value.is_string()) {
      const std::string word = value.get<std::string>();
      if (word.find('/') != std::string::npos || word.ends_with(".csv")) return string_of(value, "a path");
    }
    return named(value);
  };
  return kind;
}

Kind<Horizon> horizon() {
  Kind<Horizon> kind = quantity<Horizon>("a length of training", parse_horizon, false);
  return kind;
}
Kind<Horizon> horizon_or_zero() {
  return quantity<Horizon>("a length of training", parse_horizon, true);
}
Kind<Seconds> time() {
  return quantity<Seconds>("a time", parse_seconds, false);
}
Kind<std::optional<Seconds>> time_or_auto() {
  return {.type = "auto, or a time",
          .read = [](const Json& value) -> std::optional<Seconds> {
            if (value == "auto") return std::nullopt;
            return time().read(value);
          },
          .write = [](const std::optional<Seconds>& value) { return value ? Json(print(*value)) : Json("auto"); },
          .textual = true};
}
Kind<Watts> power() {
  return quantity<Watts>("a power", parse_watts, false);
}
Kind<Joules> energy() {
  return quantity<Joules>("an energy", parse_joules, false);
}
Kind<Kilograms> mass() {
  return quantity<Kilograms>("a mass of CO2e", parse_kilograms, false);
}

namespace {

const std::string kRecomputeExpected =
    "none, full, full/2 (every second layer), a list of parts such as [\"attention\"], or a size such as \"8 GiB\"";

// Removes an ending such as "/3" from `text` and returns its number, 3. Returns 1 if there is none. Throws when the
// number is not a number of layers.
std::int64_t take_every(std::string& text, const Json& value) {
  const std::size_t slash = text.rfind('/');
  if (slash == std::string::npos) return 1;
  std::int64_t every = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + slash + 1, end, every);
  if (error != std::errc() || at != end || every < 1 || every > kManyMost) reject(kRecomputeExpected, value);
  text.erase(slash);
  return every;
}

Recompute recompute_of(const Json& value) {
  if (value == "none") return {};
  Json names = value;
  std::int64_t every = 1;
  if (value.is_string()) {
    std::string text = value.get<std::string>();
    if (const Result<Bytes> budget = parse_bytes(text)) {
      if (budget.value() <= Bytes(0)) reject(kRecomputeExpected, value);
      return {.mode = Recompute::Mode::kBudget, .budget = budget.value()};
    }
    // A part's name does not start with a digit, so this text was meant as a size.
    if (!text.empty() && text[0] >= '0' && text[0] <= '9') reject(parse_bytes(text).reason(), value);
    every = take_every(text, value);
    if (text == "full") return {.mode = Recompute::Mode::kFull, .every = every};
    names = text;
  }
  Recompute r{.mode = Recompute::Mode::kParts, .parts = words_of(names, kRecomputeExpected), .every = every};
  for (const std::string& part : r.parts)
    if (part == "none" || part == "full" || part.find('/') != std::string::npos) reject(kRecomputeExpected, value);
  if (!r.parts.empty()) return r;
  if (every != 1) reject(kRecomputeExpected, value);
  return {};
}

}  // namespace

Kind<Recompute> recompute() {
  return {.type = "none, full, full/2 (every second layer), a list of layer parts, or a size",
          .read = recompute_of,
          .write = [](const Recompute& r) -> Json {
            const std::string behind = r.every == 1 ? "" : fmt::format("/{}", r.every);
            switch (r.mode) {
              case Recompute::Mode::kNone:
                return "none";
              case Recompute::Mode::kFull:
                return "full" + behind;
              case Recompute::Mode::kParts:
                if (r.every == 1) return r.parts;
                return joined(r.parts, ",") + behind;
              case Recompute::Mode::kBudget:
                return print(r.budget);
            }
            return {};
          },
          .textual = true};
}

Kind<RopeScaling> rope_scaling() {
  static const std::string kExpected =
      "a table such as { factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_sequence = 8192 }";
  return {.type = "a table of Llama 3.1's RoPE scaling",
          .read =
              [](const Json& value) {
                if (!value.is_object()) reject(kExpected, value);
                reject_unknown_members(
                    value, {"factor", "low_freq_factor", "high_freq_factor", "original_max_sequence"}, kExpected);
                RopeScaling r;
                if (value.contains("factor")) r.factor = positive_number().read(value["factor"]);
                if (value.contains("low_freq_factor"))
                  r.low_freq_factor = positive_number().read(value["low_freq_factor"]);
                if (value.contains("high_freq_factor"))
                  r.high_freq_factor = positive_number().read(value["high_freq_factor"]);
                if (value.contains("original_max_sequence"))
                  r.original_max_sequence = positive().read(value["original_max_sequence"]);
                return r;
              },
          .write =
              [](const RopeScaling& r) {
                return Json{{"factor", r.factor},
                            {"low_freq_factor", r.low_freq_factor},
                            {"high_freq_factor", r.high_freq_factor},
                            {"original_max_sequence", r.original_max_sequence}};
              }};
}

Kind<std::int64_t> half_or_positive() {
  return {.type = "positive integer or \"half\"",
          .read =
              [](const Json& value) {
                if (value == "half") return std::int64_t{0};
                if (value.is_string()) reject("a positive integer or \"half\"", value);
                return positive().read(value);
              },
          .write = [](const std::int64_t& value) { return value == 0 ? Json("half") : Json(value); }};
}

Kind<std::optional<std::int64_t>> positive_or_auto() {
  static const std::string kExpected = "\"auto\" or a positive integer";
  return {.type = "auto, or a positive integer",
          .read = [](const Json& value) -> std::optional<std::int64_t> {
            if (value == "auto") return std::nullopt;
            if (!value.is_number_integer()) reject(kExpected, value);
            return positive().read(value);
          },
          .write = [](const std::optional<std::int64_t>& value) { return value ? Json(*value) : Json("auto"); }};
}

Kind<std::vector<std::string>> names(std::vector<std::string> choices) {
  const std::string expected = choices.empty() ? "a list of names" : "a list of " + joined(choices, ", ");
  return {.type = "a list of names",
          .read =
              [=](const Json& value) {
                std::vector<std::string> words = words_of(value, expected);
                for (const std::string& word : words) {
                  if (choices.empty()) continue;
                  if (std::find(choices.begin(), choices.end(), word) == choices.end())
                    reject(expected, value, suggestion(word, choices));
                }
                if (std::set<std::string>(words.begin(), words.end()).size() != words.size())
                  reject(expected, value, "; a name appears twice");
                return words;
              },
          .choices = choices,
          .textual = true};
}

Kind<std::vector<std::string>> axis_order() {
  // "ep" may be left out. Its place is then directly within "dp-shard".
  const std::vector<std::string> axes = ParallelTable{}.order;
  std::vector<std::string> known = axes;
  known.insert(std::find(known.begin(), known.end(), "dp-shard") + 1, "ep");
  Kind<std::vector<std::string>> kind = names(known);
  kind.read = [read = kind.read, axes](const Json& value) {
    std::vector<std::string> order = read(value);
    const bool without = std::find(order.begin(), order.end(), "ep") == order.end();
    if (order.size() != axes.size() + (without ? 0 : 1)) reject("each of " + joined(axes, ", ") + " once", value);
    return order;
  };
  return kind;
}

Kind<std::vector<std::int64_t>> positives(std::string expected) {
  return {.type = "a list of positive integers", .read = [expected = std::move(expected)](const Json& value) {
            std::vector<std::int64_t> list;
            if (value.is_number_integer()) return std::vector{positive().read(value)};
            if (!value.is_array() || value.size() > kMostItems) reject(expected, value);
            for (const Json& item : value) list.push_back(positive().read(item));
            return list;
          }};
}

Kind<std::vector<DataSource>> sources() {
  static const std::string kExpected = "a path, or a list of paths or { path, weight, languages } tables";
  return {.type = "a path, or a list of { path, weight, languages }",
          .read =
              [](const Json& value) {
                if (value.is_string() || value.is_object()) return std::vector{source_of(value)};
                if (!value.is_array() || value.size() > kMostItems) reject(kExpected, value);
                std::vector<DataSource> list;
                for (const Json& item : value) list.push_back(source_of(item));
                return list;
              },
          .write =
              [](const std::vector<DataSource>& list) {
                Json json = Json::array();
                for (const DataSource& source : list) json.push_back(json_of(source));
                return json;
              },
          .textual = true};
}

}  // namespace molen::config::kinds
