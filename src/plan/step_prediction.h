// The predicted step of one configuration, on the description of a cluster or on a calibration. The figures of
// `molen simulate`, and those of the trials of `molen sweep` and `molen tune`, come from here.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "base/result.h"
#include "cluster/cluster.h"
#include "config/config.h"
#include "data/attended.h"
#include "plan/framework.h"
#include "plan/framework_memory.h"
#include "plan/resolve.h"
#include "sim/calibration.h"
#include "sim/costs.h"
#include "sim/forecast.h"
#include "sim/intervals.h"

namespace molen::plan {

// Things that take longer, and that not every prediction needs.
struct StepDetail {
  bool verified = false;   // the verifier follows the programs before they are priced
  bool documents = false;  // with data.document_mask, also the seconds for the shares of data::interval_of
  bool every_op = false;   // a Timeline of every op, not only sums over it
  int threads = 1;         // that build the programs, and verify them
};

// The programs of all stages of a configuration, before they are priced.
struct StepPrograms {
  config::Config config;  // resolved
  arch::Architecture arch;
  program::Setting setting;
  Machine machine;
  std::optional<FrameworkSetting> framework;  // whose step it is; nullopt: molen's
  std::vector<program::Program> stages;       // attention within documents has the FLOPs of its mean share
  std::optional<data::Attended> attended;  // with data.document_mask: what the documents of the data leave of attention
  // With StepDetail::documents: the stages with the FLOPs of the smaller and of the larger share.
  std::vector<std::vector<program::Program>> less_and_more;
};

// Throws UsageError for a configuration that `molen train` would refuse on the ranks of `machine`.
StepPrograms step_programs(config::Config config, const Machine& machine, const StepDetail& detail = {});

// Attention within documents: what they leave of it, and the seconds of a step for the shares of data::interval_of.
struct AttendedStep {
  data::Attended share;
  double low_s = 0.0, high_s = 0.0;
};

struct StepPrediction {
  config::Config config;  // resolved
  arch::Architecture arch;
  program::Setting setting;
  std::shared_ptr<const sim::Costs> costs;
  std::shared_ptr<const sim::OpErrors> of_costs;  // the errors of the costs alone
  std::shared_ptr<const sim::OpErrors> of_ops;    // those, and the errors of the documents
  sim::Forecast step;
  sim::Errors errors;  // of the step
  std::optional<AttendedStep> attended = std::nullopt;
  std::string extrapolated = {};  // the measurements from which the costs follow, if these conditions were not measured
  std::optional<sim::StepEnergy> energy = std::nullopt;  // on a description
  std::vector<FrameworkMemory> framework_memory = {};    // of each stage, where it is the step of a framework
  double spread() const { return sim::spread_of(errors); }
  std::pair<double, double> interval() const { return sim::ends_of(step.seconds(), spread()); }
};

// Returns the memory that the framework needs on the fullest device of a described cluster; nullopt: it is molen
// itself, whose memory is the plan of its programs.
std::optional<FrameworkMemory> framework_memory(const StepPrograms& programs, const cluster::Cluster& on);

// Predicts a step on a described cluster. Throws UsageError for an op that the description cannot price.
StepPrediction predict_step(StepPrograms programs, const cluster::Cluster& on, const StepDetail& detail = {});

// Throws UsageError when device.kind asks for cuda devices, which no calibration is of.
void require_calibrated_device(const config::Config& config);

// A calibration, and which of its measurements are wanted.
struct OnCalibration {
  const sim::Calibration& calibration;
  std::string name;               // of its file
  std::string communicator = {};  // empty: "self" for one rank, "threads" on one node, "mpi" on several
};

// Predicts a step on a calibration. `machine` has `measure_precision` only if the calibration is of this machine. An
// open precision ("auto") is then the one that a run here would take; otherwise, or if the calibration does not have
// that one, it is the calibrated type that is predicted to be fastest. Returns a failure when the calibration lacks a
// measurement: it names what is missing and the call that measures it. Throws UsageError for a configuration that
// `molen train` would refuse, and for cuda devices.
Result<StepPrediction> predict_step(const config::Config& config, Machine machine, const OnCalibration& on,
                                    const StepDetail& detail = {});

}  // namespace molen::plan
