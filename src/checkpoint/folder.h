// The directory of a run's checkpoints: listing and removing them. All functions work by name; only prune opens files.
//
//   step-000000100                complete
//   step-000000100.partial-7      an unfinished save of the owner with fencing token 7
//   step-000000100.replaced       the previous checkpoint of the same step, until the new one is durable
//   step-000000100.removing       being removed
//   step-000000100.damaged-2      set aside: the second of this step that was found damaged
//   step-000000100.abandoned-3    left behind by history 3 of the run (store/history.h); also of a damaged one:
//                                 step-000000100.damaged-2.abandoned-3
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"

namespace molen::checkpoint {

struct Step {
  fs::path path;
  std::int64_t step = 0;
};
// Returns the checkpoints under their final names, oldest first. An absent directory is empty; throws IoError when it
// cannot be read.
std::vector<Step> steps_in(const fs::path& directory);
std::vector<fs::path> unfinished_in(const fs::path& directory);
// Returns the checkpoints that were set aside as damaged, oldest first.
std::vector<Step> damaged_in(const fs::path& directory);

// A new owner calls this once it holds the lease, before it looks for checkpoints. It moves unpublished files out of an
// earlier owner's reach and removes them, and completes an interrupted replacement.
void recover(const fs::path& directory);

// Renames a damaged checkpoint so that nobody uses it again; returns its new path.
fs::path set_aside(const fs::path& checkpoint);

// Renames the checkpoints beyond step `beyond`, including those that were set aside as damaged, so that their names
// tell which history left them behind. It starts with the newest, so that an interrupted move leaves no hole. Returns
// the steps of those that were complete checkpoints.
std::vector<std::int64_t> abandon(const fs::path& directory, std::int64_t beyond, std::int64_t history);

// Removes all complete checkpoints up to `saved` except the newest `keep`, and finishes interrupted removals.
// `before_each` may throw.
void prune(const fs::path& directory, const fs::path& saved, int keep, const std::function<void()>& before_each);

// Renames `from` to `to`; an existing `to` is kept under another name until the new one is durable.
void publish(const fs::path& from, const fs::path& to);

}  // namespace molen::checkpoint
