// The joules of each phase of a run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "serve/page.h"

namespace molen::serve {
namespace {

// One row for an entry of a scope: its share of the scope's joules, a 95 % interval, and the mean power that a rank
// adds while it is in the phase. The base is a power of the scope, and not of a rank.
std::string phase_row(const std::string& name, const Json& entry, double total_j) {
  const double joules = number_of(entry, "joules"), error = number_of(entry, "standard_error_j"),
               seconds = number_of(entry, "rank_seconds");
  std::string row = "<tr><th scope=row>" + escape(name);
  row += fmt::format("<td>{:.4g} kJ", joules * 1e-3);
  row += std::isfinite(error) ? fmt::format("<td>{:.2g} kJ", 1.96 * error * 1e-3) : "<td>";
  row += fmt::format("<td>{:.1f}%", 100.0 * joules / total_j);
  row +=
      seconds > 0 && name != "base" ? fmt::format("<td>{:.4g} s<td>{:.4g} W", seconds, joules / seconds) : "<td><td>";
  return row + "<td class=text>" + escape(text_of(entry, "note"));
}

// Says for each host of a scope why nothing was divided, if nothing was.
std::string not_attributed(const Json& scope) {
  std::string text;
  if (!scope.contains("not_attributed") || !scope["not_attributed"].is_object()) return text;
  for (const auto& [host, why] : scope["not_attributed"].items())
    text += "<p class=none>" + escape(host) +
            ": not divided among phases: " + escape(text_of(scope["not_attributed"], host)) + ".</p>";
  return text;
}

constexpr std::size_t kMostOps = 15;  // rows of a table of ops

std::string part_row(const std::string& cells, double joules, double total_j) {
  return cells + fmt::format("<td>{:.4g} kJ<td>{:.1f}%", joules * 1e-3, 100.0 * joules / total_j);
}

// The ops of all phases, those with the most joules first; the rest in one row.
std::string ops_table(const Json& entries, double total_j) {
  std::vector<std::tuple<double, std::string, std::string>> order;  // joules with the sign changed, op, entry
  for (const auto& [entry, values] : entries.items()) {
    if (!values.is_object() || !values.contains("ops") || !values["ops"].is_object()) continue;
    for (const auto& [op, joules] : values["ops"].items())
      if (joules.is_number()) order.emplace_back(-joules.get<double>(), op, entry);
  }
  if (order.empty()) return "";
  std::sort(order.begin(), order.end());
  std::string s =
      "<div class=scroll><table><tr><th scope=col>op<th scope=col class=text>phase<th scope=col>energy<th "
      "scope=col>share";
  double others = 0.0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto& [minus_joules, op, entry] = order[i];
    if (i < kMostOps)
      s += part_row("<tr><th scope=row>" + escape(op) + "<td class=text>" + escape(entry), -minus_joules, total_j);
    else
      others -= minus_joules;
  }
  if (order.size() > kMostOps)
    s += part_row(fmt::format("<tr><th scope=row>{} others<td>", order.size() - kMostOps), others, total_j);
  return s + "</table></div>";
}

// Where a group of layers stands in a table: the embedding, the layers by their numbers, the final part, the rest.
std::pair<int, int> place_of_group(const std::string& group) {
  const std::map<std::string, int> named{{"embed", 0}, {"final", 2}, {"other", 3}};
  if (const auto at = named.find(group); at != named.end()) return {at->second, 0};
  const auto digit = group.find_first_of("0123456789");
  return {1, digit == std::string::npos ? 0 : std::atoi(group.c_str() + digit)};
}

// The joules of parts, each with its share of the scope; "" where there are fewer than two parts.
std::string divided_table(const Json& scope, const char* key, const std::string& column, const std::string& before_name,
                          double total_j) {
  std::vector<std::pair<std::pair<int, int>, std::string>> order;
  if (!scope.contains(key) || !scope[key].is_object()) return "";
  for (const auto& [name, joules] : scope[key].items())
    if (joules.is_number()) order.emplace_back(place_of_group(name), name);
  if (order.size() < 2) return "";
  std::sort(order.begin(), order.end());
  std::string s = "<div class=scroll><table><tr><th scope=col>" + column + "<th scope=col>energy<th scope=col>share";
  for (const auto& [place, name] : order)
    s += part_row("<tr><th scope=row>" + escape(before_name + name), scope[key][name].get<double>(), total_j);
  return s + "</table></div>";
}

// The joules of the phases divided among ops, layers and stages; "" where the run has no such account.
std::string parts_of_phases(const Json& scope, double total_j) {
  const std::string ops = ops_table(scope["entries"], total_j);
  if (ops.empty()) return "";
  return "<details><summary>By op, by layers and by stage</summary><p>The power of a phase is taken to be constant: "
         "each part gets joules in proportion to its time, summed over ranks. Layers have the joules of ops, and "
         "stages "
         "those of all phases; neither has what is left to the base or unattributed.</p>" +
         ops + divided_table(scope, "layers", "layers", "", total_j) +
         divided_table(scope, "stages", "stage", "stage ", total_j) + "</details>";
}

// Adds up the numbers of two objects, by their names.
void add_numbers(Json& sum, const Json& more, const char* key) {
  if (!more.contains(key) || !more[key].is_object()) return;
  Json& to = sum[key];
  if (!to.is_object()) to = Json::object();
  for (const auto& [name, value] : more[key].items())
    if (value.is_number()) to[name] = to.value(name, 0.0) + value.get<double>();
}

// The parts of all scopes that count together: with a GPU for each rank, only their sum shows all stages. "" where one
// scope counts, whose own table has them.
std::string parts_of_all(const RunData& run, const Json& scopes) {
  if (!run.energy_totals.is_object() || !run.energy_totals.contains("summed")) return "";
  Json sum{{"entries", Json::object()}};
  double total_j = 0.0;
  int counted = 0;
  for (const Json& name : run.energy_totals["summed"]) {
    if (!name.is_string() || !scopes.contains(name.get<std::string>())) continue;
    const Json& scope = scopes[name.get<std::string>()];
    if (!scope.is_object() || !scope.contains("entries") || !scope["entries"].is_object()) continue;
    if (const double joules = number_of(scope, "joules"); joules > 0) total_j += joules, ++counted;
    for (const auto& [entry, values] : scope["entries"].items())
      if (values.is_object()) add_numbers(sum["entries"][entry], values, "ops");
    for (const char* key : {"layers", "stages"}) add_numbers(sum, scope, key);
  }
  const std::string parts = counted > 1 ? parts_of_phases(sum, total_j) : "";
  return parts.empty() ? "" : "<h3>Where the joules of all counted scopes went in the last attempt</h3>" + parts;
}

}  // namespace

std::string phases_of_energy(const RunData& run) {
  const Json& line = run.energy_phases;
  if (!line.is_object() || !line.contains("scopes") || !line["scopes"].is_object()) return "";
  std::string s;
  for (const auto& [name, scope] : line["scopes"].items()) {
    if (!scope.is_object() || !scope.contains("entries") || !scope["entries"].is_object()) continue;
    const double total_j = number_of(scope, "joules");
    if (!(total_j > 0)) continue;
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [entry, values] : scope["entries"].items())
      if (const double joules = number_of(values, "joules"); std::isfinite(joules))
        order.emplace_back(entry == "unattributed" ? 1.0 : -joules, entry);
    std::sort(order.begin(), order.end());
    s +=
        "<h3>Where the joules of " + escape(name) + " went in the last attempt</h3><div class=scroll><table><tr>" +
        "<th scope=col>phase<th scope=col>energy<th scope=col>&plusmn; (95%)<th scope=col>share<th scope=col>time over "
        "ranks<th scope=col>W for each rank in it<th scope=col class=text>note";
    for (const auto& [place, entry] : order) s += phase_row(entry, scope["entries"][entry], total_j);
    s += "</table></div>" + parts_of_phases(scope, total_j) + not_attributed(scope);
  }
  return s + parts_of_all(run, line["scopes"]);
}

std::string phases_of_attempts(const RunData& run) {
  const Json& totals = run.energy_totals;
  if (!(number_of(totals, "attempt") > 1) || !totals.contains("phases_j") || !totals["phases_j"].is_object()) return "";
  std::string rows;
  for (const auto& [scope, entries] : totals["phases_j"].items()) {
    if (!entries.is_object()) continue;
    for (const auto& [entry, joules] : entries.items())
      if (joules.is_number())
        rows += "<tr><th scope=row>" + escape(scope) + "<td class=text>" + escape(entry) +
                fmt::format("<td>{:.4g} kJ", joules.get<double>() * 1e-3);
  }
  if (rows.empty()) return "";
  return "<h3>Phases over all attempts</h3><div class=scroll><table><tr><th scope=col>scope<th scope=col "
         "class=text>phase"
         "<th scope=col>energy" +
         rows + "</table></div>";
}

}  // namespace molen::serve
