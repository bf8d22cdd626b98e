// molen bench
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "apps/compute/functions.h"
#include "base/available_memory.h"
#include "base/clock.h"
#include "base/json.h"
#include "comm/nccl/nccl.h"
#include "launch/require_memory.h"
#include "launch/world.h"
#include "measure/calibrate.h"
#include "measure/precision.h"
#include "plan/nearest.h"
#include "plan/resolve.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/provenance/provenance.h"

namespace molen::apps {
namespace {

// Seconds by kind of op: of its stream, and of computing (less when threads share cores or wait).
Json ops_of(const program::Program& p, const program::Timeline& timeline) {
  std::map<std::string, std::array<double, 2>> kinds;
  const auto ops = program::expand(p);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const program::Work& work : program::work_of(*ops[i].step, timeline.ops[i])) {
      auto& sums = kinds[work.kind];
      sums[0] += work.seconds;
      sums[1] += work.cpu_s;
    }
  }
  Json rows = Json::object();
  for (const auto& [kind, sums] : kinds) rows[kind] = {{"seconds", sums[0]}, {"computing_s", sums[1]}};
  return rows;
}

}  // namespace

// Runs steps on synthetic tokens, for bench/: the trainer alone, without data or records.
int run_bench(const ConfigOptions& options, int steps) {
  const double started = now().value;
  config::Config c = load_config(options);
  const auto launch = launch::resolve_launch(c, options.ranks);
  const plan::Machine& machine = launch.machine;
  const int device = machine.cuda ? machine.device : -1;
  launch::run_ranks(launch, [&](comm::Communicator& world) {
    config::Config mine = c;
    const auto a = plan::resolve_architecture(mine);
    const auto setting = program::at_rank(plan::resolve_setting(mine, a, machine), world.rank());
    const auto schedule = plan::read_schedule(mine);
    const auto p = program::build(a, setting, schedule ? &*schedule : nullptr);
    program::require_sound(p, "the built program");
    const auto plan = program::plan_memory(p);
    launch::require_memory(
        {{plan.peak, plan.host},
         "the step program",
         1,
         [&](const plan::MemoryRoom& room) { return plan::nearest_text(a, setting, machine.local_ranks, room); }},
        machine, world);
    const double ready = now().value;
    const auto devices = launch.communicator == "nccl" ? comm::open_nccl(world, device) : nullptr;
    auto run = measure::run_synthetic(p, devices ? *devices : world, steps, device);
    auto& timelines = run.timelines;
    if (world.rank() != 0) return;
    std::sort(timelines.begin(), timelines.end(), [](const auto& x, const auto& y) { return x.total_s < y.total_s; });
    const double median = timelines[timelines.size() / 2].total_s;
    const double flops = arch::model_flops(a, p.setting.global_batch * p.setting.sequence, p.setting.sequence,
                                           arch::FlopsConvention::kCausal)
                             .value;
    const auto rates = measure::measure_precision(p.setting.threads, device);
    Json by_phase;
    const auto phases = program::phase_seconds(p.setting, program::expand(p), timelines[timelines.size() / 2]).values();
    const auto keys = program::phase_keys();
    for (std::size_t i = 0; i < keys.size(); ++i) by_phase[keys[i]] = phases[i];
    fmt::print("{}\n", Json{{"median_s", median},
                            {"min_s", timelines.front().total_s},
                            {"max_s", timelines.back().total_s},
                            {"gflops", flops / median * 1e-9},
                            {"flops_formula", name_of(arch::FlopsConvention::kCausal)},
                            {"device", machine.cuda ? "cuda" : "cpu"},
                            {"precision", name_of(p.setting.compute)},
                            {"gemm_gflops", rates.fp32},
                            {"gemm_bf16_gflops", rates.bf16},
                            {"peak_rss_bytes", peak_resident().value},
                            {"arena_bytes", plan.peak.value},
                            {"arena_touched_bytes", run.touched ? Json(run.touched->value) : Json()},
                            {"device_peak_bytes", run.device_peak ? Json(run.device_peak->value) : Json()},
                            {"startup_s", ready - started},
                            // On the monotonic clock, so that the time to load the program can be derived too.
                            {"ready_at_s", ready},
                            {"first_step_at_s", run.first_step_end_s},
                            {"phase_s", by_phase},
                            {"ops", ops_of(p, timelines[timelines.size() / 2])}}
                           .dump());
  });
  return kOk;
}

}  // namespace molen::apps
