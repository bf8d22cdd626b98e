// Tests how large a checkpoint's index and headers become. The files are planned without the data. They must grow with
// tensors times ranks, never with rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "arch/architecture.h"
#include "arch/parameters.h"
#include "checkpoint/index.h"
#include "checkpoint/naming.h"
#include "checkpoint/safetensors.h"
#include "launch/checkpointing.h"
#include "plan/whole_run.h"
#include "program/ir/program.h"

namespace molen::launch {
namespace {

struct Planned {
  std::string index;         // index.json
  std::uint64_t header = 0;  // of the rank with the largest header
  std::int64_t slices = 0, elements = 0;
  std::size_t tensors = 0;
};

program::Setting planned_setting(int data, int tensor, int stages, int zero) {
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = data;
  s.mesh[mesh::Axis::kTp] = tensor;
  s.mesh[mesh::Axis::kPp] = stages;
  s.sequence_parallel = tensor > 1;
  s.zero = zero;
  s.compute = DType::kBF16;
  s.global_batch = s.micro_batch = 1;
  s.sequence = 8192;
  return s;
}

// Plans the checkpoint of weights and both moments in fp32, as a run in bf16 keeps them.
Planned plan(const arch::Architecture& arch, program::Setting setting) {
  std::vector<program::Program> stages;
  for (setting.pipeline.stage = 0; setting.pipeline.stage < setting.stages(); ++setting.pipeline.stage)
    stages.push_back(program::describe(arch, setting));
  const mesh::Mesh mesh(setting.mesh, setting.ranks(), setting.order);
  const auto parameters = arch::parameters(arch);
  Planned planned;
  checkpoint::Index index;
  for (int rank = 0; rank < setting.ranks(); ++rank) {
    const auto at = mesh.coordinates(rank);
    const auto& p = stages[static_cast<std::size_t>(at[mesh::Axis::kPp])];
    std::vector<checkpoint::TensorSpec> specs;
    for (const SavedFamily& family : saved_families(p))
      for (const SavedBox& saved : saved_boxes(p, at, family)) {
        const arch::Parameter& parameter = parameters[static_cast<std::size_t>(saved.box.parameter)];
        const std::string name = family.prefix + parameter.name;
        const Box& box = saved.box.box;
        specs.push_back({checkpoint::entry_name(name, parameter.shape, box), DType::kF32, box.sizes});
        auto& stored =
            index.try_emplace(name, checkpoint::StoredTensor{DType::kF32, parameter.shape, {}}).first->second;
        const std::int64_t bytes = box.elements() * size_of(DType::kF32);
        const auto blocks = static_cast<std::size_t>((bytes + checkpoint::kBlockBytes - 1) / checkpoint::kBlockBytes);
        stored.slices.push_back({rank, "", {box}, std::vector<std::string>(blocks, std::string(32, 'f'))});
        planned.elements += box.elements();
        ++planned.slices;
      }
    checkpoint::sort_as_written(specs);
    planned.header = std::max(planned.header, checkpoint::header_of(specs, {{"format", "molen"}}).size());
  }
  for (auto& [name, tensor] : index) {
    EXPECT_EQ(checkpoint::tiling_problem(tensor), "") << name;
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const auto& a, const auto& b) { return a.boxes[0].offsets < b.boxes[0].offsets; });
  }
  planned.tensors = index.size();
  planned.index = checkpoint::print_index(index);
  return planned;
}

TEST(CheckpointSize, OfLargeModelsUnderLargeLayouts) {
  struct Case {
    const char *name, *preset;
    program::Setting setting;
  };
  const std::vector<Case> cases{{"8B, TP 2", "llama3-8b", planned_setting(1, 2, 1, 0)},
                                {"8B, TP 2, FULL_SHARD 4", "llama3-8b", planned_setting(4, 2, 1, 3)},
                                {"70B, TP 8 x PP 4", "llama3-70b", planned_setting(1, 8, 4, 0)},
                                {"405B, TP 8 x PP 16 x DP 8", "llama3-405b", planned_setting(8, 8, 16, 3)}};
  constexpr std::uint64_t kBound = 50'000'000;
  fmt::print("{:<36} {:>6} {:>8} {:>9} {:>12} {:>14} {:>9}\n", "planned", "ranks", "tensors", "slices", "index bytes",
             "largest header", "read in");
  for (const auto& [name, preset, setting] : cases) {
    const auto arch = arch::preset(preset);
    const Planned planned = plan(arch, setting);
    EXPECT_EQ(planned.elements, 3 * arch::num_parameters(arch)) << name;
    EXPECT_LT(planned.index.size(), kBound) << name;
    EXPECT_LT(planned.header, kBound) << name;
    // The index can be read back.
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(checkpoint::parse_index(planned.index, name).size(), planned.tensors);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print("{:<36} {:>6} {:>8} {:>9} {:>12} {:>14} {:>7.2f} s\n", name, setting.ranks(), planned.tensors,
               planned.slices, planned.index.size(), planned.header, seconds);
  }
}

// The whole run that `molen simulate` predicts counts the bytes of the parts that all ranks save.
TEST(CheckpointSize, IsThatOfThePlannedRun) {
  const auto tied = arch::preset("llama-tiny");
  auto sparse = tied;
  sparse.tied = false, sparse.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 96, .bias_rate = 0.001};
  for (const auto& arch : {tied, sparse})
    for (const char* optimizer : {"adamw", "lion", "muon", "adafactor"})
      for (auto setting : {planned_setting(1, 1, 1, 0), planned_setting(3, 2, 1, 1), planned_setting(2, 1, 2, 3)}) {
        setting.optimizer = optimizer;
        const mesh::Mesh mesh(setting.mesh, setting.ranks(), setting.order);
        std::int64_t elements = 0;
        for (int rank = 0; rank < setting.ranks(); ++rank) {
          const auto at = mesh.coordinates(rank);
          setting.pipeline.stage = at[mesh::Axis::kPp];
          const program::Program p = program::describe(arch, setting);
          for (const SavedFamily& family : saved_families(p))
            for (const SavedBox& saved : saved_boxes(p, at, family)) elements += saved.box.box.elements();
        }
        EXPECT_EQ(Bytes(4 * elements), plan::checkpoint_bytes(arch, setting)) << optimizer << " " << setting.ranks();
      }
}

// With eight times as many rows the number of slices is the same.
TEST(CheckpointSize, DoesNotGrowWithRows) {
  auto small = arch::preset("llama-tiny"), large = small;
  large.hidden *= 8, large.ffn *= 8, large.head_dim *= 8, large.vocabulary *= 8;
  for (const int zero : {0, 3}) {
    const Planned a = plan(small, planned_setting(3, 2, 1, zero)), b = plan(large, planned_setting(3, 2, 1, zero));
    EXPECT_GT(b.elements, 30 * a.elements);
    EXPECT_LE(b.slices, a.slices + a.slices / 10) << "the cut of a unit may fall elsewhere";
  }
}

}  // namespace
}  // namespace molen::launch
