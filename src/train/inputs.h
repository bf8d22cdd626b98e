// What a run reads and how far it goes: its data, opened and checked, and the steps that its configuration means with
// that data. The loop starts from it; --dry-run stops behind it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "data/dataset.h"
#include "optim/adamw.h"
#include "optim/schedule.h"
#include "train/trainer.h"

namespace molen::train {

// The files a rank reads. Throws UsageError that names file and remedy.
struct Inputs {
  // `verify`: reads the shards and compares them with their manifests, unless this machine has done so before.
  Inputs(const Job& job, bool verify);
  data::Dataset train;
  std::vector<std::unique_ptr<data::ValidationSet>> validation;
  // One line for each set of shards that opening did not hash.
  std::vector<std::string> notes() const;

 private:
  Inputs(const Job& job, const data::OpenOptions& options);
};

// A period of steps, or of seconds.
struct Period {
  std::int64_t steps = 0;  // 0: by time
  double seconds = 0.0;
  double last = now().value;
  bool due(std::int64_t step) const {
    return steps > 0 ? step % steps == 0 : seconds > 0 && now().value - last >= seconds;
  }
};

// [train], [schedule], [optimizer] and [checkpoint] in steps.
struct Course {
  std::int64_t total_steps = 0;  // train.until
  std::int64_t stop_step = 0;    // train.stop_after, at most total_steps
  double stop_seconds = 0.0;     // train.stop_after given as a time; 0: none
  optim::Schedule schedule;
  optim::AdamW optimizer;
  Period save_every, validate_every;
};
// Throws UsageError where a key needs steps and says seconds.
Course course_of(const Job& job, const data::Dataset& data);

// The job's inputs on every rank; throws UsageError, the same on every rank, where they are not sound, or not what the
// checkpoint that it continues was trained on and the job does not allow it. Writes nothing. Collective.
std::unique_ptr<Inputs> open_inputs(const Job& job, comm::Communicator& world);

// What the real start would find, for people; everything is checked as there and nothing is written. Collective.
void dry_run(const Job& job, comm::Communicator& world);

}  // namespace molen::train
