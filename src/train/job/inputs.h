// A run's inputs: its data, opened and checked, and its lengths converted to steps of that data. The loop starts from
// these; --dry-run stops after them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "data/dataset.h"
#include "optim/schedule.h"
#include "optim/update.h"
#include "train/trainer.h"

namespace molen::train {

// The files that a rank reads.
struct Inputs {
  // With `verify`, reads the shards and compares them with their manifests, unless this machine has done so before.
  // Throws UsageError that names the file and the remedy.
  Inputs(const Job& job, bool verify);
  data::Dataset train;
  std::vector<std::unique_ptr<data::ValidationSet>> validation;
  // Returns one line for each set of shards that was opened without hashing.
  std::vector<std::string> notes() const;

 private:
  Inputs(const Job& job, const data::OpenOptions& options);
};

// A period of steps, or of seconds.
struct Period {
  std::int64_t steps = 0;  // 0: the period is in seconds
  double seconds = 0.0;
  double last = now().value;
  bool due(std::int64_t step) const {
    return steps > 0 ? step % steps == 0 : seconds > 0 && now().value - last >= seconds;
  }
};

// [train], [schedule], [optimizer] and [checkpoint], converted to steps.
struct RunLength {
  std::int64_t total_steps = 0;  // train.until
  std::int64_t stop_step = 0;    // train.stop_after, at most total_steps
  double stop_seconds = 0.0;     // train.stop_after when it is a time; 0: none
  optim::Schedule schedule;
  optim::Options optimizer;
  Period save_every, validate_every;
};
// Returns the job's run_length. Throws UsageError when a key that needs steps is given in seconds.
RunLength run_length_of(const Job& job, const data::Dataset& data);

// Opens the job's inputs on every rank. Throws UsageError, the same on every rank, when they are not valid, or when
// they differ from what the continued checkpoint was trained on and the job does not allow that. Writes nothing.
// Collective.
std::unique_ptr<Inputs> open_inputs(const Job& job, comm::Communicator& world);

// Prints what a real start would find. Makes the same checks as a start and writes nothing. Collective.
void dry_run(const Job& job, comm::Communicator& world);

}  // namespace molen::train
