#include "store/prometheus.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "base/error.h"

namespace molen::store {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool valid_name(std::string_view name, bool colon) {
  if (name.empty() || is_digit(name[0])) return false;
  for (const char c : name)
    if (!is_letter(c) && !is_digit(c) && !(colon && c == ':')) return false;
  return true;
}

// Escapes backslash and newline for HELP; for a label's value also the quote.
std::string escape(std::string_view text, bool quote) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && quote)
      out += "\\\"";
    else
      out += c;
  }
  return out;
}

std::string prometheus_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);  // the shortest text that reads back as the same bits
}

std::string_view name_of(PrometheusType type) {
  switch (type) {
    case PrometheusType::kCounter:
      return "counter";
    case PrometheusType::kGauge:
      return "gauge";
    case PrometheusType::kUntyped:
      return "untyped";
  }
  return "untyped";
}

void check(const PrometheusSample& s) {
  if (!valid_name(s.name, true)) throw Error("prometheus: '{}' is no metric name", s.name);
  if (s.type == PrometheusType::kCounter && !s.name.ends_with("_total"))
    throw Error("prometheus: the counter '{}' must end in _total", s.name);
  for (const auto& [label, value] : s.labels)
    if (!valid_name(label, false) || label.starts_with("__"))
      throw Error("prometheus: '{}' is no label name (metric {})", label, s.name);
}

std::string line(const PrometheusSample& s) {
  std::string labels;
  for (const auto& [label, value] : s.labels)
    labels += fmt::format("{}{}=\"{}\"", labels.empty() ? "" : ",", label, escape(value, true));
  return s.name + (labels.empty() ? "" : "{" + labels + "}");
}

}  // namespace

std::string prometheus_text(const std::vector<PrometheusSample>& samples) {
  std::vector<const PrometheusSample*> families;  // the first sample of each name
  std::map<std::string, std::string> bodies;
  std::set<std::string> seen;
  std::map<std::string, const PrometheusSample*> first;
  for (const PrometheusSample& s : samples) {
    check(s);
    const auto [at, is_new] = first.emplace(s.name, &s);
    if (is_new) families.push_back(&s);
    if (at->second->help != s.help || at->second->type != s.type)
      throw Error("prometheus: '{}' is given with two help texts or types", s.name);
    const std::string key = line(s);
    if (!seen.insert(key).second) throw Error("prometheus: '{}' is given twice", key);
    bodies[s.name] += fmt::format("{} {}\n", key, prometheus_number(s.value));
  }
  std::string text;
  for (const PrometheusSample* f : families)
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n{}", f->name, escape(f->help, false), f->name, name_of(f->type),
                        bodies[f->name]);
  return text;
}

void write_prometheus(const fs::path& path, const std::vector<PrometheusSample>& samples) {
  write_file_unsynced(path, prometheus_text(samples));
}

}  // namespace molen::store
