// A trial of an experiment: one configuration, and the figures of its step on a described cluster or on a calibration.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cluster/cluster.h"
#include "config/config.h"
#include "plan/resolve.h"
#include "plan/step_prediction.h"

namespace molen::plan {

// Returns the machine of `ranks` ranks on a described cluster. The cluster decides what otherwise comes from the
// machine in use: the device, the ranks of a node (those of `ranks_per_node` if given), threads, and the precision that
// "auto" stands for. Throws UsageError for more ranks than the cluster or one of its nodes has devices, and for parts
// of nodes.
Machine machine_on(const cluster::Cluster& on, int ranks, std::optional<int> ranks_per_node = std::nullopt);

// The figures of one optimizer step.
struct StepFigures {
  double step_s = 0.0;
  double low_s = 0.0, high_s = 0.0;  // with a probability of 80 % the true step is between them
  std::int64_t tokens = 0;           // of all ranks
  int ranks = 1;
  // The share of the device's peak for the type of compute, with model FLOPs as FlopsConvention::kCausal; absent: no
  // peak is known
  std::optional<double> mfu;
  std::optional<double> step_j;  // energy of all ranks and their nodes, without the site; absent: not known
  std::string energy_coverage;   // the parts that a measured `step_j` leaves out: "gpu only"; empty: none
  std::string layout;            // plan::layout_of
  std::string extrapolated;      // the measurements of a calibration from which a prediction follows; empty: none
  // Returns the seconds until the loss is as low as after a million tokens in small batches, for a gradient noise scale
  // in tokens: a batch of B tokens takes 1 + B / noise_scale times as many (McCandlish et al. 2018, arXiv 1812.06162,
  // section 2.3).
  double loss_time_s(double noise_scale) const {
    const auto batch = static_cast<double>(tokens);
    return step_s / batch * 1e6 * (1.0 + batch / noise_scale);
  }
  double tokens_per_s_per_device() const { return static_cast<double>(tokens) / step_s / ranks; }
  // kWh of a step; absent: not known
  std::optional<double> kwh() const { return step_j ? std::optional(*step_j / 3.6e6) : std::nullopt; }
};

// Where and with what a trial was measured; empty texts: it was predicted, or it is not known.
struct TrialMachine {
  std::string cpu, device;  // models: "AMD EPYC 9654", "NVIDIA H100"; device "cpu" without one
  std::string molen;        // version
  bool operator==(const TrialMachine&) const = default;
};

// A trial has figures, or the reason why it has none. A trial that fails is an outcome like any other: a search learns
// from it.
struct Outcome {
  // kFailed: a measured trial ended early, for a reason that another try may not meet. kNotCalibrated: the calibration
  // lacks a measurement that the prediction needs.
  enum class Kind { kStep, kOutOfMemory, kRefused, kFailed, kNotCalibrated };
  Kind kind = Kind::kRefused;
  StepFigures figures;  // where `kind` is kStep
  // The plan of the fullest rank takes `memory` bytes of its device, which has `room` bytes for a plan. For a
  // framework, `memory` is all that it takes, and `room` is the whole device. Both are absent if they are not known.
  std::optional<Bytes> memory, room;
  std::string why;               // where `kind` is not kStep
  std::vector<std::string> log;  // the last lines that a measured trial wrote, where `kind` is not kStep
  TrialMachine machine;          // of a measured trial with a step
};

// The machine on which steps are predicted, as --cluster names it: the description of a cluster, or a calibration.
struct PredictedOn {
  std::string name;               // of the cluster; of a calibration its path as it was given
  std::string text;               // what the file says, for the identity of a trial
  std::string communicator = {};  // OnCalibration::communicator
  std::variant<cluster::Cluster, sim::Calibration> source;
  const cluster::Cluster* described() const { return std::get_if<cluster::Cluster>(&source); }
  const sim::Calibration* calibrated() const { return std::get_if<sim::Calibration>(&source); }
};

// Reads what --cluster and --communicator name. Throws UsageError for a file of another form, a name that molen does
// not have, a description that programs cannot be predicted on, and a communicator beside a description.
PredictedOn predicted_on(const std::string& cluster, const std::string& communicator = {});

// Throws UsageError when device.kind asks for devices that `on` does not have.
void require_device(const config::Config& config, const PredictedOn& on);

// Predicts a step of `config`, as `molen simulate` does. A layout that `molen train` would refuse, one whose plan
// exceeds the memory of a device, and one for which a calibration lacks a measurement are outcomes. A configuration
// that no layout can mend (an unknown preset) throws UsageError, and so do `machine_on` and `require_device`. A
// calibration says nothing of memory and energy.
Outcome predict(const config::Config& config, const PredictedOn& on, const Machine& machine);
Outcome predict(const config::Config& config, const cluster::Cluster& on, const Machine& machine);

}  // namespace molen::plan
