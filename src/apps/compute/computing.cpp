#include "apps/computing.h"

#include <fmt/format.h>

#include <cstdlib>

#include "apps/compute/functions.h"
#include "base/processor.h"
#include "launch/world.h"
#include "measure/device_peak.h"
#include "measure/doctor.h"
#include "measure/machine.h"
#include "measure/rates.h"
#include "plan/measured_trial.h"

namespace molen::apps {
namespace {

std::string describe_this_machine() {
  const char* partition = std::getenv("SLURM_JOB_PARTITION");
  return fmt::format("{}, {}, partition {}, molen {}", cpu_model(), measure::gpu_name(0),
                     partition ? partition : "none", plan::version_in(measure::describe_machine()));
}

}  // namespace

const Computing& computing() {
  static constexpr Computing kComputing{
      .train = run_train,
      .calibrate = run_calibrate,
      .bench = run_bench,
      .doctor = measure::doctor,
      .verify = run_proof,
      .generate = run_generate,
      .eval_logits = run_eval_logits,
      .has_cuda = launch::has_cuda,
      .precision_rates = measure::precision_rates,
      .this_machine = describe_this_machine,
  };
  return kComputing;
}

}  // namespace molen::apps
