// Rank 0's hold on the directories that a run writes into (docs/decisions/0008-files-checkpoints-owners.md): it alone
// writes there, what an earlier owner left unfinished is brought to its end, and what is damaged or abandoned is moved
// aside by name. Each such move is said on stderr and in the run's events.
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
  // Takes the leases of the run directory and of that of its checkpoints, unless they are held already. False where the
  // run's name was made up and another run took it meanwhile; nothing is held then. Throws store::LeaseHeld, which
  // names the other owner, and IoError.
  bool take(const Job& job);
  // Ends what earlier owners began, saves and histories, and sets the damaged checkpoints aside that the job passed
  // over. False where the job's checkpoint is not the one to go on from any more: it has to be prepared again.
  bool settle(const Job& job);
  // Renames a checkpoint whose content is not what was written.
  void set_aside(const fs::path& checkpoint, const std::string& why);
  // Once the job's state is there and before it records anything: where `--resume never` or a step leaves something
  // behind, a new history begins, and what lies beyond is moved aside.
  void enter(const Job& job);

  bool held() const { return !leases_.empty(); }
  std::optional<std::string> run_name() const;                                 // of the directory that is held
  std::int64_t token() const { return held() ? leases_.back()->token() : 0; }  // of the checkpoints' lease
  // Throws store::LeaseHeld where another owner has taken over.
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
