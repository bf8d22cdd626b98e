// Joules of the parts of a machine that no meter reads, estimated from their utilisation. These are never added to
// joules that were measured: they have an object, fields and sums of their own.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "energy/machine.h"
#include "energy/meter.h"
#include "energy/nvml/nvml.h"
#include "energy/power_figures.h"

namespace molen::energy {

// Estimates the joules of one part. Joules are known until the last end of a window, of at least kModelWindow: the
// utilisation of a shorter time would be one of a few ticks of the kernel's clock.
inline constexpr double kModelWindowS = 0.1;

class ModelledPart {
 public:
  ModelledPart(PartFigures figures, double share) : figures_(std::move(figures)), share_(share) {}
  virtual ~ModelledPart() = default;
  ModelledPart(const ModelledPart&) = delete;
  ModelledPart& operator=(const ModelledPart&) = delete;

  const PartFigures& figures() const { return figures_; }
  double share() const { return share_; }  // of the part that the estimate is of
  bool counted = true;                     // part of the sum over modelled scopes
  // Returns the joules since this object was made; they never fall. A failure says why they cannot be told now.
  Result<Estimate> read(double time_s);

 protected:
  struct Busy {
    double utilisation = 0;  // mean, 0 to 1
    bool known = true;       // false: it was not followed all the time, so the power may have been any of the curve
  };
  // Returns the utilisation since the last call that returned one; nothing if it is too early to tell.
  virtual Result<std::optional<Busy>> busy(double time_s) = 0;

 private:
  PartFigures figures_;
  double share_;
  std::optional<double> until_s_;
  Estimate joules_;
};

// The utilisation of these processors. The estimate is of their share of the `all` processors of the machine: what the
// part would take if all were as busy, times the share. Throws Error if their times cannot be read.
std::unique_ptr<ModelledPart> model_by_cpus(PartFigures figures, const Machine& machine, const std::vector<int>& cpus,
                                            int all);

// The estimated joules of a time, by scope. A scope has no value if no window ended in that time, or if the
// utilisation cannot be read.
struct Modelled {
  std::map<std::string, std::optional<Estimate>> scopes;
  std::map<std::string, std::string> reasons;  // of scopes without a value
};

struct ModelOptions {
  Machine machine;
  NvmlOptions nvml;
  std::optional<std::string> cpus;   // the processors that the job may use, as "0-3,8"; absent: those of this process
  double read_every_s = 0.0;         // by a thread; 0: no thread, the caller reads
  std::string key = "energy.model";  // the user's words for the model, in errors
};

class PowerModel {
 public:
  // Models the parts for which there are figures, but for those that a meter of `measured` reads or shares a part with.
  // Throws UsageError if the figures are those of another processor.
  PowerModel(const PowerFigures& figures, const Meters& measured, const ModelOptions& options);
  ~PowerModel();
  PowerModel(const PowerModel&) = delete;
  PowerModel& operator=(const PowerModel&) = delete;

  void begin_step();
  Modelled end_step();  // since begin_step, or the last end_step
  Modelled so_far();    // since this object was made; scopes without joules so far have nothing

  const std::vector<std::unique_ptr<ModelledPart>>& parts() const { return parts_; }
  const std::vector<Unavailable>& unavailable() const { return unavailable_; }

 private:
  void add(std::unique_ptr<ModelledPart> part) { parts_.push_back(std::move(part)); }
  void add_by_cpus(const PowerFigures& figures, const Meters& measured, const ModelOptions& options);
  void add_gpus(const PowerFigures& figures, const Meters& measured, const ModelOptions& options);
  void choose_counted();
  std::vector<Result<Estimate>> read_all();
  Modelled between(const std::vector<Estimate>& from);

  Machine machine_;
  std::vector<std::unique_ptr<ModelledPart>> parts_;
  std::vector<Unavailable> unavailable_;
  std::mutex mutex_;
  std::vector<Estimate> begin_;  // by part
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread reader_;
};

// Returns the model that `figures` give on this machine; null where the meters read all parts of it. `gpus`: as in
// coverage_of. Throws UsageError that names the key where a part is not measured and no figures model any part.
std::unique_ptr<PowerModel> open_model(const PowerFigures& figures, const Meters& measured, bool gpus,
                                       const ModelOptions& options);

}  // namespace molen::energy
