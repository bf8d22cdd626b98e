// Which checkpoint a start goes on from. Reads only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "config/config.h"

namespace molen::train {

// A checkpoint whose content is not what was written.
struct Damaged {
  checkpoint::Step checkpoint;
  std::string why;
};

struct Found {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;  // null: the run begins anew
  std::vector<Damaged> damaged;  // under `auto`: newer ones that were passed over, newest first
};

// `resume`: auto, never or a step. What lies beyond the step of a history that has not settled counts as gone
// (store/history.h). Throws UsageError (no such step; the checkpoint is another run's), DamagedError (the step that was
// asked for is damaged; checkpoints are there and none can be used), IoError, VersionError.
Found find_checkpoint(const config::Config& config, const std::string& resume);

// Opened, state and index checked, and of the step that its name says. Throws as checkpoint::Checkpoint does.
std::shared_ptr<const checkpoint::Checkpoint> open_checkpoint(const checkpoint::Step& step);

}  // namespace molen::train
