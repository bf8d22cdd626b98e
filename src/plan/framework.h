// How a training framework that is not molen runs a step. A row of a table of runs (runs.h) and the keys of
// [framework] come to the same FrameworkSetting, and from there on one path changes the program's setting, its streams,
// its costs and its memory. docs/decisions/0014-planner.md has the reasons.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "program/ir/program.h"
#include "sim/described_costs.h"

namespace molen::plan {

struct FrameworkSetting {
  bool gradients_16bit = false;   // gradients are kept and reduced in 16 bits instead of fp32
  bool fp8 = false;               // the products of linear layers are in fp8
  bool compiled = false;          // a compiler fuses element-wise ops, and drops results that nobody reads
  bool flash_attention = true;    // false: the scores of attention are written to memory
  bool saves_activations = true;  // backward reads what autograd saves; false: only what molen's backward reads
  std::set<std::string> overlap;  // "tp", "pp", "dp": the axes whose communication runs beside compute
  int zero = 0;                   // the stage that the framework runs (zero_of)
  std::int64_t vocabulary = 0;    // tokens that have logits; 0: all rows of the embedding
  bool overlaps(const char* axis) const { return overlap.contains(axis); }
};

// Returns the ZeRO stage of the program that stands for a framework's. TorchTitan, which combines fully sharded
// parameters with a pipeline, gathers them once a step then, and reduces gradients after the last micro-batch.
int zero_of(int asked, int stages);

// Returns what the keys of [framework] say; nullopt: molen itself. Throws UsageError, with the key, for another key
// beside them that no framework's costs or memory are known for.
std::optional<FrameworkSetting> framework_of(const config::Config& config, const arch::Architecture& arch,
                                             const program::Setting& setting);

// Returns `before` with "framework.kind = \"pytorch\"" behind it, which titles say of a step that is not molen's; "" of
// molen's.
std::string framework_text(const std::string& before, const std::string& kind);

// Throws UsageError that names each key of [framework] that is set, with `why`.
void refuse_framework(const config::Config& config, const std::string& why);

// The same where a framework is not what counts. The message says what molen does instead. `what`: "this command runs",
// which "molen itself" completes.
void require_molen(const config::Config& config, const std::string& what);

// Makes a setting that of the framework's program: sharding, pieces of tensor-parallel products, the type of reduced
// gradients, and logits of whole micro-batches. The setting has its axes, batch and sequence already.
void set_framework(const FrameworkSetting& framework, program::Setting& setting);

// Moves the communication of the stages to the streams on which the framework has it.
void set_streams(const FrameworkSetting& framework, std::vector<program::Program>& stages);

sim::Framework costs_of(const FrameworkSetting& framework);

}  // namespace molen::plan
