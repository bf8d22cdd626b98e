#include "apps/measured_run.h"

#include <algorithm>
#include <vector>

#include "base/median.h"
#include "store/metrics.h"

namespace molen::apps {
namespace {

constexpr std::size_t kLastSteps = 51;  // as many as the comparison at the end of a run takes

}  // namespace

std::optional<MeasuredRun> measured_run(const fs::path& run) {
  const auto steps = store::read_metrics(run / "metrics.jsonl").steps;
  if (steps.empty()) return std::nullopt;
  std::vector<double> step_s, step_j;
  std::map<std::string, std::vector<double>> phase_s;
  for (std::size_t i = steps.size() - std::min(kLastSteps, steps.size()); i < steps.size(); ++i) {
    const store::StepMetrics& m = steps[i];
    step_s.push_back(m.step_s);
    for (const auto& [phase, seconds] : m.phase_s) phase_s[phase].push_back(seconds);
    if (m.j_per_token) step_j.push_back(*m.j_per_token * m.tokens_per_s * m.step_s);
  }
  MeasuredRun measured{.steps = static_cast<std::int64_t>(step_s.size()),
                       .step_s = median(step_s),
                       .phase_s = {},
                       .step_j = std::nullopt,
                       .energy_coverage = steps.back().energy_coverage};
  for (const auto& [phase, seconds] : phase_s) measured.phase_s[phase] = median(seconds);
  if (!step_j.empty()) measured.step_j = median(step_j);
  return measured;
}

Json to_json(const MeasuredRun& run) {
  return {{"steps", run.steps},
          {"step_s", run.step_s},
          {"phase_s", run.phase_s},
          {"step_j", run.step_j ? Json(*run.step_j) : Json()},
          {"energy_coverage", run.energy_coverage}};
}

}  // namespace molen::apps
