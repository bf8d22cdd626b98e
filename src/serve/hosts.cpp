// The joules of each host of a run, and which hosts deviate from the others.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/outliers.h"
#include "serve/page.h"

namespace molen::serve {
namespace {

// The hosts with a reading, in the order of their names.
struct Hosts {
  std::vector<std::string> names, unread;
  std::vector<double> joules;
  Spread spread;
};

// Of fewer than two hosts nothing is said, and names are all empty.
Hosts hosts_of(const RunData& run) {
  Hosts hosts;
  const Json& line = run.energy_hosts;
  if (!line.is_object() || !line.contains("joules") || !line["joules"].is_object()) return {};
  for (const auto& [name, value] : line["joules"].items()) {
    const double joules = value.is_number() ? value.get<double>() : std::nan("");
    if (!(joules >= 0.0 && std::isfinite(joules)))
      hosts.unread.push_back(name);
    else
      hosts.names.push_back(name), hosts.joules.push_back(joules);
  }
  if (hosts.names.size() < 2) return {};
  hosts.spread = spread_of(hosts.joules);
  return hosts;
}

bool is_outlier(const Hosts& hosts, std::size_t place) {
  return std::ranges::find(hosts.spread.outliers, place) != hosts.spread.outliers.end();
}

}  // namespace

std::string hosts_table(const RunData& run) {
  const Hosts hosts = hosts_of(run);
  if (hosts.names.empty()) return "";
  const double seconds = number_of(run.energy_hosts, "seconds");
  std::string rows;
  for (std::size_t i = 0; i < hosts.names.size(); ++i) {
    const double joules = hosts.joules[i];
    rows += "<tr><th scope=row>" + escape(hosts.names[i]) + fmt::format("<td>{:.4g} kJ", joules * 1e-3);
    rows += seconds > 0.0 ? fmt::format("<td>{:.4g} W", joules / seconds) : "<td>-";
    rows += hosts.spread.median > 0.0 ? fmt::format("<td>{:.3f}", joules / hosts.spread.median) : "<td>-";
    rows += is_outlier(hosts, i) ? "<td class=text>outlier" : "<td class=text>";
  }
  for (const std::string& name : hosts.unread)
    rows += "<tr><th scope=row>" + escape(name) + "<td>-<td>-<td>-<td class=text>no reading";
  return "<h3>Energy of the hosts in attempt " + escape(text_of(run.energy_hosts, "attempt", "?")) +
         "</h3><p>Over the scopes that count: " + escape(spread_text(hosts.spread, hosts.names, hosts.joules, "host")) +
         ".</p><div class=scroll><table><tr><th scope=col>host<th scope=col>energy<th scope=col>mean power<th "
         "scope=col>of the median<th scope=col class=text>" +
         rows + "</table></div>";
}

Json hosts_json(const RunData& run) {
  const Hosts hosts = hosts_of(run);
  if (hosts.names.empty()) return {};
  Json outliers = Json::array();
  for (const std::size_t i : hosts.spread.outliers) outliers.push_back(hosts.names[i]);
  return {{"attempt", run.energy_hosts.value("attempt", Json())},
          {"joules", run.energy_hosts["joules"]},
          {"median_j", hosts.spread.median},
          {"scaled_mad_j", hosts.spread.scaled_mad},
          {"imbalance", hosts.spread.imbalance},
          {"outliers", hosts.spread.judged ? outliers : Json()}};
}

}  // namespace molen::serve
