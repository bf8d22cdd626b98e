// What a run has used since it began, over all its attempts: the object "totals" of a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/json.h"
#include "energy/coverage.h"

namespace molen::energy {

// Since the meters were opened, all hosts together. Unlike the sum over steps it holds what lies between them
// (initialization, validation, checkpoints), and short steps do not fall below a counter's period.
struct EnergySoFar {
  double seconds = 0;
  std::map<std::string, double> joules;  // by scope; one that has not moved yet is absent, never 0
  std::optional<double> total_j;         // over the summed scopes that have joules
  std::map<std::string, std::int64_t>
      lost;  // scopes that are short of joules (gaps, failed readings): on how many hosts
};

struct RunTotals {
  std::int64_t first_step = 1;  // counted from this step on: later than 1 where an earlier attempt kept no totals
  std::int64_t steps = 0, tokens = 0;
  double seconds = 0;  // wall time of the training processes, from the opening of the meters
  std::map<std::string, double> joules;
  std::optional<double> total_j;  // null where nothing was measured
  std::int64_t hosts = 0;         // most at a time
  std::set<std::string> summed;
  std::map<std::string, std::int64_t> missing;  // in any attempt; on the most hosts

  // What total_j leaves out, as Coverage::partial.
  std::string partial() const { return partial_text(summed, missing, hosts); }
  std::optional<double> j_per_token() const;
  // One line: "24 steps, 9.22 k tokens, 00:12, 1.23 kJ (partial: gpu only), 0.133 J/token".
  std::string text() const;
};

// `before` and an attempt that followed it.
RunTotals add(RunTotals before, std::int64_t steps, std::int64_t tokens, const EnergySoFar& energy,
              const Coverage& coverage);

Json to_json(const RunTotals& totals);
// Of a checkpoint that is at `step_done`. One made before totals were kept (only "attempts") starts them after that
// step. Throws UsageError naming origin and key.
RunTotals totals_from_json(const Json& json, std::int64_t step_done, const std::string& origin);

}  // namespace molen::energy
