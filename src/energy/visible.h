// The GPUs that a job may use, as the variables of its environment say.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace molen::energy {

// Splits a list such as "0,GPU-51af,3" at its commas. As in CUDA and HIP, an entry that begins with "-" hides itself
// and all entries behind it.
std::vector<std::string> visible_words(const std::string& list);

// Returns the list of visible devices as CUDA_VISIBLE_DEVICES has it; nothing if all are visible. `variable` returns
// the value of a variable of the environment, or null. AMD's runtime applies two lists: ROCR_VISIBLE_DEVICES chooses
// among the devices of the machine, and HIP_VISIBLE_DEVICES (else CUDA_VISIBLE_DEVICES) numbers what it left.
std::optional<std::string> visible_devices(const std::function<const char*(const char*)>& variable);

}  // namespace molen::energy
