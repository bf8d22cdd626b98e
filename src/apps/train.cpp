// molen train, bench, doctor
#include <fmt/format.h>

#include "apps/cli.h"
#include "apps/computing.h"

namespace molen::apps {
namespace {

void add_bench(CLI::App& app, Chosen& chosen) {
  CLI::App* verb =
      app.add_subcommand("bench", of_computing("times training steps on synthetic tokens, on the device of "
                                               "device.kind; one JSON line (`make bench` compares with peers)"));
  auto options = add_config_options(*verb);
  auto steps = std::make_shared<int>(7);
  verb->add_option("--steps", *steps, "timed steps after one warm-up")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->callback([&chosen, options, steps] { chosen.action = [=] { return computing().bench(*options, *steps); }; });
}

void add_train(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand(
      "train", of_computing("trains; under mpirun, srun, with --ranks threads, or alone; exits with 3 "
                            "where energy.energy_budget or energy.co2_budget has ended the run"));
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
      return computing().train(*options, *o);
    };
  });
}

void add_doctor(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("doctor", of_computing("what this machine can and cannot do, and why"));
  auto format = add_format_option(*verb);
  auto measure = std::make_shared<bool>(false);
  verb->add_flag(
      "--measure", *measure,
      "measures the GEMM rates again and drops the stored ones (for \"auto\" precision and the peak of MFU)");
  verb->callback(
      [&chosen, format, measure] { chosen.action = [=] { return computing().doctor(*format == "json", *measure); }; });
}

}  // namespace

void add_train_verbs(CLI::App& app, Chosen& chosen) {
  add_train(app, chosen);
  add_calibrate_verb(app, chosen);
  add_bench(app, chosen);
  add_doctor(app, chosen);
  add_simulate_verb(app, chosen);
}

}  // namespace molen::apps
