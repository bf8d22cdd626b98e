// The guardian: a process that waits for the end of a job which changes settings, and restores them if the job could
// not. It is a program of its own (`molen energy guard --journal FILE`), because a fork of a process with threads, MPI
// and a device is not safe. It has a session of its own, so that signals to the job's process group do not reach it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actuate/actuator.h"
#include "base/descriptor.h"
#include "base/units.h"

namespace molen::actuate {

// The job's side.
class Guardian {
 public:
  // Starts `command` with the journal's path as its last argument, and waits until it is ready. `inherited`: locks that
  // it holds as well, none below 3. A failure has the guardian's own words.
  static Result<std::unique_ptr<Guardian>> start(const std::vector<std::string>& command, const fs::path& journal,
                                                 const std::vector<int>& inherited, Seconds patience);
  // Lets the guardian go, as the death of the job does; waits for its end for at most ten seconds.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // Returns whether the guardian runs. It costs one call of the kernel.
  bool alive() const;
  int pid() const { return pid_; }

 private:
  Guardian(int pid, int control, int ready) : pid_(pid), control_(control), ready_(ready) {}
  Result<Done> wait_until_ready(Seconds patience) const;

  int pid_;
  Descriptor control_, ready_;  // the ends of pipes: the guardian's end of life is the job's close of `control_`
};

// The guardian's side: what the program does. It reads the journal, writes "ready" to `ready`, waits until the other
// end of `control` is closed or the owner is dead, and restores what the journal then holds. `open` returns the
// settings of this machine. Returns the exit status: 0 where nothing stays changed by molen. Ignores signals that end
// processes.
struct GuardOptions {
  int control = 0, ready = 1;
  int tries = 5;  // a device may be busy
  Seconds between{1.0};
};
int guard(const fs::path& journal, const std::function<Actuators()>& open, const GuardOptions& options = {});

}  // namespace molen::actuate
