#include "apps/whole_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/documents.h"
#include "program/build/build.h"
#include "sim/factors.h"
#include "sim/simulate.h"

namespace molen::apps {
namespace {

// Shards have 2 or 4 bytes for a token (docs/formats/shards.md).
constexpr std::int64_t kMostBytesOfToken = 4;

bool in_epochs(const config::Horizon& h) {
  return h.unit == config::Horizon::Unit::kEpochs;
}

// Lengths of a configuration in steps.
class StepCounts {
 public:
  StepCounts(const config::Config& c, const arch::Architecture& arch) : c_(c) {
    if (in_epochs(c.train.until) || in_epochs(c.checkpoint.every) || in_epochs(c.train.validate_every))
      sequences_ = plan::sequences_per_epoch(c, arch);
  }
  // Returns -1 for a time.
  std::int64_t of(const config::Horizon& h, const char* key) const {
    const std::int64_t steps = plan::steps_of(c_, h, key, sequences_);
    return steps < 0 ? steps : std::max<std::int64_t>(1, steps);
  }

 private:
  const config::Config& c_;
  double sequences_ = 0.0;
};

// The power of the computers while they work and while devices wait, which draw their share "power_waiting" then.
plan::RunPower power_of(const cluster::Cluster& on, const PredictedStep& step, int ranks) {
  const double spread = step.energy.power_spread;
  const double idle = on.device.idle_power.value, range = on.device.peak_power.value - idle;
  const double waiting = ranks * (idle + sim::Factors::shipped().of("power_waiting") * range);
  return {{step.energy.computers().value / step.seconds, spread},
          {waiting + step.energy.hosts.value / step.seconds, spread}};
}

// Sets how often and how long the run evaluates. Data that cannot be read here may be there where the run is.
void add_evaluations(WholeRun& to, const config::Config& c, const arch::Architecture& arch,
                     const program::Setting& setting, const sim::Costs& costs, std::int64_t every, double spread) {
  if (c.data.validation.empty()) return;
  try {
    if (every < 0) throw UsageError("{}: give steps, tokens or epochs", c.where("train.validate_every"));
    const std::int64_t rounds = plan::validation_rounds(c, arch, setting);
    const program::Stages stages(program::build_stages(arch, plan::evaluation_setting(setting), nullptr, false));
    to.plan.evaluation = {static_cast<double>(rounds) * sim::step_seconds(sim::simulate(stages, costs)), spread};
    // The trainer evaluates at the end of a run too.
    to.plan.evaluations = (to.plan.steps + every - 1) / every;
  } catch (const UsageError& error) {
    to.uncounted = error.what();
  }
}

Json interval(const plan::Estimate& e) {
  return {{"value", e.value}, {"low", e.low()}, {"high", e.high()}};
}

std::vector<std::pair<std::string_view, const cluster::Figure*>> figures_of(const plan::RunFigures& f) {
  std::vector<std::pair<std::string_view, const cluster::Figure*>> all{
      {"reliability.step_jitter", &f.step_jitter},
      {"reliability.slow_node_share", &f.slow_node_share},
      {"reliability.slow_node_factor", &f.slow_node_factor},
      {"reliability.node_mtbf", &f.node_mtbf},
      {"reliability.restart", &f.restart},
      {"storage.node_bandwidth", &f.node_bandwidth}};
  if (f.write_bandwidth) all.emplace_back("storage.write_bandwidth", &*f.write_bandwidth);
  if (f.read_bandwidth) all.emplace_back("storage.read_bandwidth", &*f.read_bandwidth);
  return all;
}

// Returns the figure in the unit of its key.
std::string shown_figure(std::string_view key, const cluster::Figure& f) {
  const bool mtbf = key == "reliability.node_mtbf";
  return fmt::format("{}{} = {:.4g} +- {:.0f} %", key, mtbf ? "_hours" : "", mtbf ? f.value / 3600.0 : f.value,
                     100.0 * f.spread);
}

std::string shown_seconds(double seconds) {
  return std::isfinite(seconds) && seconds < 1e12 ? human(Seconds(seconds)) : "for ever";
}

std::string range_text(const plan::Estimate& e) {
  return fmt::format("{} to {}", shown_seconds(e.low()), shown_seconds(e.high()));
}

std::string_view meaning_of(plan::RunPart part) {
  switch (part) {
    case plan::RunPart::kUseful:
      return "steps as predicted";
    case plan::RunPart::kSlowest:
      return "waiting for slow ranks";
    case plan::RunPart::kData:
      return "waiting for data";
    case plan::RunPart::kEvaluation:
      return "validation";
    case plan::RunPart::kCheckpoints:
      return "saving checkpoints";
    case plan::RunPart::kRedone:
      return "work lost to failures";
    case plan::RunPart::kRestarts:
      return "restarts";
  }
  MOLEN_CHECK(false, "part {}", static_cast<int>(part));
}

void print_parts(const plan::WholeRun& run) {
  fmt::print("  {:<24} {:>10} {:>8}   {}\n", "", "expected", "", "80 % interval");
  for (std::size_t i = 0; i < plan::kRunParts; ++i) {
    const plan::Estimate& part = run.parts[i];
    if (part.value > 0.0)
      fmt::print("  {:<24} {:>10} {:>7.2f}%   {}\n", meaning_of(static_cast<plan::RunPart>(i)),
                 shown_seconds(part.value), 100.0 * part.value / run.total.value, range_text(part));
  }
}

void print_failures(const plan::RunPlan& plan, const plan::WholeRun& run) {
  fmt::print(
      "failures: {:.3g} expected ({:.2g} to {:.2g}), one every {} of the job; a restart loads its checkpoint in {}\n",
      run.failures.value, run.failures.low(), run.failures.high(), shown_seconds(run.job_mtbf_s),
      shown_seconds(run.load.value));
  fmt::print("checkpoints: {}, {} each, saved in {} ({}) while all ranks wait, every {}\n", run.saves,
             human(plan.checkpoint), shown_seconds(run.save.value), range_text(run.save),
             counted(run.save_every, "step"));
  fmt::print(
      "the best interval between checkpoints is {} of work ({}; Young's formula: {}), with which the run takes {}\n",
      shown_seconds(run.best_s), counted(run.best_every, "step"), shown_seconds(run.young_s),
      shown_seconds(run.best_total_s));
}

}  // namespace

WholeRun whole_run_of(const config::Config& c, const arch::Architecture& arch, const program::Setting& setting,
                      const plan::Machine& machine, const cluster::Cluster& on, const sim::Costs& costs,
                      const PredictedStep& step) {
  WholeRun w;
  if (!c.origins.contains("train.until")) return w;
  if (c.train.until.unit == config::Horizon::Unit::kSeconds) {
    w.absent = fmt::format("{}: the length of a run is in steps, tokens or epochs", c.where("train.until"));
    return w;
  }
  std::optional<StepCounts> counts;
  try {
    counts.emplace(c, arch);
  } catch (const UsageError& error) {
    w.absent = fmt::format("the steps of an epoch follow from data.train: {}", error.what());
    return w;
  }
  plan::RunPlan& p = w.plan;
  p.steps = counts->of(c.train.until, "train.until");
  p.save_every = std::max<std::int64_t>(0, counts->of(c.checkpoint.every, "checkpoint.every"));
  p.save_every_s = c.checkpoint.every.value;
  p.step = {step.seconds, step.spread};
  p.checkpoint = plan::checkpoint_bytes(arch, setting);
  // Ranks that see the same samples read them each for themselves.
  p.batch = Bytes(setting.positions() * kMostBytesOfToken * (machine.ranks / setting.data_ranks()));
  p.devices_of_node = machine.local_ranks, p.nodes = machine.ranks / machine.local_ranks;
  p.figures = plan::run_figures(on);
  p.power = power_of(on, step, machine.ranks);
  p.pue = plan::estimate_of(on.site.pue), p.intensity = plan::estimate_of(on.site.intensity);
  add_evaluations(w, c, arch, setting, costs, counts->of(c.train.validate_every, "train.validate_every"), step.spread);
  if (const std::int64_t every = c.train.noise_scale_every; every > 0) w.plan.noise_scales = w.plan.steps / every;
  w.run = plan::whole_run(p);
  if (!w.run->ends()) {
    w.absent = fmt::format(
        "the run never ends: {} of the job fail every {}, before {} and their checkpoint are done; a shorter "
        "checkpoint.every, fewer nodes or faster storage help",
        counted(p.nodes, "node"), human(Seconds(w.run->job_mtbf_s)), counted(w.run->save_every, "step"));
    w.run.reset();
  }
  return w;
}

WholeRun whole_run_of_calibration(const config::Config& c) {
  WholeRun w;
  if (c.origins.contains("train.until"))
    w.absent = "a calibration has no figures of failures and storage; --cluster with a description has";
  return w;
}

Json whole_run_json(const WholeRun& w) {
  if (!w.run) return w.absent.empty() ? Json() : Json{{"absent", w.absent}};
  const plan::WholeRun& run = *w.run;
  Json parts, figures = Json::array();
  for (std::size_t i = 0; i < plan::kRunParts; ++i)
    parts[std::string(plan::name_of(static_cast<plan::RunPart>(i)))] = interval(run.parts[i]);
  for (const auto& [key, figure] : figures_of(w.plan.figures))
    figures.push_back({{"key", key}, {"value", figure->value}, {"spread", figure->spread}, {"source", figure->source}});
  return {{"steps", w.plan.steps},
          {"total_s", interval(run.total)},
          {"parts_s", parts},
          {"goodput", run.goodput()},
          {"slowest_rank_factor", run.slowest},
          {"failures", interval(run.failures)},
          {"job_mtbf_s", run.job_mtbf_s},
          {"checkpoint_bytes", w.plan.checkpoint.value},
          {"checkpoints", run.saves},
          {"checkpoint_every", run.save_every},
          {"save_s", interval(run.save)},
          {"load_s", interval(run.load)},
          {"best_interval_s", run.best_s},
          {"young_interval_s", run.young_s},
          {"best_every", run.best_every},
          {"best_total_s", run.best_total_s},
          {"evaluations", w.plan.evaluations},
          {"evaluation_s", w.plan.evaluation.value},
          {"noise_scales", w.plan.noise_scales},
          {"uncounted_evaluations", w.uncounted.empty() ? Json() : Json(w.uncounted)},
          {"energy_j", interval(run.energy)},
          {"lost_j", interval(run.lost)},
          {"site_j", interval(run.site)},
          {"kg_co2e", interval(run.emissions)},
          {"figures", figures}};
}

void print_whole_run(const WholeRun& w) {
  if (!w.run) {
    if (!w.absent.empty()) fmt::print("\nno whole run is predicted: {}\n", w.absent);
    return;
  }
  const plan::WholeRun& run = *w.run;
  fmt::print("\nwhole run of {} on {}: {}, with a probability of 80 % {}; {:.1f} % of the time are useful steps\n",
             counted(w.plan.steps, "step"), counted(w.plan.nodes, "node"), shown_seconds(run.total.value),
             range_text(run.total), 100.0 * run.goodput());
  print_parts(run);
  fmt::print("a step takes {:.3f} times as long on the slowest of {}\n", run.slowest,
             counted(std::int64_t{w.plan.nodes} * w.plan.devices_of_node, "device"));
  print_failures(w.plan, run);
  if (!w.uncounted.empty()) fmt::print("validation is not counted: {}\n", w.uncounted);
  constexpr double kJoulesOfMwh = 3.6e9;
  fmt::print(
      "energy {:.4g} MWh +- {:.0f} %, of which {:.2g} MWh for no useful step; with the site {:.4g} MWh, {:.3g} t "
      "CO2e\n",
      run.energy.value / kJoulesOfMwh, 100.0 * run.energy.spread, run.lost.value / kJoulesOfMwh,
      run.site.value / kJoulesOfMwh, run.emissions.value / 1e3);
  fmt::print("it follows from these figures; the description of the cluster may have better ones:\n");
  for (const auto& [key, figure] : figures_of(w.plan.figures))
    fmt::print("  {}: {}\n", shown_figure(key, *figure), figure->source);
}

}  // namespace molen::apps
