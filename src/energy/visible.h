// The GPUs that a job may use, as the variables of its environment say. A launcher may set the variables of several
// makers at once, so each maker has a list of its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace molen::energy {

struct VisibleGpus {
  std::optional<std::string> nvidia;  // words as in CUDA_VISIBLE_DEVICES; absent: all
  std::optional<std::string> amd;     // words as in ROCR_VISIBLE_DEVICES; absent: all
  bool operator==(const VisibleGpus&) const = default;
};

// Splits a list such as "0,GPU-51af,3" at its commas. As in CUDA and HIP, an entry that begins with "-" hides itself
// and all entries behind it.
std::vector<std::string> visible_words(const std::string& list);

// Returns the lists of a process. `variable` returns the value of a variable of the environment, or null. AMD's runtime
// applies two lists: ROCR_VISIBLE_DEVICES chooses among the GPUs of the machine, and HIP_VISIBLE_DEVICES (where that is
// empty or not set, CUDA_VISIBLE_DEVICES) numbers what it left. An empty list hides all from CUDA and from ROCr, and
// none from HIP.
VisibleGpus visible_gpus(const std::function<const char*(const char*)>& variable);

}  // namespace molen::energy
