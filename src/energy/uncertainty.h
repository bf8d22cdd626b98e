// How far joules may be off by what is known of their meter. Two things limit a meter: its resolution, which molen
// knows, and its accuracy, which makers seldom document and molen does not guess.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "energy/meter.h"

namespace molen::energy {

// Returns the most by which the joules of a time may be off, up or down, by the resolution of a counter. At each end
// the counter has the joules until at most MeterInfo::changes_every ago, and whole ticks:
//   |error| <= joules / seconds * changes_every + tick
// where the power at the ends is taken to be the mean of the time. Nothing for a meter of power, whose joules between
// two samples nobody counted, and for a counter whose period of updates is not known.
std::optional<double> resolution_j(const MeterInfo& info, double joules, double seconds);

// Returns what is documented of the accuracy of a kind of meter (MeterInfo::name); no kind has a figure that its maker
// states.
const char* accuracy_of(const std::string& meter);

// Returns a text such as "+- 1e-05 J and 0.001 s at each end; accuracy unknown: ...".
std::string uncertainty_text(const MeterInfo& info);
// Returns {"tick_j", "changes_every_s", "samples_every_s", "accuracy", "accuracy_note"}; null where a value is not
// known or does not exist. "accuracy" would be a share of the joules.
Json uncertainty_json(const MeterInfo& info);

}  // namespace molen::energy
