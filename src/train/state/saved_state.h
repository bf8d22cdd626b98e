// A run's state on disk: its ownership, what a start loads, and the saves.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "comm/communicator.h"
#include "exec/executor.h"
#include "train/state/ownership.h"
#include "train/trainer.h"

namespace molen::train {

class SavedState {
 public:
  // All arguments must outlive this object; `ownership` is rank 0's.
  SavedState(Job& job, exec::Executor& executor, comm::Communicator& world, Ownership& ownership);

  // Takes the directories, and fills the executor from the job's checkpoint or with initial parameters. Returns false,
  // on all ranks, when the job must be prepared again: its name was taken, its checkpoint is no longer the newest, or
  // the checkpoint is damaged and was set aside. Collective. Throws as Ownership and load_state do.
  bool open();
  // Rank 0, before anything is recorded: moves aside what the start abandons, and reads what later saves need.
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
  std::string tokenizer_;   // rank 0: kept in memory, so that a save does not depend on another file
};

// Returns whether a checkpoint was imported: it has only weights, and molen did no step of it.
bool weights_only(const checkpoint::Checkpoint& from);

}  // namespace molen::train
