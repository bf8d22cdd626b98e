// The guard of a program: a process between a command and the program that it has started. No process that the program
// starts, directly or not, outlives the guard.
#pragma once

#include <sys/types.h>

#include <span>

namespace molen::data {

// Processes below this one whose parent ends become its children (PR_SET_CHILD_SUBREAPER).
void adopt_orphans();

// Waits until `program`, a child of this process, and all others below this process have ended. Ends this process with
// the program's exit status, or 128 + n when signal n ended it. All signals must be blocked. One of `passed` goes on to
// the program, unless a terminal has sent it to both; `grace` seconds after the first of them, everything is killed.
// When the program has ended, what it has left behind is asked to end (SIGTERM), and is killed after the same time:
// processes become children of this one, one after the other, as their parents end. Closes all files. May be called in
// the fork of a process with other threads: it makes only calls that are safe in a signal handler.
[[noreturn]] void guard_tree(pid_t program, double grace, std::span<const int> passed);

}  // namespace molen::data
