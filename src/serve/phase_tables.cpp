// The joules of each phase of a run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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
    s += "</table></div>" + not_attributed(scope);
  }
  return s;
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
