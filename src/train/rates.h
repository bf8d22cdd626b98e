// How fast this machine multiplies, measured once and kept: `precision.compute = "auto"` and the peak behind MFU mean
// the same in every run here. In $XDG_CACHE_HOME/molen/rates.json, else ~/.cache/molen/rates.json, by processor,
// libtorch and conditions (threads, type, library, ranks at once); `molen doctor --measure` measures anew.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "plan/resolve.h"

namespace molen::train {

struct Rate {
  double flops_per_s = 0.0;
  std::string measured;  // day (UTC)
};

// Empty where neither variable is set: then nothing is kept.
std::filesystem::path rates_file();

// A file that cannot be read, or holds something else, counts as none; one that cannot be written is left: measuring
// anew costs little.
std::optional<Rate> stored_rate(const std::string& conditions);
Rate store_rate(const std::string& conditions, double flops_per_s);
void forget_rates();

// What "auto" decides by: the rates that are kept of one rank with so many threads, else measured now and kept. Of a
// CUDA device (its index) they are measured each time.
plan::PrecisionRates precision_rates(int threads, int cuda_device = -1);

}  // namespace molen::train
