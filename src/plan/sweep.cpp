#include "plan/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/work_at_once.h"

namespace molen::plan {
namespace {

// Errors of a configuration name the option `--set`, by which a trial gets its values; the user gave `--grid`.
std::string as_grid_option(std::string text, const std::vector<GridAxis>& grid) {
  for (const GridAxis& axis : grid) {
    const std::string before = "--set " + axis.key;
    for (std::size_t at = 0; (at = text.find(before, at)) != std::string::npos;)
      text.replace(at, before.size(), "--grid " + axis.key);
  }
  return text;
}

TrialRow row_at(const SweepPlan& plan, std::int64_t index) {
  const auto sizes = static_cast<std::int64_t>(plan.sizes.size());
  TrialRow row;
  row.size = plan.sizes[static_cast<std::size_t>(index % sizes)];
  const auto point = point_at(plan.grid, index / sizes);
  for (std::size_t i = 0; i < plan.grid.size(); ++i) {
    row.point.push_back(plan.grid[i].texts[point[i]]);
    row.keys[plan.grid[i].key] = plan.grid[i].values[point[i]];
  }
  return row;
}

std::string model_name(const config::Config& config) {
  try {
    return resolve_architecture(config).name;
  } catch (const UsageError&) {  // the trial itself reports it
    return config.model.preset.value_or(config.model.family.value_or(""));
  }
}

// Fills what the configuration says of a row. Returns nothing, with the reason as the row's outcome, if the values of
// the trial contradict each other.
std::optional<config::Config> configuration_of(const SweepPlan& plan, const SweepCalls& calls, std::int64_t index,
                                               TrialRow& row) {
  try {
    config::Config config = calls.load(assignments_at(plan.grid, index / static_cast<std::int64_t>(plan.sizes.size())));
    if (plan.scaling == Scaling::kWeak) config = calls.load(assignments_of(plan, index, config.batch.global));
    row.global_batch = config.batch.global;
    row.model = model_name(config), row.framework = config.framework.kind;
    row.trial = identity_of_trial(plan, row.size, config);
    return config;
  } catch (const UsageError& error) {
    row.outcome.kind = Outcome::Kind::kRefused;
    row.outcome.why = as_grid_option(error.what(), plan.grid);
    row.trial = sha256_hex(
        Json{plan.measured, plan.conditions, row.size.nodes, row.size.ranks, row.keys, row.outcome.why}.dump());
    return std::nullopt;
  }
}

// `one_at_a_time`: what no two trials do at once. Configurations are loaded so, because the loading of a user's file
// need not be safe in several threads.
void run_trial(const SweepPlan& plan, const SweepCalls& calls, const std::map<std::string, TrialRow>& kept,
               std::int64_t index, TrialRow& row, std::mutex& one_at_a_time) {
  std::optional<config::Config> config;
  {
    const std::lock_guard lock(one_at_a_time);
    config = configuration_of(plan, calls, index, row);
    if (!config) return;
    if (const auto before = kept.find(row.trial); before != kept.end() && before->second.has_step()) {
      row.outcome = before->second.outcome, row.run = before->second.run, row.kept = true;
      return;
    }
    if (calls.begin) calls.begin(row, index);
  }
  try {
    row.outcome = calls.attempt(*config, row);
  } catch (const UsageError& error) {
    row.outcome.kind = Outcome::Kind::kRefused;
    row.outcome.why = error.what();
  }
  row.outcome.why = as_grid_option(row.outcome.why, plan.grid);
}

}  // namespace

std::vector<std::string> assignments_of(const SweepPlan& plan, std::int64_t index, std::int64_t batch) {
  const auto sizes = static_cast<std::int64_t>(plan.sizes.size());
  std::vector<std::string> sets = assignments_at(plan.grid, index / sizes);
  if (plan.scaling != Scaling::kWeak) return sets;
  const JobSize& size = plan.sizes[static_cast<std::size_t>(index % sizes)];
  sets.push_back(fmt::format("batch.global={}", weak_batch(batch, plan.sizes.front().amount(), size.amount())));
  return sets;
}

std::string identity_of_trial(const SweepPlan& plan, const JobSize& size, const config::Config& config) {
  Json values = config::to_json(config);
  values.erase("run");
  values.erase("checkpoint");
  return sha256_hex(Json{plan.measured, plan.conditions, size.nodes, size.ranks, values}.dump());
}

std::vector<TrialRow> run_sweep(const SweepPlan& plan, const SweepCalls& calls,
                                const std::map<std::string, TrialRow>& kept) {
  MOLEN_CHECK(!plan.sizes.empty(), "an experiment without a size");
  std::vector<TrialRow> rows(static_cast<std::size_t>(plan.trials()));
  std::mutex mutex;
  each_at_once(rows.size(), plan.concurrent, [&](std::size_t i) {
    const auto index = static_cast<std::int64_t>(i);
    rows[i] = row_at(plan, index);
    run_trial(plan, calls, kept, index, rows[i], mutex);
    if (const std::lock_guard lock(mutex); calls.end) calls.end(rows[i], index);
  });
  add_scaling(plan, rows);
  return rows;
}

void require_weak_batches(const SweepPlan& plan, std::int64_t batch) {
  if (plan.scaling != Scaling::kWeak) return;
  std::vector<std::int64_t> batches{batch};
  for (const GridAxis& axis : plan.grid) {
    if (axis.key != "batch.global") continue;
    batches.clear();
    for (const Json& value : axis.values) batches.push_back(value.get<std::int64_t>());
  }
  for (const std::int64_t each : batches)
    for (const JobSize& size : plan.sizes) weak_batch(each, plan.sizes.front().amount(), size.amount());
}

void add_scaling(const SweepPlan& plan, std::vector<TrialRow>& rows) {
  if (plan.scaling == Scaling::kNone) return;
  const auto rate = [](const TrialRow& row) {
    return static_cast<double>(row.outcome.figures.tokens) / row.outcome.figures.step_s;
  };
  for (std::size_t begin = 0; begin < rows.size(); begin += plan.sizes.size()) {
    const TrialRow* first = nullptr;
    for (std::size_t i = begin; i < std::min(begin + plan.sizes.size(), rows.size()); ++i) {
      TrialRow& row = rows[i];
      if (!row.has_step()) continue;
      if (first == nullptr) first = &row;
      row.ideal = static_cast<double>(row.size.amount()) / plan.sizes.front().amount();
      row.speed_up = rate(row) / rate(*first) * *first->ideal;
      row.efficiency = *row.speed_up / *row.ideal;
    }
  }
}

}  // namespace molen::plan
