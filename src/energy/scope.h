// The scopes of one host. Some contain others: a node has packages, memory and GPUs. A sum of joules adds no two scopes
// that share a part, so that no joule counts twice.
//
//   node                      everything
//     superchip0              a Grace Hopper superchip as NVML counts it: processor, GPU, and the memory of both
//     module0                 a Grace module as its board counts it
//       grace0                its processor with memory
//         cpu-package0        (below: cpu, psys)
//         sysio0
//     psys                    processors and memory, as RAPL counts a platform
//       cpu                   all packages
//         cpu-package0
//           cpu-package0-die1
//       dram                  the memory of all packages
//         dram0
//     accel0                  an accelerator as the maker of a node counts it: a GPU, or a module of two
//       gpu0, or gpu0+1       a GPU that the job may use, or two of them with one counter
//     rest                    what the node has beside the parts that have counters
#pragma once

#include <set>
#include <string>
#include <vector>

#include "energy/meter.h"

namespace molen::energy {

// Returns whether two different scopes share joules. Where names do not tell, the answer is yes: accel0 may hold gpu0
// or gpu1, and a superchip any socket.
bool overlap(const std::string& a, const std::string& b);

// Returns whether all joules of `inner` are part of those of `outer`. A scope does not contain itself.
bool contains(const std::string& outer, const std::string& inner);

// Returns the parts of a machine that a scope measures for certain: "node" and "superchip0" {cpu, dram, gpu},
// "module0", "grace0", "host" and "psys" {cpu, dram}, "cpu" and "cpu-package0" {cpu}, "dram0" {dram}, "accel0" and
// "gpu1" {gpu}; empty for a name of another kind.
std::set<std::string> parts_of(const std::string& scope);

// Returns the numbers of the GPUs, among those that the job may use, that a scope measures: {1} for "gpu1" and
// "superchip1", {0, 1} for "gpu0+1"; empty for any other scope. The numbers of accelerators ("accel0") are those of the
// node's maker.
std::vector<int> gpus_of(const std::string& scope);

// Returns those of several scopes that a sum adds. A node counts rather than the sum of its parts, because it also has
// fans, adapters and losses. So do other scopes that contain some of the others. psys is an exception: it gives way to
// packages, because on some machines it sees less than they do.
std::set<std::string> counted_among(std::vector<std::string> scopes);
// Decides so which of the meters a sum adds (MeterInfo::counted), among those that give readings.
void choose_counted(Meters& meters);

}  // namespace molen::energy
