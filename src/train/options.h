// The options of `molen train`; free of ATen, so that the command line is too.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arch/parts.h"

namespace molen::train {

struct TrainOptions {
  std::string resume = "auto";            // auto, never, or a step
  std::vector<std::string> allow_change;  // keys that may differ from the checkpoint's run
  // A step program in text form, used instead of the built one, or a folder with those of all stages
  // (store::program_name).
  std::optional<std::string> program_file;
  bool dry_run = false;                                        // build, verify, print what would run
  bool verbose = false;                                        // on a terminal, a full line every step
  bool save_initial = false;                                   // also save step 0: the starting point for comparisons
  arch::FlopsConvention mfu = arch::FlopsConvention::kCausal;  // how reported model FLOPs are counted
  std::optional<std::string> cluster;  // a calibration or a description: predict and compare at the end
};

}  // namespace molen::train
