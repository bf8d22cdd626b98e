// All settings of this machine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "actuate/actuator.h"
#include "base/json.h"
#include "energy/machine.h"
#include "energy/nvml/nvml.h"

namespace molen::actuate {

struct OpenOptions {
  energy::Machine machine;
  energy::NvmlOptions nvml;
  bool amd_visible = false;  // ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES is set
};
// Returns the options of this process: visible devices as its environment names them.
OpenOptions options_here();

// Returns what can be set, ordered by scope, and why the rest cannot. Nothing is changed by it.
Actuators open_actuators(const OpenOptions& options);

// Returns a line for each setting (scope, name, range, what is set now, files), then the unavailable ones and their
// reasons.
std::string list_text(const Actuators& actuators);
Json list_json(const Actuators& actuators);

}  // namespace molen::actuate
