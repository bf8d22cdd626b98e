// The settings that one job changes on one host, by one of its ranks there. Whatever ends the job, they are restored:
//   its end, or an exception        this object restores them
//   SIGTERM, SIGKILL, a crash       the guardian restores them
//   also the guardian was killed    the job itself restores them, and starts another guardian at the next change
//   both were killed                the next job that opens a session with the same folder of journals, or
//                                   `molen energy restore`
// Before the first change, the journal is on disk and the guardian is ready; else nothing is changed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actuate/guardian.h"
#include "actuate/held.h"
#include "actuate/journal.h"
#include "actuate/locks.h"

namespace molen::actuate {

struct SessionOptions {
  fs::path journals;                             // a folder on this host, of this user
  std::vector<std::string> guardian;             // the program and its arguments; the journal's path is added
  std::function<void(const std::string&)> said;  // what the user must know: a sentence each
  Seconds patience{30.0};                        // for the guardian's start, and for one that restores
};

// Returns the folder of this user's journals on this host: $XDG_RUNTIME_DIR/molen, else molen-UID in the folder for
// temporary files.
fs::path default_journals();

// Restores the journals that dead jobs have left in the folder, and says so. A journal of a living job is not touched,
// nor is one of another host. One of an earlier boot is removed, because a restart resets all settings. One that cannot
// be read is renamed to NAME.damaged. Returns whether nothing is left to restore.
// `wanted`: only journals with one of these settings count for that; empty: all do. `own_too`: journals of this process
// are restored as well, for a folder in which no session of it is open; one whose device somebody else has is left
// then. Settings that are restored leave their journal, so that only those that could not be restored count the next
// time.
bool recover_journals(const fs::path& folder, Actuators& here, const std::function<void(const std::string&)>& said,
                      Seconds patience, const std::vector<std::string>& wanted = {}, bool own_too = false);

// Makes a folder of this user into which nobody else may write, with those above it. Throws UsageError where the folder
// is another user's, or others may write into it.
void make_own_folder(const fs::path& folder);

class Session : public HeldSettings {
 public:
  // Restores what earlier jobs have left, locks the settings in `ids`, remembers what they are, and starts the
  // guardian. `here` is what open_actuators found. A failure says which setting cannot be used and why, or which job
  // has it.
  static Result<std::unique_ptr<Session>> open(Actuators here, const std::vector<std::string>& ids,
                                               SessionOptions options);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::size_t size() const override { return used_.size(); }
  const Actuator& actuator(std::size_t index) const override { return *used_.at(index); }
  // The values are in the journal from now on, so that `set` writes none for them.
  Result<Done> announce(std::size_t index, const std::vector<std::int64_t>& values) override;
  Result<Done> set(std::size_t index, std::int64_t value) override;
  // Starts another guardian if the last one was killed.
  Result<Done> keep_guarded() override;
  Restoration end() override;
  int guardian_pid() const { return guardian_ ? guardian_->pid() : -1; }

 private:
  Session(std::vector<std::unique_ptr<Actuator>> used, Locks locks, SessionOptions options);
  Result<Done> begin();
  Result<Done> record_also(std::size_t index, const std::vector<State>& states);
  Result<Done> record();

  std::vector<std::unique_ptr<Actuator>> used_;
  std::vector<std::vector<State>> announced_;  // by index of `used_`
  Locks locks_;
  SessionOptions options_;
  Journal journal_;
  fs::path file_;
  std::unique_ptr<Guardian> guardian_;
  int process_;  // a fork of the job must not restore
  bool open_ = false;
};

}  // namespace molen::actuate
