// The events of a run that concern energy: meters that could not be read, gaps, policies and budgets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace molen::serve {

struct RunEvent {
  // At which it was recorded, since 1970; NaN if that is not known. Of a gap: at which it began, where the record
  // tells.
  double time_s = 0.0;
  std::string run;  // the name of its directory
  std::int64_t attempt = 0;
  std::optional<std::int64_t> step;  // nothing where the record names none, as that of meters at the start
  // "unavailable" (a meter at the start of an attempt), "unread" (the set of scopes without a reading has changed),
  // "doubtful" (a device contradicts itself),
  // "gap" (of a counter), "setting" (a policy set another clock or limit), "policy" (how a policy ended), "budget".
  std::string kind;
  std::string text;
  std::string host;             // of a gap; else empty
  std::optional<double> value;  // of a setting, and the one that a policy chose; of a gap: its joules, where known
  std::string unit;             // of the value: "Hz", "W" or "J"; empty without a value
  std::string job, job_step;    // Slurm's, of the attempt; empty if not recorded
};

// Returns the events of a run from events.jsonl, energy.jsonl and metrics.jsonl, those of abandoned histories included,
// in the order of these files. Damaged lines are left out. Throws UsageError when `run` is no directory.
std::vector<RunEvent> energy_events_of(const fs::path& run);

Json to_json(const RunEvent& event);
// Returns a line for each event, with the column names of EAR's table of events and molen's own after them.
std::string events_csv(const std::vector<RunEvent>& events);

}  // namespace molen::serve
