// Chooses the checkpoint that a start continues from. Only reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "config/config.h"

namespace molen::train {

// A checkpoint whose content differs from what was written.
struct Damaged {
  checkpoint::Step checkpoint;
  std::string why;
};

struct Found {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;  // null: the run begins anew
  std::vector<Damaged> damaged;  // with `auto`: newer checkpoints that were skipped, newest first
};

// Finds the checkpoint for `resume`: auto, never or a step. Ignores checkpoints beyond the step of a history that has
// not settled (store/history.h), because they are about to be moved. Throws UsageError (no such step; the checkpoint
// belongs to another run), DamagedError (the requested step is damaged; checkpoints exist but none can be used),
// IoError, VersionError.
Found find_checkpoint(const config::Config& config, const std::string& resume);

// Opens a checkpoint and checks its state, its index and that its step is the one that its name gives. Throws as
// checkpoint::Checkpoint does.
std::shared_ptr<const checkpoint::Checkpoint> open_checkpoint(const checkpoint::Step& step);

}  // namespace molen::train
