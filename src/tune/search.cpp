#include "tune/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/suggest.h"
#include "base/work_at_once.h"

namespace molen::tune {
namespace {

constexpr Objective kObjectives[] = {Objective::kThroughput, Objective::kTime, Objective::kEnergy, Objective::kLoss};

plan::Outcome outcome_of(const SearchPlan& plan, const Attempt& attempt, const Point& point, int number) {
  const auto choice = plan.space.choice(point, plan.base, plan.job);
  if (choice) return attempt(choice.value().config, choice.value().ranks, number);
  plan::Outcome refused;
  refused.kind = plan::Outcome::Kind::kRefused, refused.why = choice.reason();
  return refused;
}

// Runs the trials that have no outcome yet, `plan.concurrent` at a time.
void run_trials(const SearchPlan& plan, const SearchCalls& calls, const std::vector<Trial*>& missing) {
  std::mutex mutex;
  each_at_once(missing.size(), plan.concurrent, [&](std::size_t i) {
    Trial& trial = *missing[i];
    if (const std::lock_guard lock(mutex); calls.begin) calls.begin(trial.number, plan.space.text(trial.point));
    trial.outcome = outcome_of(plan, calls.attempt, trial.point, trial.number);
    if (const std::lock_guard lock(mutex); calls.end) calls.end(trial);
  });
}

// Returns the trials from `first` on, up to the end of its batch: those that are kept, and proposals in the other
// places.
std::vector<Trial> batch_from(int first, const SearchPlan& plan, const Optimizer& optimizer,
                              const std::map<int, Trial>& kept) {
  std::vector<Trial> batch;
  std::set<Point> known;
  int missing = 0;
  for (int number = first; number < first + plan.parallel; ++number) {
    const auto found = kept.find(number);
    if (found != kept.end()) known.insert(found->second.point);
    missing += found == kept.end() && number <= plan.trials;
  }
  const std::vector<Point> proposed = missing > 0 ? optimizer.propose(plan.parallel) : std::vector<Point>();
  std::size_t next = 0;
  for (int number = first; number < first + plan.parallel && number <= plan.trials; ++number) {
    if (const auto found = kept.find(number); found != kept.end()) {
      batch.push_back(found->second);
      continue;
    }
    while (next < proposed.size() && known.contains(proposed[next])) ++next;
    if (next < proposed.size()) batch.push_back({.number = number, .point = proposed[next++], .outcome = {}});
  }
  return batch;
}

}  // namespace

std::string_view name_of(Objective objective) {
  switch (objective) {
    case Objective::kThroughput:
      return "throughput";
    case Objective::kTime:
      return "time";
    case Objective::kEnergy:
      return "energy";
    case Objective::kLoss:
      return "loss";
  }
  return "";
}

Objective objective_from_name(const std::string& name) {
  std::vector<std::string> names;
  for (const Objective o : kObjectives) {
    if (name_of(o) == name) return o;
    names.emplace_back(name_of(o));
  }
  throw UsageError("--objective: unknown objective '{}'; known: {}{}", name, fmt::join(names, ", "),
                   did_you_mean(name, names));
}

double figure_of(Objective objective, const plan::StepFigures& f, double noise_scale) {
  const auto tokens = static_cast<double>(f.tokens);
  switch (objective) {
    case Objective::kThroughput:
      return f.tokens_per_s_per_device();
    case Objective::kTime:
      return f.step_s / tokens * 1e6;
    case Objective::kEnergy:
      if (!f.step_j) throw UsageError("--objective energy: the energy of a trial is not known; no meter measured it");
      return *f.step_j / tokens;
    case Objective::kLoss:
      MOLEN_CHECK(noise_scale > 0.0, "a time to a loss without a noise scale");
      return f.loss_time_s(noise_scale);
  }
  return 0.0;
}

std::string_view unit_of(Objective objective) {
  switch (objective) {
    case Objective::kThroughput:
      return "tokens/s per device";
    case Objective::kTime:
      return "s per million tokens";
    case Objective::kEnergy:
      return "J per token";
    case Objective::kLoss:
      return "s to the loss of a million tokens";
  }
  return "";
}

Observation observation_of(const Trial& trial, const SearchPlan& plan) {
  Observation o{trial.point, std::nullopt};
  const auto& [memory, room] = std::tie(trial.outcome.memory, trial.outcome.room);
  if (memory && room && *room > Bytes()) o.load = static_cast<double>(memory->value) / static_cast<double>(room->value);
  if (!trial.has_step()) return o;
  const double figure = figure_of(plan.objective, trial.outcome.figures, plan.noise_scale);
  o.value = more_is_better(plan.objective) ? figure : 1.0 / figure;
  return o;
}

std::vector<Trial> run_search(const SearchPlan& plan, const SearchCalls& calls, const std::map<int, Trial>& kept) {
  Optimizer optimizer(plan.space, plan.seed);
  std::vector<Trial> trials;
  for (int first = 1; first <= plan.trials; first += plan.parallel) {
    std::vector<Trial> batch = batch_from(first, plan, optimizer, kept);
    if (batch.empty()) break;
    std::vector<Trial*> missing;
    for (Trial& trial : batch)
      if (!trial.kept) missing.push_back(&trial);
    run_trials(plan, calls, missing);
    for (const Trial& trial : batch) optimizer.observe(observation_of(trial, plan));
    trials.insert(trials.end(), batch.begin(), batch.end());
  }
  return trials;
}

std::vector<Trial> ranked(const std::vector<Trial>& trials, Objective objective, double noise_scale) {
  std::vector<Trial> best;
  std::copy_if(trials.begin(), trials.end(), std::back_inserter(best), [](const Trial& t) { return t.has_step(); });
  std::stable_sort(best.begin(), best.end(), [&](const Trial& a, const Trial& b) {
    const double x = figure_of(objective, a.outcome.figures, noise_scale);
    const double y = figure_of(objective, b.outcome.figures, noise_scale);
    return more_is_better(objective) ? x > y : x < y;
  });
  return best;
}

}  // namespace molen::tune
