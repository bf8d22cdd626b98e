#include "plan/runs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace molen::plan {
namespace {

constexpr double kMostBytes = 9e18;  // below the largest 64-bit integer

// Returns `value` if it is a finite number of at least zero, which JSON and every reader of the line can hold.
double checked_figure(const Run& run, const char* name, double value) {
  if (!std::isfinite(value) || value < 0.0)
    throw Error("{}: the prediction of run {} is {}, which is no quantity", name, run.id, value);
  return value;
}

double positive_figure(const Run& run, const char* name, double value) {
  if (checked_figure(run, name, value) == 0.0) throw Error("{}: the prediction of run {} is 0", name, run.id);
  return value;
}

std::int64_t bytes_figure(const Run& run, const char* name, double value) {
  if (checked_figure(run, name, value) > kMostBytes)
    throw Error("{}: the prediction of run {} is {} bytes, which is no quantity", name, run.id, value);
  return std::llround(value);
}

}  // namespace

Json to_json(const Run& run, const RunPrediction& p) {
  const double step_s = positive_figure(run, "step_s", p.step_s);
  for (const auto& [source, error] : p.errors) checked_figure(run, "step_errors", error);
  const auto [low, high] = sim::ends_of(step_s, sim::spread_of(p.errors));
  // Where the run fits, no buffer is larger than the device.
  const double most = p.fits ? p.device_bytes : kMostBytes;
  const auto ends = [&](double bytes) {
    const auto [least, largest] = sim::ends_of(bytes, p.memory_spread);
    return std::pair(least, std::max(bytes, std::min(largest, most)));
  };
  const auto memory = ends(checked_figure(run, "memory_bytes_per_gpu", p.memory_bytes)),
             allocator = ends(checked_figure(run, "memory_allocator_bytes_per_gpu", p.allocator_bytes));
  const double gpu_seconds = step_s * run.gpus;
  const double tokens = static_cast<double>(run.global_batch) * static_cast<double>(run.sequence);
  Json exposed = Json::object();
  for (const auto& [axis, seconds] : p.exposed_s) exposed[axis] = checked_figure(run, "exposed_comm_s", seconds);
  Json kinds = Json::object();
  for (const auto& [kind, seconds] : p.kinds_s) kinds[kind] = checked_figure(run, "kinds_s", seconds);
  auto assumed = run.assumed;
  for (const auto& [column, value] : p.chosen) assumed.insert_or_assign(column, value);
  return {
      {"run_id", run.id},
      {"step_s", step_s},
      {"step_s_low", positive_figure(run, "step_s_low", low)},
      {"step_s_high", checked_figure(run, "step_s_high", high)},
      {"step_errors", p.errors},
      {"tokens_per_s_per_gpu", positive_figure(run, "tokens_per_s_per_gpu", tokens / gpu_seconds)},
      {"tflops_per_gpu", positive_figure(run, "tflops_per_gpu", p.model_flops / gpu_seconds / 1e12)},
      {"memory_bytes_per_gpu", bytes_figure(run, "memory_bytes_per_gpu", p.memory_bytes)},
      {"memory_bytes_per_gpu_low", bytes_figure(run, "memory_bytes_per_gpu_low", memory.first)},
      {"memory_bytes_per_gpu_high", bytes_figure(run, "memory_bytes_per_gpu_high", memory.second)},
      {"memory_allocator_bytes_per_gpu", bytes_figure(run, "memory_allocator_bytes_per_gpu", p.allocator_bytes)},
      {"memory_allocator_bytes_per_gpu_low", bytes_figure(run, "memory_allocator_bytes_per_gpu_low", allocator.first)},
      {"memory_allocator_bytes_per_gpu_high",
       bytes_figure(run, "memory_allocator_bytes_per_gpu_high", allocator.second)},
      {"fits", p.fits},
      {"bubble_s", checked_figure(run, "bubble_s", p.bubble_s)},
      {"exposed_comm_s", exposed},
      {"kinds_s", kinds},
      {"assumed", assumed.empty() ? Json::object() : Json(assumed)}};
}

Json to_json(const std::string& id, const std::string& error) {
  return {{"run_id", id}, {"error", error}};
}

}  // namespace molen::plan
