// The scopes of one host as a tree: a node contains its packages, memory and GPUs. A sum of joules adds no scope beside
// one that contains it, so that no joule counts twice.
//
//   node
//     module0      a Grace Hopper module: processor, GPU and the memory of both
//       grace0     its processor with memory
//     psys         the part of a platform that RAPL sees
//     cpu          all packages
//       cpu-package0, cpu-package0-die1
//     dram         the memory of all packages
//       dram0
//     accel0       what a node's maker counts as one accelerator: a GPU, or a module of two
//     gpu0
#pragma once

#include <set>
#include <string>

#include "energy/meter.h"

namespace molen::energy {

// Returns whether the joules of `inner` are part of those of `outer`. A scope does not contain itself. Where numbers do
// not tell (accel0 may hold gpu0 or gpu1), the answer is yes: a sum may then lack a GPU, but never counts one twice.
bool contains(const std::string& outer, const std::string& inner);

// Returns the parts of a machine that a scope measures: "node" and "module0" {cpu, dram, gpu}, "grace0" and "psys"
// {cpu, dram}, "cpu" and "cpu-package0" {cpu}, "dram0" {dram}, "accel0" and "gpu1" {gpu}; empty for a name of another
// kind.
std::set<std::string> parts_of(const std::string& scope);

// Decides which of the meters a sum adds (MeterInfo::counted): those that no other meter with readings contains. A
// measured node counts rather than the sum of its parts, because it also has fans, adapters and losses. psys is an
// exception: it gives way to packages, because on some machines it sees less than they do.
void choose_counted(Meters& meters);

}  // namespace molen::energy
