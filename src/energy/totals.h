// The consumption of a run since it began, over all its attempts: the object "totals" of a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "energy/coverage.h"
#include "energy/power_curve.h"

namespace molen::energy {

// The energy with PUE, the emissions, the water and the price of joules at the sites where they were consumed. A value
// is absent unless the site's figure is known for all of that energy.
struct AtSite {
  std::optional<double> site_j;   // with the PUE
  std::optional<double> kg_co2e;  // of site_j, by the grid where the site is (location-based)
  std::optional<double> water_l, eur;
  std::optional<double> market_kg_co2e;    // of site_j, by the contracts of the site (market-based)
  std::optional<double> embodied_kg_co2e;  // of making the computers: their share for the time of the ranks
};
// Returns the sum. `before` is that of nothing if there were no joules before.
AtSite sum(const AtSite& before, bool joules_before, const AtSite& more);

// The energy of one host, with the scopes that it covers.
struct HostEnergy {
  std::optional<double> joules;     // over its scopes that count; nothing without a reading
  std::vector<std::string> scopes;  // those of them that were read, in the order of their names
  std::vector<std::string> lost;    // those of them on which joules are missing (gaps, failed readings)
  bool operator==(const HostEnergy&) const = default;
};

// The energy of all hosts since the meters were opened. Unlike a sum over steps, it includes the time between the steps
// (initialization, validation, checkpoints). It is also known when each step is shorter than a counter's update period.
struct EnergySoFar {
  double seconds = 0;
  std::map<std::string, double> joules;  // by scope; a scope that has not changed yet is absent, never 0
  // The most by which they may be off by the resolution of their meters (uncertainty.h); nothing where that is not
  // known.
  std::map<std::string, std::optional<double>> resolution_j;
  std::optional<double> total_j;  // over the summed scopes that have joules
  // By scope: the number of hosts on which joules are missing (gaps, failed readings).
  std::map<std::string, std::int64_t> lost;
  // By scope: why its joules may be wrong although each reading was one (Meter::doubt).
  std::map<std::string, std::string> doubts;
  // The ledger divides the joules of each counter among phases: {scope: {"entries": {name: {"joules", ...}}, ...}}
  // (docs/formats/energy.md). Empty when no counter was sampled.
  Json phases = Json::object();
  // The share of total_j that each host consumed, by the host's name. Filled only on rank 0 of a job on several hosts.
  std::map<std::string, HostEnergy> by_host;
  AtSite at_site;           // of total_j
  ModelledJoules modelled;  // of parts without a meter; in none of the values above
};

struct RunTotals {
  std::int64_t first_step = 1;  // first counted step: later than 1 if an earlier attempt kept no totals
  std::int64_t steps = 0, tokens = 0;
  double seconds = 0;  // wall time of the training processes, from the opening of the meters
  std::map<std::string, double> joules;
  // As in EnergySoFar; attempts add up. Nothing where any attempt that measured the scope does not know it.
  std::map<std::string, std::optional<double>> resolution_j;
  // That of total_j: the sum over its scopes, because meters that are read together are off together.
  std::optional<double> total_resolution_j() const;
  std::map<std::string, std::map<std::string, double>> phases_j;  // by scope and entry
  // The consumption of all attempts: `joules` and `total_j`, and beside them that of steps which a failure undid.
  std::map<std::string, double> spent_j;
  double spent_total_j = 0, spent_s = 0;
  AtSite spent_at_site;           // of spent_total_j; each joule at the site and the time of its attempt
  std::optional<double> total_j;  // null if nothing was measured
  // Emissions of total_j; null if any attempt that measured energy did not know its site's figures.
  std::optional<double> kg_co2e;
  std::int64_t hosts = 0;  // the largest number of hosts in an attempt
  std::set<std::string> summed;
  std::map<std::string, std::int64_t> missing;  // as in Coverage; the largest number of any attempt

  // The parts that total_j leaves out, as in Coverage::partial.
  std::string partial() const { return partial_text(summed, missing, hosts); }
  std::optional<double> j_per_token() const;
  // Returns the joules of steps that a failure undid: of those after the checkpoint from which the next attempt went
  // on.
  double undone_j() const;
  // Takes over what all attempts had consumed (J, by scope and in total) in how many seconds when the last of them
  // ended. These totals lack what came after the checkpoint. If that attempt ended by itself, this was the writing of
  // the checkpoint, and it is used, unattributed to a phase; if not, it is undone.
  void take_over(const std::map<std::string, double>& spent, double total, double after_s, bool ended_by_itself);
  // One line: "24 steps, 9.22 k tokens, 00:12, 1.23 kJ (partial: gpu only), 0.133 J/token".
  std::string text() const;
};

// Returns the sum of `before` and an attempt that followed it.
RunTotals add(RunTotals before, std::int64_t steps, std::int64_t tokens, const EnergySoFar& energy,
              const Coverage& coverage);

Json to_json(const RunTotals& totals);
// Parses the totals of a checkpoint at `step_done`. For a checkpoint from before totals were kept (only "attempts"),
// totals start after that step. Throws UsageError naming origin and key.
RunTotals totals_from_json(const Json& json, std::int64_t step_done, const std::string& origin);

}  // namespace molen::energy
