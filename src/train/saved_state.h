// A run's state on disk: who may write it, what a start loads of it, and its saves.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "comm/communicator.h"
#include "exec/executor.h"
#include "train/ownership.h"
#include "train/trainer.h"

namespace molen::train {

class SavedState {
 public:
  // All of these must outlive it; `ownership` is rank 0's.
  SavedState(Job& job, exec::Executor& executor, comm::Communicator& world, Ownership& ownership);

  // Takes the directories, and fills the executor from the job's checkpoint, or with initial parameters. False, on all
  // ranks, where the job has to be prepared again: its name was taken, its checkpoint is not the newest any more, or it
  // is damaged and was set aside. Collective. Throws as Ownership and load_state do.
  bool open();
  // Rank 0, before anything is recorded: what the start leaves behind is moved aside, and what saves need is held.
  void enter();
  // Saves the executor's state; `state` is rank 0's, for state.json. Collective. Throws as checkpoint::save does.
  fs::path save(std::int64_t step, Json state);

 private:
  bool rank_zero_says(const std::function<bool()>& question);
  bool load();

  Job& job_;
  exec::Executor& executor_;
  comm::Communicator& world_;
  Ownership& ownership_;
  std::int64_t token_ = 0;  // of the checkpoints' lease, on every rank
  std::string tokenizer_;   // rank 0: held, so that a save needs no file but its own
};

// Of an import from elsewhere: no step was done here.
bool weights_only(const checkpoint::Checkpoint& from);

}  // namespace molen::train
