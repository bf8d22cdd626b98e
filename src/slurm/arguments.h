// The plugin's words in plugstack.conf, and the command that they make of a step. Only an administrator writes that
// file; nothing of a user's environment or option reaches the command but the numbers of
// the user and the job's group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slurm/option.h"

namespace molen::slurm {

struct Arguments {
  std::string molen, collector;     // both are needed
  std::string spool, token, log;    // absolute paths: a folder and two files; `token` may be empty
  std::string every = "60";         // seconds of a period
  std::vector<std::string> meters;  // empty: those that the machine has
  std::string host;                 // of this node, as a part of a file's name
};

// Parses words of the form key=value. "%h" in a value is the name of the host, for nodes that share a file system.
Parsed<Arguments> parse_arguments(const std::vector<std::string_view>& words, const std::string& host);

struct StepLabels {
  std::string job, step;  // names: printable ASCII without spaces, at most 128 bytes
  std::uint32_t uid = 0;
  std::optional<std::uint32_t> gid = std::nullopt;  // of the job, where Slurm tells it
};

// Returns Slurm's name of a step: "0", "batch", "extern" or "interactive".
std::string step_name(std::uint32_t step);

// Returns the command that sends the energy of this node for a step. Its files have the name of the host, so that nodes
// with the same folder neither wait for each other nor take each other's records.
std::vector<std::string> command_of_step(const Arguments& arguments, const StepLabels& labels);

}  // namespace molen::slurm
