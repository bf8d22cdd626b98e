// Compares prediction and measurement at the end of a run: the programs of all stages, simulated with the measurements
// of `molen calibrate` or with the description of a cluster, beside the median of the last steps. A run never fails
// because there is no prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/communicator.h"
#include "data/dataset.h"
#include "exec/executor.h"
#include "launch/waiting.h"
#include "program/ir/comparison.h"
#include "program/ir/stages.h"
#include "train/trainer.h"

namespace molen::train {

struct Prediction {
  // By stage of the pipeline: the comparison of the stage's first rank, or why there is none. The first stage has one.
  std::vector<Result<program::Comparison>> stages;
  std::string extrapolated;  // the measurements that the costs are derived from if these conditions were not measured
                             // Predicted energy of a step: of all devices, and of all devices and hosts. Descriptions
                             // of clusters give it.
  std::optional<double> devices_j, step_j;
};

class Predicted {
 public:
  static constexpr std::size_t kKept = 51;  // the last steps, of which the median one is compared

  // `data` is what the run trains on: a document mask leaves less of attention's work, by its documents.
  Predicted(const Job& job, const exec::Executor& executor, const data::Dataset& data, comm::Communicator& world)
      : job_(job), executor_(executor), data_(data), world_(world) {}

  // Adds a step. Every rank must add the same steps.
  void add(const program::Timeline& timeline);

  // The joules of a step by the description of a cluster, before any step has run.
  struct StepJoules {
    double devices = 0.0, computers = 0.0;  // of all devices; of all devices and hosts
  };
  // Returns why there is none where --cluster names a calibration, which knows no joules, or where the simulation
  // fails.
  Result<StepJoules> joules_of_step() const;

  // Returns the prediction, or why there is none. Collective; only rank 0's result is meaningful.
  Result<Prediction> compare();

 private:
  program::Timeline median_step();
  // `more`: as simulated() takes it.
  program::Stages stages_as_trained(double& more) const;
  Json first_rank_of_stage(program::Timeline measured, const launch::ShortestDurations& durations) const;
  // `more`: what sim::DocumentErrors takes.
  Json simulated(const program::Stages& stages, std::size_t stage, const program::Timeline& measured,
                 double more) const;

  const Job& job_;
  const exec::Executor& executor_;
  const data::Dataset& data_;
  comm::Communicator& world_;
  std::vector<program::Timeline> timelines_;  // of the last steps
};

}  // namespace molen::train
