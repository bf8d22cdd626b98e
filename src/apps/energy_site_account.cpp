// The energy of a site's nodes, as the database of its collector has it.
#include <fmt/format.h>

#include <map>

#include "apps/cli.h"
#include "apps/energy_account.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"
#include "base/utf8.h"
#include "collect/site_events.h"
#include "collect/sums.h"
#include "serve/footprint.h"

namespace molen::apps {
namespace {

collect::SumQuery query_of(const AccountArguments& o) {
  collect::SumQuery query;
  query.by = chosen_key(o, collect::sum_keys());
  if (o.since) query.since_s = time_option(*o.since, "--since");
  if (o.until) query.until_s = time_option(*o.until, "--until");
  if (o.job) query.job = *o.job;
  return query;
}

int list_site_events(const AccountArguments& o) {
  const auto events = collect::site_events(*o.database, query_of(o));
  if (o.format == "csv") {
    fmt::print("{}", collect::site_events_csv(events));
    return kOk;
  }
  if (o.format == "json") {
    Json all = Json::array();
    for (const auto& event : events) all.push_back(collect::to_json(event));
    fmt::print("{}\n", Json{{"events", all}}.dump(2));
    return kOk;
  }
  std::vector<std::vector<std::string>> table{{"time", "until", "node", "event", "count", "job", "text"}};
  for (const auto& e : events)
    table.push_back({utc_timestamp(e.time_s), e.until_s ? utc_timestamp(*e.until_s) : "-", printable(e.node),
                     printable(e.kind), std::to_string(e.count), e.job.empty() ? "-" : printable(e.job),
                     printable(e.text)});
  print_columns(table, {4});
  return kOk;
}

// Returns the mean power of each node that is compared over their median; empty without a median that is not 0.
std::map<std::string, double> shares_of_median(const Comparison& nodes) {
  std::map<std::string, double> shares;
  for (std::size_t i = 0; i < nodes.names.size() && nodes.names.size() > 1 && nodes.spread.median > 0.0; ++i)
    shares[nodes.names[i]] = nodes.values[i] / nodes.spread.median;
  return shares;
}

Json comparison_json(const Comparison& nodes) {
  Json left_out = Json::object();
  for (const auto& [node, why] : nodes.left_out) left_out[node] = why;
  if (nodes.names.size() < 2) return left_out.empty() ? Json() : Json{{"not_compared", left_out}};
  Json outliers = Json::array();
  for (const std::size_t i : nodes.spread.outliers) outliers.push_back(nodes.names[i]);
  return {{"median_w", nodes.spread.median},
          {"imbalance", nodes.spread.imbalance},
          {"scaled_mad_w", nodes.spread.scaled_mad},
          {"outliers", nodes.spread.judged ? outliers : Json()},
          {"not_compared", left_out}};
}

void print_json(const std::string& by, const std::vector<collect::EnergySum>& sums) {
  const Comparison nodes = by == "node" ? collect::compare_nodes(sums) : Comparison{};
  const auto shares = shares_of_median(nodes);
  Json rows = Json::array();
  for (const auto& sum : sums) {
    rows.push_back(collect::to_json(sum));
    if (shares.empty()) continue;
    const auto share = shares.find(sum.key);
    rows.back()["of_median"] = share == shares.end() ? Json() : Json(share->second);
  }
  Json all{{"by", by}, {"rows", rows}};
  if (by == "node") all["nodes"] = comparison_json(nodes);
  fmt::print("{}\n", all.dump(2));
}

void print_table(const std::string& by, const std::vector<collect::EnergySum>& sums) {
  const Comparison nodes = by == "node" ? collect::compare_nodes(sums) : Comparison{};
  const auto shares = shares_of_median(nodes);
  std::vector<std::vector<std::string>> table{
      {by, "kWh", "nodes", "time", "node hours", "mean W", "EDP (MJ s)", "periods without reading", "from", "until"}};
  if (!shares.empty()) table[0].insert(table[0].begin() + 6, "of median");
  for (const auto& sum : sums) {
    table.push_back({sum.key.empty() ? "-" : printable(sum.key), shown(sum.joules, serve::kJoulesPerKwh),
                     std::to_string(sum.nodes), human(Seconds(sum.seconds)),
                     fmt::format("{:.4g}", sum.node_seconds / 3600.0), shown(sum.watts(), 1.0), shown(sum.edp, 1e6),
                     std::to_string(sum.without_reading), utc_timestamp(sum.from_s), utc_timestamp(sum.until_s)});
    if (shares.empty()) continue;
    const auto share = shares.find(sum.key);
    table.back().insert(table.back().begin() + 6, share == shares.end() ? "-" : fmt::format("{:.3f}", share->second));
  }
  print_columns(table, {1, 2, 3, 4, 5, 6, 7, shares.empty() ? std::size_t{7} : std::size_t{8}});
  if (const std::string text = comparison_text(nodes, "node"); !text.empty())
    fmt::print("mean power: {}\n", printable(text));
}

}  // namespace

int run_site_account(const AccountArguments& o) {
  if (o.events) return list_site_events(o);
  const collect::SumQuery query = query_of(o);
  const auto sums = collect::energy_sums(*o.database, query);
  if (o.format == "csv")
    fmt::print("{}", collect::sums_csv(query.by, sums));
  else if (o.format == "json")
    print_json(query.by, sums);
  else
    print_table(query.by, sums);
  return kOk;
}

}  // namespace molen::apps
