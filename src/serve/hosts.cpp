// The joules of each host of a run, and which hosts deviate from the others.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/outliers.h"
#include "serve/page.h"

namespace molen::serve {
namespace {

// Returns the names in a list of a host, separated by spaces, such as its scopes; "" where there is none.
std::string names_of(const Json& line, const char* key, const std::string& host) {
  std::string names;
  if (!line.contains(key) || !line[key].is_object() || !line[key].contains(host)) return names;
  for (const Json& name : line[key][host])
    if (name.is_string()) names += (names.empty() ? "" : " ") + name.get<std::string>();
  return names;
}

// The hosts of the last line that has their joules. Those that counted other scopes than most or lost readings are not
// compared; older lines say neither.
struct Hosts {
  std::map<std::string, double> joules;  // of the hosts with a reading
  Comparison comparison;
};

// With fewer than two readings, returns an empty Hosts.
Hosts hosts_of(const RunData& run) {
  Hosts hosts;
  const Json& line = run.energy_hosts;
  if (!line.is_object() || !line.contains("joules") || !line["joules"].is_object()) return {};
  std::vector<Candidate> candidates;
  for (const auto& [name, value] : line["joules"].items()) {
    const double joules = value.is_number() ? value.get<double>() : std::nan("");
    candidates.push_back({name, {}, names_of(line, "scopes", name), ""});
    if (!(joules >= 0.0 && std::isfinite(joules))) continue;
    candidates.back().value = hosts.joules[name] = joules;
    if (const std::string lost = names_of(line, "lost", name); !lost.empty())
      candidates.back().lacking = "readings lost of " + lost;
  }
  if (hosts.joules.size() < 2) return {};
  hosts.comparison = compare(candidates);
  return hosts;
}

std::string host_row(const Hosts& hosts, const std::string& name, double seconds, const std::string& share,
                     const std::string& note) {
  std::string row = "<tr><th scope=row>" + escape(name);
  const auto joules = hosts.joules.find(name);
  const bool read = joules != hosts.joules.end();
  row += read ? fmt::format("<td>{:.4g} kJ", joules->second * 1e-3) : "<td>-";
  row += read && seconds > 0.0 ? fmt::format("<td>{:.4g} W", joules->second / seconds) : "<td>-";
  return row + "<td>" + share + "<td class=text>" + escape(note);
}

}  // namespace

std::string hosts_table(const RunData& run) {
  const Hosts hosts = hosts_of(run);
  if (hosts.joules.empty()) return "";
  const double seconds = number_of(run.energy_hosts, "seconds");
  const Comparison& c = hosts.comparison;
  std::string rows;
  for (std::size_t i = 0; i < c.names.size(); ++i) {
    const bool outlier = std::ranges::find(c.spread.outliers, i) != c.spread.outliers.end();
    const bool beside = c.names.size() > 1 && c.spread.median > 0.0;
    rows += host_row(hosts, c.names[i], seconds, beside ? fmt::format("{:.3f}", c.values[i] / c.spread.median) : "-",
                     outlier ? "outlier" : "");
  }
  for (const auto& [name, why] : c.left_out) rows += host_row(hosts, name, seconds, "-", "not compared: " + why);
  return "<h3>Energy of the hosts in attempt " + escape(text_of(run.energy_hosts, "attempt", "?")) +
         "</h3><p>Over the scopes that count: " + escape(comparison_text(c, "host")) +
         ".</p><div class=scroll><table><tr><th scope=col>host<th scope=col>energy<th scope=col>mean power<th "
         "scope=col>of the median<th scope=col class=text>" +
         rows + "</table></div>";
}

Json hosts_json(const RunData& run) {
  const Hosts hosts = hosts_of(run);
  if (hosts.joules.empty()) return {};
  const Comparison& c = hosts.comparison;
  Json outliers = Json::array(), left_out = Json::object();
  for (const std::size_t i : c.spread.outliers) outliers.push_back(c.names[i]);
  for (const auto& [name, why] : c.left_out) left_out[name] = why;
  const auto of_several = [&](double value) { return c.names.size() > 1 ? Json(value) : Json(); };
  return {{"attempt", run.energy_hosts.value("attempt", Json())},
          {"joules", run.energy_hosts["joules"]},
          {"median_j", of_several(c.spread.median)},
          {"scaled_mad_j", of_several(c.spread.scaled_mad)},
          {"imbalance", of_several(c.spread.imbalance)},
          {"outliers", c.spread.judged ? outliers : Json()},
          {"not_compared", left_out}};
}

}  // namespace molen::serve
