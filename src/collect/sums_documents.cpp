// The sums of a database as JSON and CSV.
#include <fmt/format.h>

#include "base/clock.h"
#include "base/csv.h"
#include "base/units.h"
#include "collect/sums.h"

namespace molen::collect {

std::optional<double> EnergySum::watts() const {
  return joules && seconds > 0.0 ? std::optional(*joules / seconds) : std::nullopt;
}

Json to_json(const EnergySum& sum) {
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  return {{"key", sum.key},
          {"energy_j", or_null(sum.joules)},
          {"nodes", sum.nodes},
          {"seconds", sum.seconds},
          {"node_seconds", sum.node_seconds},
          {"mean_w", or_null(sum.watts())},
          {"edp_js", or_null(sum.edp)},
          {"periods_without_reading", sum.without_reading},
          {"from", utc_timestamp(sum.from_s)},
          {"until", utc_timestamp(sum.until_s)}};
}

std::string sums_csv(const std::string& by, const std::vector<EnergySum>& sums) {
  std::string csv =
      "job_id,step_id,user_id,node_id,day,nodes,start_time,end_time,time,energy_J,power_W,DC_"
      "power,PCK_power,DRAM_"
      "power,"
      "GPU_power,EDP,node_seconds,periods_without_reading,user_group,user_acc,e_tag\n";
  for (const EnergySum& s : sums) {
    const auto watts = [](const std::optional<PartEnergy>& part) {
      return part && part->seconds > 0.0 ? csv_number(part->joules / part->seconds) : "";
    };
    const std::vector<std::string> cells{s.job,
                                         s.step,
                                         s.user,
                                         s.node,
                                         by == "day" ? s.key : "",
                                         std::to_string(s.nodes),
                                         utc_timestamp(s.from_s),
                                         utc_timestamp(s.until_s),
                                         csv_number(s.seconds),
                                         csv_number(s.joules),
                                         csv_number(s.watts()),
                                         watts(s.parts.node),
                                         watts(s.parts.cpu),
                                         watts(s.parts.dram),
                                         watts(s.parts.gpu),
                                         csv_number(s.edp),
                                         csv_number(s.node_seconds),
                                         std::to_string(s.without_reading),
                                         s.group,
                                         s.account,
                                         s.tag};
    for (std::size_t i = 0; i < cells.size(); ++i) csv += (i > 0 ? "," : "") + csv_cell(cells[i]);
    csv += "\n";
  }
  return csv;
}

Comparison compare_nodes(const std::vector<EnergySum>& by_node) {
  std::vector<Candidate> nodes;
  for (const EnergySum& s : by_node) {
    nodes.push_back({s.key, s.watts(), s.counted, ""});
    if (s.unread_s > kMostUnreadShare * s.seconds)
      nodes.back().lacking = counted(s.unread, "period") + " without a reading";
  }
  return compare(nodes);
}

}  // namespace molen::collect
