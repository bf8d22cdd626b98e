#include "apps/beside.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/memory/memory.h"

namespace molen::apps {
namespace {

struct PhaseBeside {
  std::string name;
  double predicted_s = 0.0, measured_s = 0.0;  // means over ranks
};

// Returns the phases that take time in either. The metrics of a run are means over its ranks, and each stage has as
// many ranks as any other.
std::vector<PhaseBeside> phases_beside(const Simulated& s, const MeasuredRun& measured) {
  const auto keys = program::phase_keys();
  std::vector<double> predicted(keys.size(), 0.0);
  for (std::size_t stage = 0; stage < s.step.size(); ++stage) {
    const auto of_stage = s.step.phases(stage).values();
    for (std::size_t i = 0; i < keys.size(); ++i) predicted[i] += of_stage[i] / static_cast<double>(s.step.size());
  }
  std::vector<PhaseBeside> phases;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto of_run = measured.phase_s.find(keys[i]);
    const double seconds = of_run == measured.phase_s.end() ? 0.0 : of_run->second;
    if (predicted[i] > 0 || seconds > 0) phases.push_back({keys[i], predicted[i], seconds});
  }
  return phases;
}

}  // namespace

void print_beside(const Simulated& s, const MeasuredRun& measured) {
  fmt::print("beside the run's last {} (medians; phases are means over ranks):\n", counted(measured.steps, "step"));
  const auto line = [](const std::string& name, double of_program, double of_run) {
    fmt::print("  {:<18} {:>10} {:>12} {:>8}\n", name, human(Seconds(of_program)), human(Seconds(of_run)),
               of_run > 0 ? fmt::format("{:+.1f}%", 100.0 * (of_program / of_run - 1.0)) : "-");
  };
  fmt::print("  {:<18} {:>10} {:>12} {:>8}\n", "", "predicted", "measured", "error");
  line("step", s.step_s(), measured.step_s);
  for (const PhaseBeside& phase : phases_beside(s, measured)) line(phase.name, phase.predicted_s, phase.measured_s);
  if (measured.step_j && s.cluster) {
    const bool devices = measured.energy_coverage == "gpu only";
    fmt::print("  {:<18} {:>10} {:>12}{}\n", "energy",
               fmt::format("{:.4g} J", (devices ? s.energy.devices : s.energy.computers()).value),
               fmt::format("{:.4g} J", *measured.step_j),
               measured.energy_coverage.empty() ? "" : " (" + measured.energy_coverage + ")");
  }
  fmt::print("\n");
}

Json beside_json(const Simulated& s, const MeasuredRun& measured) {
  Json phases = Json::array();
  for (const PhaseBeside& phase : phases_beside(s, measured))
    phases.push_back({{"phase", phase.name}, {"predicted_s", phase.predicted_s}, {"measured_s", phase.measured_s}});
  Bytes planned;
  for (std::size_t stage = 0; stage < s.step.size(); ++stage)
    planned = std::max(planned, program::planned_peak(s.step.program(stage)).device);
  return {{"step_s", {{"predicted", s.step_s()}, {"predicted_spread", s.spread()}, {"measured", measured.step_s}}},
          {"memory_bytes", {{"planned", planned.value}, {"measured", nullptr}}},
          {"phases", phases},
          {"step_j",
           {{"predicted", s.cluster ? Json(s.energy.computers().value) : Json()},
            {"predicted_devices", s.cluster ? Json(s.energy.devices.value) : Json()},
            {"measured", measured.step_j ? Json(*measured.step_j) : Json()},
            {"coverage", measured.energy_coverage}}},
          {"extrapolated", s.extrapolated.empty() ? Json() : Json(s.extrapolated)}};
}

}  // namespace molen::apps
