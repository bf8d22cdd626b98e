// `molen verify`: runs every layout and compares it with one rank.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/layouts.h"
#include "plan/resolve.h"
#include "program/schedule/schedule.h"
#include "prove/proof.h"

namespace molen::prove {

struct VerifyRow {
  std::string layout;
  DType compute{};
  int steps = 0;
  Difference difference;
  Bounds bounds{};
  std::int64_t planned_peak_bytes = 0;
  double seconds = 0;
  std::string failure;      // the first difference; "" when it is the same model
  launch::Traffic traffic;  // traffic of rank 0 in a step
  double ratio() const { return over_bounds(difference, bounds); }
};

struct VerifyOptions {
  int steps = 10;                               // steps of the fp64 proof
  std::vector<DType> compute;                   // types of the runs: kF64, and kF32 for one step
  std::optional<int> cuda;                      // device that all ranks share; the reference stays on the host
  bool flash_attention = true;                  // attention in tiles, as math.flash_attention says
  const program::Schedule* schedule = nullptr;  // the schedule of pipelines that take it from a file
};

// Throws UsageError when the memory that verify_layouts needs is not available; the error names the layout that needs
// most. `machine` gives the number of ranks and the host's memory. The device is options.cuda, which all ranks share.
// Collective.
void require_memory_of_layouts(const arch::Architecture& arch, const program::Setting& base,
                               const std::vector<plan::Layout>& layouts, const VerifyOptions& options,
                               const plan::Machine& machine, comm::Communicator& world);

// Trains one rank alone (rank 0) and each layout of world.size() ranks, from the same start and on the same samples,
// read in micro-batches of `base`. All of them run in the types of the options. `progress` is called on rank 0 with
// each row. Collective over `world`. Throws UsageError when a layout cannot be built.
std::vector<VerifyRow> verify_layouts(const arch::Architecture& arch, const program::Setting& base,
                                      const std::vector<plan::Layout>& layouts, const ReadSamples& read,
                                      const VerifyOptions& options, comm::Communicator& world,
                                      const std::function<void(const VerifyRow&)>& progress);

// Returns a one-line summary of the rows: how many of the layouts are the same model in every type that they ran in.
std::string verdict(const std::vector<VerifyRow>& rows, std::size_t layouts);

}  // namespace molen::prove
