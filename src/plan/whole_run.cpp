#include "plan/whole_run.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "arch/parameters.h"
#include "base/error.h"
#include "program/values/optimizer.h"

namespace molen::plan {
namespace {

// Standard deviations of a normal variable between its mean and the ends of the interval that has it with 80 %.
constexpr double kEightyPercent = 1.2815515655446004;

// The figures that have intervals, as plain numbers that can be moved one at a time.
struct RunValues {
  double step_s, evaluation_s, jitter, slow_share, slow_factor, node_mtbf, restart, node_bandwidth, write, read;
};
constexpr double RunValues::*const kMovedValues[] = {
    &RunValues::step_s,      &RunValues::evaluation_s, &RunValues::jitter,  &RunValues::slow_share,
    &RunValues::slow_factor, &RunValues::node_mtbf,    &RunValues::restart, &RunValues::node_bandwidth,
    &RunValues::write,       &RunValues::read,
};

// A value beyond what it can be is moved to the end of its range.
RunValues within_ranges(RunValues v) {
  v.slow_share = std::min(v.slow_share, 1.0);
  v.slow_factor = std::max(v.slow_factor, 1.0);
  return v;
}

// An expected run, without intervals.
struct Expected {
  std::array<double, kRunParts> parts{};
  double total_s = 0.0, failures = 0.0, variance = 0.0;  // variance of the total, in s^2
  double slowest = 1.0, save_s = 0.0, load_s = 0.0, mtbf_s = 0.0;
  double step_s = 0.0;  // of one step with all that comes on top of it, but for checkpoints and failures
  std::int64_t save_every = 0, saves = 0;
  double& of(RunPart part) { return parts[static_cast<std::size_t>(part)]; }
  double of(RunPart part) const { return parts[static_cast<std::size_t>(part)]; }
};

double transfer_seconds(Bytes bytes, double all_nodes, const RunValues& v, int nodes) {
  return static_cast<double>(bytes.value) / std::min(all_nodes, nodes * v.node_bandwidth);
}

void add_stretches(Expected& e, const StretchTime& t, double times) {
  if (times == 0.0) return;
  e.of(RunPart::kRedone) += times * t.redone_s;
  e.of(RunPart::kRestarts) += times * t.restarts_s;
  e.failures += times * t.failures;
  e.variance += times * t.variance;
}

// `save_every`: steps between checkpoints; 0: those of the plan.
Expected expected_run(const RunPlan& p, const RunValues& moved, std::int64_t save_every = 0) {
  const RunValues v = within_ranges(moved);
  const auto steps = static_cast<double>(p.steps);
  Expected e;
  e.slowest = slowest_factor({v.jitter, v.slow_share, v.slow_factor, p.devices_of_node, p.nodes});
  e.save_s = transfer_seconds(p.checkpoint, v.write, v, p.nodes);
  e.load_s = transfer_seconds(p.checkpoint, v.read, v, p.nodes);
  e.mtbf_s = v.node_mtbf / p.nodes;
  e.of(RunPart::kUseful) = steps * v.step_s;
  e.of(RunPart::kSlowest) = steps * v.step_s * (e.slowest - 1.0);
  // The loader reads ahead of the steps (data/loader.h), so only what is slower than a step stalls it.
  e.of(RunPart::kData) = steps * std::max(0.0, transfer_seconds(p.batch, v.read, v, p.nodes) - e.slowest * v.step_s);
  e.of(RunPart::kEvaluation) =
      (static_cast<double>(p.evaluations) * v.evaluation_s + static_cast<double>(p.noise_scales) * v.step_s) *
      e.slowest;
  double work_s = 0.0;
  for (const double part : e.parts) work_s += part;
  e.step_s = work_s / steps;

  e.save_every = save_every > 0     ? save_every
                 : p.save_every > 0 ? p.save_every
                                    : static_cast<std::int64_t>(std::min(steps, std::ceil(p.save_every_s / e.step_s)));
  e.save_every = std::clamp<std::int64_t>(e.save_every, 1, p.steps);
  const std::int64_t whole = p.steps / e.save_every, rest = p.steps % e.save_every;
  e.saves = whole + (rest > 0 ? 1 : 0);
  e.of(RunPart::kCheckpoints) = static_cast<double>(e.saves) * e.save_s;
  const auto stretch = [&](std::int64_t of_steps) {
    return stretch_time(static_cast<double>(of_steps) * e.step_s + e.save_s, e.mtbf_s, v.restart + e.load_s);
  };
  add_stretches(e, stretch(e.save_every), static_cast<double>(whole));
  if (rest > 0) add_stretches(e, stretch(rest), 1.0);
  for (const double part : e.parts) e.total_s += part;
  return e;
}

// The joules of a run, without intervals. An evaluation draws the power of a step, and so do evaluations and stalls
// that are done again in the proportion in which they were done first.
struct ExpectedEnergy {
  double all = 0.0, lost = 0.0;
};
ExpectedEnergy energy_of(const Expected& e, double working, double waiting) {
  const double useful = working * (e.of(RunPart::kUseful) + e.of(RunPart::kEvaluation));
  const double stalls = e.of(RunPart::kSlowest) + e.of(RunPart::kData) + e.of(RunPart::kCheckpoints);
  const double without_failures = useful + waiting * stalls;
  const double seconds = e.of(RunPart::kUseful) + e.of(RunPart::kEvaluation) + stalls;
  const double failed = e.of(RunPart::kRedone) / seconds * without_failures + waiting * e.of(RunPart::kRestarts);
  return {without_failures + failed, waiting * stalls + failed};
}

// Collects how far a result moves when one figure after the other moves to the ends of its interval.
class Moved {
 public:
  explicit Moved(double value) : value_(value) {}
  void by(double low, double high) {
    if (value_ <= 0.0 || low == high) return;
    // The interval of an Estimate divides and multiplies, so half of the way is the root. A part that is zero at one
    // end has no such ratio; its way from the value to the other end counts.
    const double least = std::min(low, high), most = std::max(low, high);
    spread_ = std::hypot(spread_, least > 0.0 ? std::sqrt(most / least) - 1.0 : std::max(0.0, most / value_ - 1.0));
  }
  Estimate estimate() const { return {value_, spread_}; }

 private:
  double value_, spread_ = 0.0;
};

RunValues values_of(const RunPlan& p) {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  const RunFigures& f = p.figures;
  return {p.step.value,
          p.evaluation.value,
          f.step_jitter.value,
          f.slow_node_share.value,
          f.slow_node_factor.value,
          f.node_mtbf.value,
          f.restart.value,
          f.node_bandwidth.value,
          f.write_bandwidth ? f.write_bandwidth->value : kNoLimit,
          f.read_bandwidth ? f.read_bandwidth->value : kNoLimit};
}

// The spreads of the values, in their order. A step and an evaluation are predicted by the same simulator, so the
// evaluation moves with the step (moved_to).
std::array<double, std::size(kMovedValues)> spreads_of(const RunPlan& p) {
  const RunFigures& f = p.figures;
  return {p.step.spread,
          0.0,
          f.step_jitter.spread,
          f.slow_node_share.spread,
          f.slow_node_factor.spread,
          f.node_mtbf.spread,
          f.restart.spread,
          f.node_bandwidth.spread,
          f.write_bandwidth ? f.write_bandwidth->spread : 0.0,
          f.read_bandwidth ? f.read_bandwidth->spread : 0.0};
}

RunValues moved_to(RunValues v, std::size_t i, double factor) {
  v.*kMovedValues[i] *= factor;
  if (kMovedValues[i] == &RunValues::step_s) v.evaluation_s *= factor;
  return v;
}

void require_valid(const RunPlan& p) {
  MOLEN_CHECK(p.steps >= 1 && p.save_every >= 0 && (p.save_every > 0 || p.save_every_s > 0.0) && p.evaluations >= 0,
              "{} steps, a checkpoint every {} steps or {} s, {} evaluations", p.steps, p.save_every, p.save_every_s,
              p.evaluations);
  MOLEN_CHECK(p.step.value > 0.0 && std::isfinite(p.step.value) && p.evaluation.value >= 0.0 && p.nodes >= 1,
              "steps of {} s, evaluations of {} s, {} nodes", p.step.value, p.evaluation.value, p.nodes);
}

// Sets the best interval in steps: the better one of the two whole numbers beside the best time.
void choose_interval(const RunPlan& p, const RunValues& v, const Expected& e, WholeRun& run) {
  run.best_s = best_interval(e.save_s, e.mtbf_s), run.young_s = young_interval(e.save_s, e.mtbf_s);
  const double wanted = std::min(static_cast<double>(p.steps), std::floor(run.best_s / e.step_s));
  for (const double every : {wanted, wanted + 1.0}) {
    const Expected other = expected_run(p, v, std::clamp<std::int64_t>(static_cast<std::int64_t>(every), 1, p.steps));
    if (run.best_every > 0 && other.total_s >= run.best_total_s) continue;
    run.best_every = other.save_every, run.best_total_s = other.total_s;
  }
}

}  // namespace

Bytes checkpoint_bytes(const arch::Architecture& arch, const program::Setting& s) {
  const program::Optimizer& optimizer = program::optimizer_named(s.optimizer);
  const std::int64_t of_weight = size_of(s.master), of_state = s.compute == DType::kF64 ? 8 : 4;
  std::int64_t bytes = 0;
  for (const arch::Parameter& parameter : arch::parameters(arch)) {
    bytes += parameter.elements() * of_weight;
    for (const program::OptimizerState& state : optimizer.states) {
      std::int64_t elements = parameter.elements();
      if (state.has_shape()) {
        const auto shape = state.shape(parameter.shape.at(0), parameter.shape.size() > 1 ? parameter.shape[1] : 0);
        elements = shape.empty() ? 0 : shape.front();
      } else if (state.of == program::StateOf::kRest &&
                 (optimizer.updates_whole(parameter) || arch::moved_by_load(parameter.role))) {
        elements = 0;
      }
      bytes += elements * of_state;
    }
  }
  return Bytes(bytes);
}

std::string_view name_of(RunPart part) {
  constexpr std::array<std::string_view, kRunParts> kNames{"useful",      "slowest_rank", "data",    "evaluation",
                                                           "checkpoints", "redone",       "restarts"};
  return kNames[static_cast<std::size_t>(part)];
}

bool WholeRun::ends() const {
  return std::isfinite(total.value);
}

WholeRun whole_run(const RunPlan& p) {
  require_valid(p);
  const RunValues values = values_of(p);
  const auto spreads = spreads_of(p);
  const Expected e = expected_run(p, values);
  const ExpectedEnergy energy = energy_of(e, p.power.working.value, p.power.waiting.value);

  std::vector<Moved> parts(e.parts.begin(), e.parts.end());
  Moved total(e.total_s), failures(e.failures), save(e.save_s), load(e.load_s), joules(energy.all), lost(energy.lost);
  for (std::size_t i = 0; i < std::size(kMovedValues); ++i) {
    if (spreads[i] == 0.0) continue;
    const Expected low = expected_run(p, moved_to(values, i, 1.0 / (1.0 + spreads[i]))),
                   high = expected_run(p, moved_to(values, i, 1.0 + spreads[i]));
    for (std::size_t part = 0; part < kRunParts; ++part) parts[part].by(low.parts[part], high.parts[part]);
    total.by(low.total_s, high.total_s), failures.by(low.failures, high.failures);
    save.by(low.save_s, high.save_s), load.by(low.load_s, high.load_s);
    const ExpectedEnergy least = energy_of(low, p.power.working.value, p.power.waiting.value),
                         most = energy_of(high, p.power.working.value, p.power.waiting.value);
    joules.by(least.all, most.all), lost.by(least.lost, most.lost);
  }
  WholeRun run;
  for (std::size_t part = 0; part < kRunParts; ++part) run.parts[part] = parts[part].estimate();
  // The chance of the failures themselves, beside the unknown figures. Their number has the variance of a Poisson
  // variable, which equals its mean.
  run.total = total.estimate(), run.failures = failures.estimate();
  run.total.spread = std::hypot(run.total.spread, kEightyPercent * std::sqrt(e.variance) / e.total_s);
  if (e.failures > 0.0) run.failures.spread = std::hypot(run.failures.spread, kEightyPercent / std::sqrt(e.failures));
  run.slowest = e.slowest, run.save = save.estimate(), run.load = load.estimate(), run.job_mtbf_s = e.mtbf_s;
  run.save_every = e.save_every, run.saves = e.saves;
  choose_interval(p, values, e, run);
  // The power of both states follows from the same figures of the devices and nodes.
  const double power_spread = std::max(p.power.working.spread, p.power.waiting.spread);
  run.energy = joules.estimate() * Estimate{1.0, power_spread};
  run.lost = lost.estimate() * Estimate{1.0, power_spread};
  run.site = run.energy * p.pue;
  run.emissions = run.site * p.intensity;
  return run;
}

}  // namespace molen::plan
