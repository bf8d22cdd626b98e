// run.json: what a run is, whatever its directory is called: its id, its attempts, and its histories.
//
//   {"format": "molen-run", "format_version": 1, "id": "<32 hex digits>", "attempts": 3, "slurm": {"job": "77", "step":
//   "0"},
//    "histories": [{"history": 1, "from_step": 0, "settled": true}, {"history": 2, "from_step": 4, "settled": false}]}
//
// A history begins where `--resume never` or `--resume STEP` leaves something behind. It is entered before anything
// moves, and "settled" once all of it has: a start that finds one which is not settled finishes the moves first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace molen::store {

struct History {
  std::int64_t history = 1;
  std::int64_t from_step = 0;  // the step it goes on from; 0: from the beginning
  bool settled = true;
};

struct RunIdentity {
  std::string id;
  std::int64_t attempts = 0;
  std::string slurm_job, slurm_step;  // of the attempt that made the run; empty without Slurm
  std::vector<History> histories{History{}};
  const History& current() const { return histories.back(); }
};

// Absent where the directory holds no run.json. Throws UsageError, VersionError, IoError.
std::optional<RunIdentity> read_identity(const fs::path& run);
// Durable when it returns.
void write_identity(const fs::path& run, const RunIdentity& identity);
// A new run's: an id of 128 random bits, and what Slurm says of this job.
RunIdentity new_identity();

// The steps of a lines file (metrics.jsonl, events.jsonl) beyond `step` move to `<name>.abandoned-<history>`; the file
// is replaced at once. Lines without a step stay. Where nothing is beyond, nothing changes; safe to repeat.
void abandon_lines(const fs::path& file, std::int64_t beyond, std::int64_t history);

}  // namespace molen::store
