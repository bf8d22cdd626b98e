// molen <verb>: exit codes 0 ok, 1 failed, 2 usage or configuration error, 3 a training that its budget of energy or
// emissions ended; errors on stderr.
#include <exception>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/cli.h"
#include "base/console.h"
#include "base/error.h"
#include "comm/mpi/mpi.h"

namespace {

int run(int argc, char** argv) {
  using namespace molen::apps;
  CLI::App app{"molen: scalable, energy-aware pre-training of large language models"};
  app.set_version_flag("--version", std::string("molen " MOLEN_VERSION));
  app.require_subcommand(1);
  Chosen chosen;
  add_train_verbs(app, chosen);
  add_plan_verb(app, chosen);
  add_sweep_verb(app, chosen);
  add_tune_verb(app, chosen);
  add_verify_verb(app, chosen);
  add_model_verb(app, chosen);
  add_program_verbs(app, chosen);
  add_data_verbs(app, chosen);
  add_checkpoint_verb(app, chosen);
  add_inference_verbs(app, chosen);

  add_energy_verb(app, chosen);
  add_report_verb(app, chosen);
  add_runs_verb(app, chosen);
  add_config_verb(app, chosen);
  app.footer(unbuilt_note());
  const std::vector<std::string> words(argv + 1, argv + argc);
  require_verbs(app, words);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    throw molen::UsageError("{}", explain(app, words, error));
  }
  return chosen.action();
}

// Wrong input is wrong on every rank alike, so only rank 0 reports it. If the rank number itself is wrong, every rank
// reports.
bool says_so() {
  try {
    return molen::comm::launch_environment().rank == 0;
  } catch (const molen::UsageError&) {
    return true;
  }
}

// A file may exist on one host and not on another.
bool first_of_host() {
  return molen::comm::launch_environment().local_rank == 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const molen::MissingFileError& error) {
    if (says_so() || first_of_host()) molen::say(error.what());
    return molen::apps::kUsage;
  } catch (const molen::UsageError& error) {
    if (says_so()) molen::say(error.what());
    return molen::apps::kUsage;
  } catch (const std::exception& error) {
    molen::say(error.what());
    return molen::apps::kFailed;
  }
}
