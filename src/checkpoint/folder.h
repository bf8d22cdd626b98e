// The directory of a run's checkpoints: which there are, and how they leave. Everything here is by name; nothing is
// opened but by prune.
//
//   step-000000100                complete
//   step-000000100.partial-7      a save of the owner with fencing token 7 that is not finished
//   step-000000100.replaced       the one before of the same step, until the new one is durable
//   step-000000100.removing       on its way out
//   step-000000100.damaged-2      set aside: the second of this step that was found damaged
//   step-000000100.abandoned-3    what history 3 of the run left behind (store/history.h); also of a damaged one:
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
// Under their final names, oldest first. An absent directory is empty; throws IoError where it cannot be read.
std::vector<Step> steps_in(const fs::path& directory);
std::vector<fs::path> unfinished_in(const fs::path& directory);
// Those that were set aside as damaged, oldest first.
std::vector<Step> damaged_in(const fs::path& directory);

// What a new owner does once it holds the lease, before it looks for checkpoints: whatever an earlier owner has not
// published is moved out of its reach and removed, and a replacement that was cut short is brought to its end.
void recover(const fs::path& directory);

// Renames a damaged checkpoint so that nobody takes it again; returns where it is now.
fs::path set_aside(const fs::path& checkpoint);

// Renames checkpoints beyond step `beyond`, and damaged ones that were set aside there, so that they say which history
// left them behind: newest first, so that a move cut short leaves no hole. Returns the steps of those that had their
// final name.
std::vector<std::int64_t> abandon(const fs::path& directory, std::int64_t beyond, std::int64_t history);

// Leaves the newest `keep` complete ones up to `saved`, and removes what is on its way out. `before_each` may throw.
void prune(const fs::path& directory, const fs::path& saved, int keep, const std::function<void()>& before_each);

// Puts `from` in the place of `to`; where `to` exists it is kept under another name until the new one is durable.
void publish(const fs::path& from, const fs::path& to);

}  // namespace molen::checkpoint
