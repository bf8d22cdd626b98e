// Rank 0's ownership of the directories that a run writes into (docs/decisions/0008-files-checkpoints-owners.md). Only
// the owner writes there: it completes what an earlier owner left unfinished, and renames what is damaged or abandoned.
// Each such renaming is reported on stderr and in the run's events.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "store/history.h"
#include "store/lease.h"
#include "train/trainer.h"

namespace molen::train {

class Ownership {
 public:
  // Takes the leases of the run directory and of its checkpoint directory, unless they are held already. Returns false,
  // holding nothing, when the run's name was generated and another run took it meanwhile. Throws store::LeaseHeld,
  // which names the other owner, and IoError.
  bool take(const Job& job);
  // Completes what earlier owners began, saves and histories, and sets aside the damaged checkpoints that the job
  // skipped. Returns false when the job should no longer continue from its checkpoint: the job must then be prepared
  // again.
  bool settle(const Job& job);
  // Renames a checkpoint whose content differs from what was written.
  void set_aside(const fs::path& checkpoint, const std::string& why);
  // Begins a new history when the start (`--resume never`, or a step) leaves later steps behind, and moves those aside.
  // To be called once the job's state is loaded and before the job records anything.
  void enter(const Job& job);

  bool held() const { return !leases_.empty(); }
  std::optional<std::string> run_name() const;                                 // the directory that is held
  std::int64_t token() const { return held() ? leases_.back()->token() : 0; }  // of the checkpoints' lease
  // Throws store::LeaseHeld when another owner has taken over.
  void require() const;

 private:
  bool claim(const Job& job);
  bool leaves_something(const Job& job) const;
  void finish_history();

  fs::path run_, checkpoints_;
  std::vector<std::unique_ptr<store::Lease>> leases_;
  store::RunIdentity identity_;
};

}  // namespace molen::train
