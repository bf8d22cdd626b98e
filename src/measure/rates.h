// This machine's GEMM rates. They are measured once and kept, so that `precision.compute = "auto"` and the MFU of all
// runs here go by the same figures. The file is $XDG_CACHE_HOME/molen/rates.json, else ~/.cache/molen/rates.json; its
// keys are processor, libtorch and conditions (threads, type, library, ranks at once). `molen doctor --measure`
// measures again.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "plan/resolve.h"

namespace molen::measure {

struct Rate {
  double flops_per_s = 0.0;
  std::string measured;  // day of the measurement (UTC)
};

// Returns the path of the file; an empty path, when neither XDG_CACHE_HOME nor HOME is set, means that nothing is kept.
std::filesystem::path rates_file();

// Read and write a rate in the file. A file that cannot be read, or that holds something else, counts as none. A file
// that cannot be written is ignored, because measuring again costs little.
std::optional<Rate> stored_rate(const std::string& conditions);
Rate store_rate(const std::string& conditions, double flops_per_s);
void forget_rate(const std::string& conditions);
void forget_rates();

// Returns the rates that "auto" decides by: the kept rates of one rank with `threads` threads, or else rates that are
// measured now and kept. The rates of a CUDA device (its index) are measured each time.
plan::PrecisionRates precision_rates(int threads, int cuda_device = -1);

}  // namespace molen::measure
