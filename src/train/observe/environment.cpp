#include "train/observe/environment.h"

#include "base/clock.h"
#include "measure/machine.h"

namespace molen::train {

Json describe_environment(const Job& job) {
  Json j = measure::describe_machine();
  j["time"] = utc_timestamp(wall_time());
  j["ranks"] = job.machine.ranks;
  j["local_ranks"] = job.machine.local_ranks;
  j["threads_per_rank"] = job.setting.threads;
  j["communicator"] = job.communicator;
  j["device"] = job.machine.cuda ? "cuda" : "cpu";
  if (job.machine.cuda)
    if (const std::string name = measure::gpu_name(job.machine.device); !name.empty()) j["gpu"] = name;
  j["device_peak"] = measure::to_json(job.peak);
  j["tags"] = job.config.run.tags;
  return j;
}

}  // namespace molen::train
