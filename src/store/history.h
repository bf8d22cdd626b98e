// run.json: what a run is, whatever its directory is called: its id, its attempts, and its histories.
//
//   {"format": "molen-run", "format_version": 1, "id": "<32 hex digits>", "attempts": 3, "named": true,
//    "slurm": {"job": "77", "step": "0"}, "from": null,
//    "histories": [{"history": 1, "from_step": -1, "settled": true}, {"history": 2, "from_step": 4, "settled": false}]}
//
// A history begins where `--resume never` or `--resume STEP` leaves something behind. It is entered before anything
// moves, and "settled" once all of it has: a start that finds one which is not settled finishes the moves first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace molen::store {

inline constexpr std::int64_t kAnew = -1;  // History::from_step of one that goes on from no checkpoint

struct History {
  std::int64_t history = 1;
  std::int64_t from_step = kAnew;  // the step that it goes on from; what is beyond belongs to the one before
  bool settled = true;
};

// The other run whose checkpoint a run began from.
struct Fork {
  std::string id, name;
  std::int64_t step = 0;
};

struct RunIdentity {
  std::string id;
  std::int64_t attempts = 0;
  bool named = false;                 // by run.name; else by molen
  std::string slurm_job, slurm_step;  // of the attempt that made the run; empty without Slurm
  std::optional<Fork> from;
  std::vector<History> histories{History{}};
  const History& current() const { return histories.back(); }
};

// Absent where the directory holds no run.json. Throws UsageError, VersionError, IoError.
std::optional<RunIdentity> read_identity(const fs::path& run);
// Durable when it returns.
void write_identity(const fs::path& run, const RunIdentity& identity);
// A new run's: an id of 128 random bits, and what Slurm says of this job.
RunIdentity new_identity();
// What run.json says, or a new identity, which is not written yet. Runs of older versions of molen have no run.json;
// their lines say how often they began.
RunIdentity identity_of(const fs::path& run);

// The runs in `directory` that were not named and that this very Slurm job step began, before it was requeued
// (SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT above 0). None where this is no requeued job.
std::vector<fs::path> requeued_runs(const fs::path& directory);

// The steps of a lines file (metrics.jsonl, ...) beyond `step` move to `<name>.abandoned-<history>`; the file is
// replaced at once. Lines without a step stay. Where nothing is beyond, nothing changes; safe to repeat.
void abandon_lines(const fs::path& file, std::int64_t beyond, std::int64_t history);
// The same of all that the run directory records by step: metrics, events, energy; and where the history begins anew,
// its TensorBoard files.
void abandon_records(const fs::path& run, const History& history);

}  // namespace molen::store
