// `molen verify` has two ways, which share this header: verify.cpp uses the verifier alone, and compute/verify.cpp
// trains.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/cli.h"
#include "plan/layouts.h"

namespace molen::apps {

struct VerifyArguments {
  ConfigOptions config;
  std::string layouts = "all", cover = "all", format;
  bool only_static = false;
  int steps = 10;
  std::vector<std::string> precisions{"fp64", "fp32"};

  bool pairs() const { return cover == "pairs"; }
  bool given() const { return layouts == "given"; }
  // Returns the requested strategies; empty for all. Throws UsageError for an empty list.
  std::vector<std::string> wanted() const;
};

// Returns the setting that layouts vary: the model and batch of the configuration, its offloading, its units, and the
// numbers of pieces of rows and of tiles of experts; the rest of its layout, and its types, do not matter here. The
// threads of a rank are its share beside the other ranks of its host. Sets these keys of `config`.
program::Setting base_setting(config::Config& config, const arch::Architecture& arch, int local_ranks);

// Leaves out layouts whose attention is in tiles or not at all, where math.flash_attention is false, and says so.
// Throws UsageError when none is left.
void leave_out_tiles(const config::Config& config, const arch::Architecture& arch, bool cuda,
                     std::vector<plan::Layout>& layouts);

// Returns the width of the name column, so that the columns after it are aligned.
std::size_t widest_name(const std::vector<plan::Layout>& layouts);

}  // namespace molen::apps
