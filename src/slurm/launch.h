// Starts the sender of a step from Slurm's daemon of the step, such that neither can harm the other.
#pragma once

#include <string>
#include <vector>

namespace molen::slurm {

struct Launched {
  int hold = -1;                   // the program sees its standard input end when this descriptor is closed; -1: none
  std::vector<std::string> notes;  // what went wrong, for a log; the program may run all the same if `hold` is there
};

// Starts a program as a process that belongs to nobody: in a session of its own, a child of init, with signals, working
// directory and environment of a fresh service, and with no descriptor of the caller but the end of a pipe as its
// standard input. The caller never has to wait for it, and a caller that is killed ends it by the pipe. What it prints
// goes to the end of `log`. `folder` is made, for this user alone, if it is not there; the program does not start if it
// is a link, belongs to another user or can be written by one. Does not throw, and does not wait longer than a second,
// even for a file system that does not answer.
Launched start_detached(const std::vector<std::string>& command, const std::string& folder, const std::string& log);

}  // namespace molen::slurm
