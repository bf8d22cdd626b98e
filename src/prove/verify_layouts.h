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
  launch::Traffic traffic;  // of rank 0 in a step
  double ratio() const { return over_bounds(difference, bounds); }
};

struct VerifyOptions {
  int steps = 10;                               // of the fp64 proof
  std::vector<DType> compute;                   // kF64, kF32: one step
  std::optional<int> cuda;                      // device that all ranks share; the reference stays on the host
  bool flash_attention = true;                  // attention in tiles, as math.flash_attention says
  const program::Schedule* schedule = nullptr;  // of pipelines whose schedule comes from a file
};

// Throws UsageError when the memory is not available for what verify_layouts is about to run; names the layout that
// needs most. `machine`: its ranks and the host's; its device is options.cuda, which all ranks share. Collective.
void require_memory_of_layouts(const arch::Architecture& arch, const program::Setting& base,
                               const std::vector<plan::Layout>& layouts, const VerifyOptions& options,
                               const plan::Machine& machine, comm::Communicator& world);

// Collective over `world`: trains one rank alone (rank 0) and each layout, of world.size() ranks, from the same start
// on the same samples, read in micro-batches of `base`. All of them run in the types of the options. `progress` is
// called on rank 0 with each row. Throws UsageError when a layout cannot be built.
std::vector<VerifyRow> verify_layouts(const arch::Architecture& arch, const program::Setting& base,
                                      const std::vector<plan::Layout>& layouts, const ReadSamples& read,
                                      const VerifyOptions& options, comm::Communicator& world,
                                      const std::function<void(const VerifyRow&)>& progress);

// Summarises the rows in one line: how many of the layouts are the same model in every type that they ran in.
std::string verdict(const std::vector<VerifyRow>& rows, std::size_t layouts);

}  // namespace molen::prove
