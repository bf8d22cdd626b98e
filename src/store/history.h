// run.json identifies a run, whatever its directory is called. It holds the run's id, attempts and histories.
//
//   {"format": "molen-run", "format_version": 1, "id": "<32 hex digits>", "attempts": 3, "named": true,
//    "slurm": {"job": "77", "step": "0"}, "from": null,
//    "histories": [{"history": 1, "from_step": -1, "settled": true}, {"history": 2, "from_step": 4, "settled": false}]}
//
// A history begins when `--resume never` or `--resume STEP` leaves steps behind. Its entry is written before anything
// moves; "settled" becomes true after all moves. A start that finds an unsettled history finishes the moves first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace molen::store {

inline constexpr std::int64_t kAnew = -1;  // History::from_step of a history that continues no checkpoint

struct History {
  std::int64_t history = 1;
  std::int64_t from_step = kAnew;  // the step that it continues from; later steps belong to the previous history
  bool settled = true;
};

// The other run whose checkpoint this run began from.
struct Fork {
  std::string id, name;
  std::int64_t step = 0;
};

struct RunIdentity {
  std::string id;
  std::int64_t attempts = 0;
  bool named = false;                 // true: run.name gave the name; false: molen made it up
  std::string slurm_job, slurm_step;  // job and step of the attempt that made the run; empty without Slurm
  std::optional<Fork> from;
  std::vector<History> histories{History{}};
  const History& current() const { return histories.back(); }
};

// Returns nullopt when the directory holds no run.json. Throws UsageError, VersionError, IoError.
std::optional<RunIdentity> read_identity(const fs::path& run);
// Writes run.json, which is on disk when this returns.
void write_identity(const fs::path& run, const RunIdentity& identity);
// Makes a new run's identity: an id of 128 random bits, and Slurm's values for this job.
RunIdentity new_identity();
// Reads run.json, or makes a new identity without writing it. Runs of older versions of molen have no run.json; the
// number of attempts then follows from the run's lines.
RunIdentity identity_of(const fs::path& run);

// Returns the unnamed runs in `directory` that this same Slurm job step began before it was requeued (SLURM_JOB_ID,
// SLURM_STEP_ID, SLURM_RESTART_COUNT above 0). Empty when this job was not requeued.
std::vector<fs::path> requeued_runs(const fs::path& directory);

// Moves the lines of a file (metrics.jsonl, ...) whose step is above `beyond` to `<name>.abandoned-<history>`, and
// replaces the file atomically. Lines without a step stay. Changes nothing when there is no such line; safe to repeat.
void abandon_lines(const fs::path& file, std::int64_t beyond, std::int64_t history);
// Does the same for metrics, events and energy in the run directory. When the history begins anew, renames the
// TensorBoard files too.
void abandon_records(const fs::path& run, const History& history);

}  // namespace molen::store
