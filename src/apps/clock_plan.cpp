#include "apps/clock_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/filesystem.h"
#include "program/memory/memory.h"
#include "program/provenance/provenance.h"
#include "program/text/text.h"
#include "store/run_directory.h"

namespace molen::apps {
namespace {

// The hosts take their power for as long as the step lasts.
double computers_j(const plan::ClockPlan& plan, const policy::Outcome& outcome, Joules hosts) {
  return plan.devices_j(outcome) + hosts.value * outcome.seconds / plan.plans.highest.seconds;
}

Json outcome_json(const plan::ClockPlan& plan, const policy::Outcome& outcome, Joules hosts) {
  return {{"step_s", outcome.seconds},
          {"devices_j", plan.devices_j(outcome)},
          {"computers_j", computers_j(plan, outcome, hosts)},
          {"saving", plan.saving(outcome)}};
}

std::string megahertz(double hz) {
  return fmt::format("{:.0f} MHz", hz * 1e-6);
}

void print_outcome(const plan::ClockPlan& plan, const std::string& name, const policy::Outcome& outcome, Joules hosts) {
  const double now = computers_j(plan, plan.plans.highest, hosts), with = computers_j(plan, outcome, hosts);
  fmt::print("  {:<34} {:>10} {:>12} {:>7.2f} % {:>12} {:>7.2f} %\n", name, human(Seconds(outcome.seconds)),
             fmt::format("{:.5g} J", plan.devices_j(outcome)), 100.0 * plan.saving(outcome),
             fmt::format("{:.5g} J", with), 100.0 * (1.0 - with / now));
}

void print_changes(const std::vector<policy::ClockChanges>& changes) {
  const auto most = std::max_element(changes.begin(), changes.end(),
                                     [](const auto& a, const auto& b) { return a.changes < b.changes; });
  if (most == changes.end() || most->changes == 0) return;
  double shortest = 0.0;
  for (const auto& row : changes)
    if (row.changes > 0 && (shortest == 0.0 || row.shortest_s < shortest)) shortest = row.shortest_s;
  fmt::print(
      "stage {} changes its clock most often, {} in a step; the shortest time between two changes of a stage is {}\n",
      most->stage, counted(most->changes, "time"), human(Seconds(shortest)));
}

}  // namespace

Json clock_plan_json(const plan::ClockPlan& plan, Joules hosts) {
  Json clocks = Json::array(), changes = Json::array();
  for (const auto& row : plan.clocks)
    clocks.push_back({{"stage", row.stage},
                      {"kind", row.kind},
                      {"tasks", row.tasks},
                      {"least_hz", row.least_hz},
                      {"median_hz", row.median_hz},
                      {"most_hz", row.most_hz}});
  for (const auto& row : plan.changes)
    changes.push_back({{"stage", row.stage}, {"changes", row.changes}, {"shortest_s", row.shortest_s}});
  return {{"deadline_s", plan.plans.deadline_s},
          {"simulated_s", plan.simulated_s},
          {"highest", outcome_json(plan, plan.plans.highest, hosts)},
          {"slack", outcome_json(plan, plan.plans.slack, hosts)},
          {"envpipe", outcome_json(plan, plan.plans.envpipe, hosts)},
          {"single", outcome_json(plan, plan.plans.single, hosts)},
          {"bound_devices_j", plan.ranks_of_stage * plan.plans.bound_joules},
          {"programs", outcome_json(plan, plan.set, hosts)},
          {"change_s", plan.change_s},
          {"changes_of_programs", plan.set_changes},
          {"clocks", clocks},
          {"changes", changes},
          {"assumptions", plan.assumptions}};
}

void print_clock_plan(const plan::ClockPlan& plan, Joules hosts) {
  const auto& plans = plan.plans;
  fmt::print("\nclocks of the devices, for a step of at most {}; with the plan, the simulator predicts {}\n",
             human(Seconds(plans.deadline_s)), human(Seconds(plan.simulated_s)));
  fmt::print("  {:<34} {:>10} {:>12} {:>9} {:>12} {:>9}\n", "", "step", "devices", "saved", "with hosts", "saved");
  print_outcome(plan, "highest clocks (now)", plans.highest, hosts);
  print_outcome(plan, "slack plan", plans.slack, hosts);
  print_outcome(plan, "slack plan, as programs set it", plan.set, hosts);
  print_outcome(plan, "EnvPipe's rule", plans.envpipe, hosts);
  print_outcome(plan, "one clock for all", plans.single, hosts);
  fmt::print("no plan of this step takes less than {:.5g} J of the devices ({:.2f} % saved)\n",
             plan.ranks_of_stage * plans.bound_joules, 100.0 * (1.0 - plans.bound_joules / plans.highest.joules));
  fmt::print("\n  {:<6} {:<18} {:>6} {:>10} {:>10} {:>10}\n", "stage", "slack plan", "tasks", "lowest", "median",
             "highest");
  for (const auto& row : plan.clocks)
    fmt::print("  {:<6} {:<18} {:>6} {:>10} {:>10} {:>10}\n", row.stage, row.kind, row.tasks, megahertz(row.least_hz),
               megahertz(row.median_hz), megahertz(row.most_hz));
  print_changes(plan.changes);
  const auto most = std::ranges::max_element(plan.set_changes);
  fmt::print(
      "programs set the clocks of this plan with --programs: a clock holds for whole bodies, and no stage changes its "
      "clock more than {} in a step\n",
      counted(*most, "time"));
  fmt::print("these joules rest on:\n");
  for (const std::string& line : plan.assumptions) fmt::print("  {}\n", line);
}

void write_clock_programs(const plan::ClockPlan& plan, std::vector<program::Program> built,
                          const std::filesystem::path& folder) {
  MOLEN_CHECK(built.size() == plan.programs.size(), "{} programs for {} stages", built.size(), plan.programs.size());
  make_directories(folder);
  for (std::size_t s = 0; s < built.size(); ++s)
    if (const auto file = folder / store::program_name(static_cast<int>(s)); path_exists(file))
      throw UsageError("--programs: {} is there already; give another folder, or move it away", file.string());
  for (std::size_t s = 0; s < built.size(); ++s) {
    program::Program& p = built[s];
    const program::Program& clocked = plan.programs[s];
    MOLEN_CHECK(clocked.bodies.size() >= p.bodies.size() &&
                    std::ranges::equal(p.bodies, std::span(clocked.bodies).first(p.bodies.size()), {},
                                       &program::Body::name, &program::Body::name),
                "stage {} was planned with other bodies", s);
    p.bodies.insert(p.bodies.end(), clocked.bodies.begin() + static_cast<std::ptrdiff_t>(p.bodies.size()),
                    clocked.bodies.end());
    p.schedule = clocked.schedule;
    program::require_sound(p, fmt::format("the program of stage {} with its clocks", s));
    write_file_atomic(folder / store::program_name(static_cast<int>(s)), program::print(p, program::plan_memory(p)));
  }
}

}  // namespace molen::apps
