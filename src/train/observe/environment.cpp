#include "train/observe/environment.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

#include "base/clock.h"
#include "base/host_name.h"
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

Json describe_owner() {
  // Compute nodes may know no names; the numbers are then as good as sacct's.
  const passwd* user = ::getpwuid(::geteuid());
  const group* members = ::getgrgid(::getegid());
  const auto of_slurm = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  return {{"host", host_name()},
          {"user", user ? user->pw_name : std::to_string(::geteuid())},
          {"group", members ? members->gr_name : std::to_string(::getegid())},
          {"slurm_job", of_slurm("SLURM_JOB_ID")},
          {"slurm_step", of_slurm("SLURM_STEP_ID")},
          {"slurm_account", of_slurm("SLURM_JOB_ACCOUNT")}};
}

}  // namespace molen::train
