#include "plan/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/suggest.h"
#include "plan/documents.h"
#include "plan/layouts.h"
#include "plan/memory_overheads.h"
#include "program/build/stage_by_stage.h"
#include "program/memory/memory.h"
#include "program/schedule/schedule.h"
#include "sim/attended.h"
#include "sim/described_errors.h"
#include "sim/forecast.h"
#include "sim/intervals.h"

namespace molen::plan {
namespace {

constexpr std::array kObjectives{Objective::kTime, Objective::kEnergy, Objective::kCost, Objective::kCo2,
                                 Objective::kMemory};

struct Figures {
  double step_s, energy_j, memory_bytes;
  SiteCosts site;
  double of(Objective objective) const {
    switch (objective) {
      case Objective::kTime:
        return step_s;
      case Objective::kEnergy:
        return energy_j;
      case Objective::kCost:
        return site.money().value;
      case Objective::kCo2:
        return site.emissions.value;
      case Objective::kMemory:
        return memory_bytes;
    }
    throw Error("unknown objective");
  }
};

bool charges_devices(const cluster::Site& site) {
  return site.device_hour && site.device_hour->value > 0.0;
}

// Energy, cost and CO2 of a bound are bounds as well, because the figures of a site are not negative.
double figure_of(const Bound& b, int ranks, Objective objective, const cluster::Site& site) {
  return Figures{b.step_s, b.energy_j, b.memory_bytes, site_costs(site, {b.energy_j}, {ranks * b.step_s})}.of(
      objective);
}

Bound figures_of(const Simulation& s) {
  return {s.step_s, s.energy.computers().value, static_cast<double>(s.memory.value)};
}
bool no_worse(const Bound& a, const Bound& b) {
  return a.step_s <= b.step_s && a.energy_j <= b.energy_j && a.memory_bytes <= b.memory_bytes;
}

struct Bounded {
  Bound bound;
  double figure = 0.0;  // bound of the objective
  const Candidate* candidate = nullptr;
  std::size_t main = 0;  // number of the candidate of which this is a variant, or its own
  bool taken = false;    // a program was built
};

using Progress = std::function<void(double share, const std::string& doing)>;

// The time in which the streams of communication work and compute does not.
std::vector<double> exposed_of(const std::vector<program::Expanded>& ops, const program::Timeline& timeline) {
  std::vector<double> exposed;
  for (const program::Stream stream : program::kCommStreams)
    exposed.push_back(program::exposed_seconds(ops, timeline, stream));
  return exposed;
}

OpSeconds op_seconds_of(const sim::Forecast& step, std::size_t stage) {
  // A body's op has one kind, which its many instances share. Ops are added in their order, so that the sums have the
  // same bits wherever the program is in memory.
  std::map<const program::Step*, std::size_t> known;
  std::vector<std::pair<const program::Step*, double>> seconds;
  step.each_op(stage, [&](const program::Expanded& op, const program::OpTime& time, std::int64_t times) {
    const auto [at, fresh] = known.emplace(op.step, seconds.size());
    if (fresh) seconds.emplace_back(op.step, 0.0);
    seconds[at->second].second += static_cast<double>(times) * time.seconds();
  });
  OpSeconds all;
  all.of_phase.resize(program::kNumPhases), all.of_stream.resize(program::kCommStreams.size());
  for (const auto& [op, worked] : seconds) {
    const std::string kind = program::kind_of(op->op);
    all.of_phase[static_cast<std::size_t>(op->phase)][kind] += worked;
    for (std::size_t i = 0; i < program::kCommStreams.size(); ++i)
      if (op->stream == program::kCommStreams[i]) all.of_stream[i][kind] += worked;
  }
  return all;
}

double cpu_seconds() {
  return 1e-9 * static_cast<double>(thread_cpu_ns());
}

// The programs that a search builds for each layout that it may simulate: many of them may not fit.
constexpr std::size_t kBuiltForEach = 10;

// One search.
class Search {
 public:
  Search(const arch::Architecture& arch, const program::Setting& base, int ranks, Objective objective,
         const LayoutLimits& limits, const sim::DescribedCosts& costs, const sim::Factors& factors,
         const std::optional<data::Attended>& attended)
      : arch_(arch),
        base_(base),
        ranks_(ranks),
        objective_(objective),
        limits_(limits),
        costs_(costs),
        factors_(factors),
        errors_(costs.cluster(), factors, costs.framework()),
        host_bytes_(costs.cluster().node.host_memory.value / costs.cluster().node.devices),
        attended_(attended) {
    MOLEN_CHECK(attended.has_value() == base.document_mask, "documents of the data are for a document mask, and it {}",
                base.document_mask ? "needs them" : "is not set");
  }

  // The search began at `begun`, before it found the layouts.
  SearchResult run(const std::vector<Candidate>& all, double begun, const Progress& progress) {
    result_.all = all.size();
    bound(all);
    const double bounded = cpu_seconds();
    result_.bounded_cpu_s = bounded - begun;
    const auto by_figure = [](const Bounded& a, const Bounded& b) { return a.figure < b.figure; };
    std::stable_sort(mains_.begin(), mains_.end(), by_figure);
    visit(mains_, limits_.simulated - limits_.simulated / 4, progress);
    // Variants of a layout have its bound, so the bound does not tell which of them are worth a simulation.
    std::stable_sort(variants_.begin(), variants_.end(), [&](const Bounded& a, const Bounded& b) {
      const double x = simulated_.at(a.main), y = simulated_.at(b.main);
      return x < y || (x == y && a.figure < b.figure);
    });
    visit(variants_, limits_.simulated, progress);
    visit(mains_, limits_.simulated, progress);
    result_.complete = true;
    leave(mains_), leave(variants_);
    result_.simulated_cpu_s = cpu_seconds() - bounded;
    return std::move(result_);
  }

 private:
  // Bounds all layouts, and keeps those that the limits do not exclude.
  void bound(const std::vector<Candidate>& all) {
    const Bounds bounds(arch_, base_, ranks_, costs_, factors_, attended_ ? attended_->mean : 1.0);
    const cluster::Site& site = costs_.cluster().site;
    std::size_t main = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Candidate& c = all[i];
      if (!c.variant) main = i;
      const Bound bound = bounds.of(c);
      if (bound.memory_bytes > static_cast<double>(most_for_a_plan(limits_, costs_.cluster().device).value))
        ++result_.too_large_kept;
      else if (too_long(bound.step_s) || too_much_energy(site_costs(site, {bound.energy_j}, {})))
        ++result_.beyond_run;
      else
        (c.variant ? variants_ : mains_).push_back({bound, figure_of(bound, ranks_, objective_, site), &c, main});
    }
    simulated_.assign(all.size(), std::numeric_limits<double>::infinity());
  }

  // Returns whether a layout cannot be better than the last of the best.
  bool is_excluded(const Bounded& layout) const {
    return result_.best.size() >= limits_.shown && layout.figure >= result_.best.back().of(objective_);
  }

  // Simulates the layouts of a list in its order, until `most` layouts of all lists are simulated.
  void visit(std::vector<Bounded>& list, std::size_t most, const Progress& progress) {
    for (Bounded& layout : list) {
      if (layout.taken || is_excluded(layout)) continue;
      const std::size_t built = result_.simulated + result_.too_large + result_.refused;
      if (result_.simulated >= most || built >= kBuiltForEach * most) return;
      const program::Setting s = setting_of(*layout.candidate, base_, ranks_);
      const auto all = static_cast<double>(limits_.simulated);
      if (progress)
        progress(
            std::max(static_cast<double>(result_.simulated) / all, static_cast<double>(built) / (kBuiltForEach * all)),
            name_with_variant(s));
      layout.taken = true;
      take(layout, s);
    }
  }

  // Builds the programs of all stages that fit, with the memory of the fullest. Returns nothing, and counts the layout,
  // where the builder refuses the combination of choices or a stage does not fit: no further stage is built then.
  std::optional<std::vector<program::Program>> build_what_fits(const program::Setting& s, Bytes& memory) {
    std::vector<program::Program> programs;
    bool fits = true;
    try {
      program::build_each_stage(arch_, s, nullptr, false, [&](program::Program p) {
        if (!program::fits(p, room_of(p))) return fits = false;
        const program::PlannedPeak peak = program::planned_peak(p);
        if (static_cast<double>(peak.host.value) > host_bytes_) return fits = false;
        memory = std::max(memory, peak.device);
        programs.push_back(std::move(p));
        return true;
      });
    } catch (const UsageError& error) {
      if (result_.refused++ == 0) result_.refusal = fmt::format("{}: {}", name_with_variant(s), error.what());
      return std::nullopt;
    }
    if (fits) return programs;
    ++result_.too_large;
    return std::nullopt;
  }

  // Returns the bytes of a device that the plan of a program may take.
  Bytes room_of(const program::Program& p) const {
    return limits_.memory ? *limits_.memory : memory_overheads(p).left_of(memory_of_device(costs_.cluster().device));
  }

  void take(const Bounded& layout, const program::Setting& s) {
    Bytes memory;
    auto programs = build_what_fits(s, memory);
    if (!programs) return;
    if (attended_) sim::attend_within_documents(*programs, attended_->mean, true);
    const sim::Forecast step(std::move(*programs), costs_);
    ++result_.simulated;
    consider(layout, s, step, memory);
  }

  // Takes a simulated layout among the best and into the front, if it belongs there.
  void consider(const Bounded& layout, const program::Setting& s, const sim::Forecast& step, Bytes memory) {
    const std::size_t busiest = step.busiest_stage();
    const double more = attended_ ? most_over_mean(*attended_, s) : 1.0;
    const double spread = sim::spread_of(step.errors(sim::DocumentErrors(errors_, costs_, more, true)));
    const sim::StepEnergy energy = step.energy(costs_.cluster(), factors_, spread);
    Simulation found{
        *layout.candidate,
        s,
        layout.bound,
        step.seconds(),
        spread,
        energy,
        site_costs(costs_.cluster().site, {energy.computers().value, energy.spread}, {ranks_ * step.seconds()}),
        memory,
        step.phases(busiest),
        step.sum([&](const auto& stages, const auto& timelines) {
          return exposed_of(stages.ops(busiest), timelines[busiest]);
        }),
        step.sum([&](const auto& stages, const auto& timelines) {
          return sim::where_joules(stages, timelines, costs_.cluster(), factors_);
        }),
        op_seconds_of(step, busiest)};
    simulated_.at(layout.main) = std::min(simulated_.at(layout.main), found.of(objective_));
    if (!within_limits(found)) return;
    add_to_front(found);
    const auto place =
        std::upper_bound(result_.best.begin(), result_.best.end(), found,
                         [&](const Simulation& a, const Simulation& b) { return a.of(objective_) < b.of(objective_); });
    result_.best.insert(place, std::move(found));
    if (result_.best.size() > limits_.shown) result_.best.pop_back();
  }

  // Counts the layouts that were not simulated: those that cannot be among the best, and those that may belong to the
  // front.
  void leave(const std::vector<Bounded>& list) {
    for (const Bounded& layout : list) {
      if (layout.taken) continue;
      if (is_excluded(layout))
        ++result_.excluded;
      else
        result_.complete = false;
      if (std::none_of(result_.front.begin(), result_.front.end(),
                       [&](const Simulation& on) { return no_worse(figures_of(on), layout.bound); }))
        ++result_.front_open;
    }
  }
  void add_to_front(const Simulation& found) {
    auto& front = result_.front;
    const Bound figures = figures_of(found);
    for (const Simulation& on : front)
      if (no_worse(figures_of(on), figures)) return;
    std::erase_if(front, [&](const Simulation& on) { return no_worse(figures, figures_of(on)); });
    front.insert(std::upper_bound(front.begin(), front.end(), found,
                                  [](const Simulation& a, const Simulation& b) { return a.step_s < b.step_s; }),
                 found);
  }
  bool too_long(double step_s) const { return limits_.run_s && step_s * limits_.run_steps > *limits_.run_s; }
  bool too_much_energy(const SiteCosts& step) const {
    return limits_.run_j && step.energy.value * limits_.run_steps > *limits_.run_j;
  }
  // Counts a layout that is not.
  bool within_limits(const Simulation& found) {
    const double nodes = std::ceil(static_cast<double>(ranks_) / costs_.cluster().node.devices);
    if (limits_.watts && found.energy.computers().value / found.step_s / nodes > *limits_.watts)
      return ++result_.too_much_power, false;
    if (too_long(found.step_s)) return ++result_.too_long, false;
    if (too_much_energy(found.site)) return ++result_.too_much_energy, false;
    return true;
  }

  const arch::Architecture& arch_;
  const program::Setting& base_;
  int ranks_;
  Objective objective_;
  const LayoutLimits& limits_;
  const sim::DescribedCosts& costs_;
  const sim::Factors& factors_;
  const sim::DescribedErrors errors_;
  const double host_bytes_;  // a rank's share of the host's memory
  const std::optional<data::Attended> attended_;
  std::vector<Bounded> mains_, variants_;  // that the limits do not exclude
  std::vector<double> simulated_;          // by candidate: least figure of the objective of it and its variants
  SearchResult result_;
};

}  // namespace

std::string_view name_of(Objective objective) {
  switch (objective) {
    case Objective::kTime:
      return "time";
    case Objective::kEnergy:
      return "energy";
    case Objective::kCost:
      return "cost";
    case Objective::kCo2:
      return "co2";
    case Objective::kMemory:
      return "memory";
  }
  throw Error("unknown objective");
}

Objective objective_from_name(const std::string& name) {
  std::vector<std::string> names;
  for (const Objective o : kObjectives) {
    if (name == name_of(o)) return o;
    names.emplace_back(name_of(o));
  }
  throw UsageError("--objective: '{}' is none of {}{}", name, fmt::join(names, ", "), did_you_mean(name, names));
}

void require_figure(Objective objective, const cluster::Cluster& cluster) {
  const cluster::Site& site = cluster.site;
  const auto require = [&](double value, std::string_view key) {
    if (!(value > 0.0))
      throw UsageError("--objective {}: {} of {} is {}, so all layouts would be equal; give the site's figure",
                       name_of(objective), key, cluster.name, value);
  };
  if (objective == Objective::kCost && !charges_devices(site)) require(site.price.value, "site.price_eur_per_kwh");
  if (objective == Objective::kCo2) require(site.intensity.value, "site.intensity_g_per_kwh");
}

double Simulation::of(Objective objective) const {
  return Figures{step_s, energy.computers().value, static_cast<double>(memory.value), site}.of(objective);
}

Bytes most_for_a_plan(const LayoutLimits& limits, const cluster::Device& device) {
  return limits.memory ? *limits.memory : memory_overheads(0).left_of(memory_of_device(device));
}

bool dominates(const Simulation& layout, const Bound& other) {
  return no_worse(figures_of(layout), other) && !no_worse(other, figures_of(layout));
}

SearchResult search(const arch::Architecture& arch, const program::Setting& base, int ranks, int local_ranks,
                    Objective objective, const LayoutLimits& limits, const sim::DescribedCosts& costs,
                    const sim::Factors& factors, const std::optional<data::Attended>& attended,
                    const std::function<void(double share, const std::string& doing)>& progress) {
  const double begun = cpu_seconds();
  return Search(arch, base, ranks, objective, limits, costs, factors, attended)
      .run(candidates_of(arch, base, ranks, local_ranks), begun, progress);
}

bool is_of_energy(Objective objective, const cluster::Site& site) {
  return objective == Objective::kEnergy || objective == Objective::kCo2 ||
         (objective == Objective::kCost && !charges_devices(site));
}

std::string Reason::text(bool joules_first) const {
  const std::string of_time = fmt::format("{}{}", seconds < 0.0 ? "" : "+", human(Seconds(seconds))),
                    of_energy = fmt::format("{:+.3g} kJ", joules / 1e3);
  const std::string of_op = op.empty() ? "" : fmt::format("; {} +{}", op, human(Seconds(op_seconds)));
  return fmt::format("{} {} ({}{})", name, joules_first ? of_energy : of_time, joules_first ? of_time : of_energy,
                     of_op);
}

namespace {

// Names the kind of op that works the most seconds longer in the loser than in the best layout, if these are at least a
// tenth of the reason's seconds. `at` is the phase or the stream.
void name_op(Reason& reason, const std::vector<std::map<std::string, double>>& loser,
             const std::vector<std::map<std::string, double>>& best, std::size_t at) {
  if (at >= loser.size() || at >= best.size()) return;
  for (const auto& [kind, seconds] : loser[at]) {
    const auto found = best[at].find(kind);
    const double more = seconds - (found == best[at].end() ? 0.0 : found->second);
    if (more > std::max(reason.op_seconds, 0.1 * std::abs(reason.seconds))) reason.op = kind, reason.op_seconds = more;
  }
}

}  // namespace

std::vector<Reason> reasons_beside(const Simulation& loser, const Simulation& best, bool of_energy) {
  std::vector<Reason> more;
  const auto a = loser.phases.values(), b = best.phases.values();
  const auto keys = program::phase_keys();
  for (std::size_t i = 0; i < a.size(); ++i) {
    more.push_back({keys[i], a[i] - b[i], loser.where.phase_j[i] - best.where.phase_j[i]});
    name_op(more.back(), loser.ops.of_phase, best.ops.of_phase, i);
  }
  for (std::size_t i = 0; i < program::kCommStreams.size(); ++i) {
    more.push_back({fmt::format("waiting for {}", name_of(program::kCommStreams[i])),
                    loser.exposed_s[i] - best.exposed_s[i], loser.where.exposed_j[i] - best.where.exposed_j[i]});
    name_op(more.back(), loser.ops.of_stream, best.ops.of_stream, i);
  }
  if (of_energy)
    more.push_back({"hosts", loser.step_s - best.step_s, loser.energy.hosts.value - best.energy.hosts.value});
  const auto figure = [&](const Reason& reason) { return of_energy ? reason.joules : reason.seconds; };
  std::stable_sort(more.begin(), more.end(), [&](const auto& x, const auto& y) { return figure(x) > figure(y); });
  const double least = 0.01 * (of_energy ? best.energy.computers().value : best.step_s);
  std::erase_if(more, [&](const Reason& reason) { return !(figure(reason) > least); });
  if (more.size() > 3) more.resize(3);
  return more;
}

}  // namespace molen::plan
