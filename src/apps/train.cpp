// molen train, bench, doctor
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "apps/cli.h"
#include "base/available_memory.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "cluster/cluster.h"
#include "comm/mpi/mpi.h"
#include "comm/nccl/nccl.h"
#include "plan/complete.h"
#include "plan/nearest.h"
#include "plan/resolve.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/parts/part.h"
#include "program/provenance/provenance.h"
#include "sim/calibration.h"
#ifdef MOLEN_HAS_TORCH
#include "launch/require_memory.h"
#include "launch/throw_on_all_ranks.h"
#include "launch/world.h"
#include "measure/calibrate.h"
#include "measure/doctor.h"
#include "measure/precision.h"
#include "train/trainer.h"
#endif

namespace molen::apps {
namespace {

#ifdef MOLEN_HAS_TORCH

void require_predicts(const std::string& file, bool cuda) {
  if (sim::is_calibration(file)) {
    sim::read_calibration(file);
    return;
  }
  const auto on = cluster::find(file);
  if (!cuda)
    throw UsageError(
        "--cluster: {} describes {} devices, and this run is on processors; `molen calibrate` measures them", on.name,
        on.device.name);
}

int run_train(const ConfigOptions& options, const train::TrainOptions& train_options) {
  // With several processes, only the first looks for the files, once it can tell the others its result.
  const bool alone = comm::launch_environment().size <= 1;
  config::Config c = load_config(options, alone ? plan::require_training : config::Completion());
  const auto launch = launch::resolve_launch(c, options.ranks);
  launch::run_ranks(launch, [&](comm::Communicator& world) {
    // A calibration or description that cannot predict this run is refused now, not at the end of the run.
    launch::throw_on_all_ranks(world, [&] {
      if (world.rank() == 0 && train_options.cluster) require_predicts(*train_options.cluster, launch.machine.cuda);
    });
    train::train(c, launch.machine, launch.communicator, train_options, world);
  });
  return kOk;
}

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

void add_bench(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("bench",
                                      "times training steps on synthetic tokens, on the device of device.kind; one "
                                      "JSON line (`make bench` compares with peers)");
  auto options = add_config_options(*verb);
  auto steps = std::make_shared<int>(7);
  verb->add_option("--steps", *steps, "timed steps after one warm-up")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->callback([&chosen, options, steps] { chosen.action = [=] { return run_bench(*options, *steps); }; });
}

void add_train(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("train", "trains; under mpirun, srun, with --ranks threads, or alone");
  auto options = add_config_options(*verb);
  auto o = std::make_shared<train::TrainOptions>();
  auto program = std::make_shared<std::string>(), cluster = std::make_shared<std::string>();
  verb->add_option(
          "--resume", o->resume,
          "auto (continue from the newest checkpoint, if there is one), never (begin anew), or the step of a "
          "checkpoint to continue from; never sets all checkpoints and records aside, and a step sets the later "
          "ones aside, under names that end in .abandoned-N")
      ->capture_default_str();
  verb->add_option("--allow-change", o->allow_change,
                   "a key that may differ from the checkpoint's run; may be repeated")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  verb->add_option("--program", *program,
                   "a step program in text form (from `molen program`) to run instead of the built one; for a "
                   "pipeline, a folder with program.txt, program-stage-1.txt ..., such as a run directory");
  verb->add_option(
      "--cluster", *cluster,
      "file that `molen calibrate` wrote or, on devices, the description of a cluster (as for `molen simulate`); the "
      "run's report then shows predicted beside measured times");
  auto mfu = add_mfu_option(*verb);
  verb->add_flag("--verbose", o->verbose,
                 "on a terminal, where one line is rewritten: a full line every step, as in a log");
  verb->add_flag("--save-initial", o->save_initial, "saves a checkpoint of step 0 too");
  verb->add_flag("--dry-run", o->dry_run,
                 "builds and verifies, opens and checks the data, prints what would run, writes nothing");
  verb->callback([&chosen, options, o, program, cluster, mfu] {
    chosen.action = [=] {
      if (!program->empty()) o->program_file = *program;
      if (!cluster->empty()) o->cluster = *cluster;
      o->mfu = arch::flops_convention_from_name(*mfu);
      return run_train(*options, *o);
    };
  });
}

void add_doctor(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("doctor", "what this machine can and cannot do, and why");
  auto format = add_format_option(*verb);
  auto measure = std::make_shared<bool>(false);
  verb->add_flag(
      "--measure", *measure,
      "measures the GEMM rates again and drops the stored ones (for \"auto\" precision and the peak of MFU)");
  verb->callback(
      [&chosen, format, measure] { chosen.action = [=] { return measure::doctor(*format == "json", *measure); }; });
}
#endif

}  // namespace

void add_train_verbs(CLI::App& app, Chosen& chosen) {
#ifdef MOLEN_HAS_TORCH
  add_train(app, chosen);
  add_calibrate_verb(app, chosen);
  add_bench(app, chosen);
  add_doctor(app, chosen);
#else
  for (const char* name : {"train", "calibrate", "bench", "doctor"}) {
    CLI::App* verb = app.add_subcommand(name, "needs libtorch, which this build lacks");
    verb->allow_extras();
    verb->callback([&chosen] {
      chosen.action = []() -> int { throw UsageError("this build has no libtorch: run `make setup build`"); };
    });
  }
#endif
  add_simulate_verb(app, chosen);
}

}  // namespace molen::apps
