// Communication slows the compute of the same device: its kernels take multiprocessors and memory bandwidth, and a
// program that waits for a message computes nothing meanwhile.
#pragma once

#include <array>
#include <vector>

#include "program/ir/stages.h"
#include "program/ir/timeline.h"

namespace molen::sim {

// By stream: the share of its time that compute loses while an op of that stream runs beside it. 0: compute runs on as
// if it were alone; 1: it stands still.
using Interference = std::array<double, program::kNumStreams>;

// Returns the seconds of each op of each stage: those of `work`, and for each op on the stream of compute the time that
// it loses beside communication, as long as that runs beside it in `timelines`. Time in which a stream waits for other
// ranks costs nothing.
std::vector<std::vector<double>> interfered(const program::Stages& stages,
                                            const std::vector<program::Timeline>& timelines,
                                            std::vector<std::vector<double>> work, const Interference& interference);

}  // namespace molen::sim
