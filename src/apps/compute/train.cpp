// molen train
#include <atomic>

#include "apps/cli.h"
#include "apps/compute/functions.h"
#include "base/error.h"
#include "cluster/cluster.h"
#include "comm/mpi/mpi.h"
#include "launch/throw_on_all_ranks.h"
#include "launch/world.h"
#include "plan/complete.h"
#include "sim/calibration.h"
#include "train/trainer.h"

namespace molen::apps {
namespace {

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

}  // namespace

int run_train(const ConfigOptions& options, const train::TrainOptions& train_options) {
  // With several processes, only the first looks for the files, once it can tell the others its result.
  const bool alone = comm::launch_environment().size <= 1;
  config::Config c = load_config(options, alone ? plan::require_training : config::Completion());
  const auto launch = launch::resolve_launch(c, options.ranks);
  std::atomic<bool> by_budget = false;
  launch::run_ranks(launch, [&](comm::Communicator& world) {
    // A calibration or description that cannot predict this run is refused now, not at the end of the run.
    launch::throw_on_all_ranks(world, [&] {
      if (world.rank() == 0 && train_options.cluster) require_predicts(*train_options.cluster, launch.machine.cuda);
    });
    const auto ended = train::train(c, launch.machine, launch.communicator, train_options, world);
    if (ended == train::Ended::kByBudget) by_budget = true;
  });
  return by_budget ? kBudgetUsed : kOk;
}

}  // namespace molen::apps
