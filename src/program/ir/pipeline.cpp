#include "program/ir/pipeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "program/ir/program.h"
#include "program/values/costs.h"
#include "program/values/of_setting.h"

namespace molen::program {
namespace {

double flops_of(const arch::Architecture& local, const Setting& s, arch::Part part) {
  return forward_flops(local, traits_of(s), part).value;
}

}  // namespace

std::string_view name_of(ScheduleKind kind) {
  static constexpr std::array<std::string_view, 6> kNames{"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "file"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string_view name_of(Placement placement) {
  return placement == Placement::kV ? "v" : "interleaved";
}

int global_stage_of(Placement placement, int stages, int stage, int chunk) {
  return placement == Placement::kV && chunk == 1 ? 2 * stages - 1 - stage : chunk * stages + stage;
}

int stage_of(Placement placement, int stages, int global_stage) {
  return placement == Placement::kV && global_stage >= stages ? 2 * stages - 1 - global_stage : global_stage % stages;
}

std::vector<std::int64_t> balanced_layers(const arch::Architecture& arch, const Setting& setting, int global_stages) {
  const arch::Architecture local = arch::tensor_local(arch, setting.tensor_ranks());
  // Every layer, dense or sparse, counts with the mean FLOPs of a layer.
  double layer = 0.0;
  for (const auto& [l, count] :
       {std::pair{std::int64_t{0}, arch.layers - arch.sparse_layers()}, {arch.layers - 1, arch.sparse_layers()}})
    for (const arch::Part part : arch::parts_of_layer(arch, l))
      layer += flops_of(local, setting, part) * (static_cast<double>(count) / static_cast<double>(arch.layers));
  // Loads are in units of layers. An embedding has no products. The cost of its copies and of the update of its table
  // therefore decides only between stages that are otherwise equal. (Likewise, in Llama 3 the first and the last stage
  // have one layer less; Grattafiori et al. 2024.)
  double head = 0.0;
  for (const arch::Part part : arch::parts_of_head(arch, false)) head += flops_of(local, setting, part) / layer;
  const auto count = static_cast<std::size_t>(global_stages);
  MOLEN_CHECK(global_stages <= arch.layers, "{} layers for {} chunks", arch.layers, global_stages);
  // Each stage first gets one layer, because a chunk without layers has no place to keep its input. Each remaining
  // layer then goes to the stage with the smallest load.
  std::vector<std::int64_t> layers(count, 1);
  for (std::int64_t left = arch.layers - global_stages; left > 0; --left) {
    const auto load = [&](std::size_t g) { return static_cast<double>(layers[g]) + (g + 1 == count ? head : 0.0); };
    std::size_t lightest = count - 1;
    for (std::size_t g = count - 1; g-- > 0;)
      if (load(g) < load(lightest) || (g > 0 && load(g) == load(lightest))) lightest = g;
    ++layers[lightest];
  }
  return layers;
}

std::vector<Chunk> chunks_of(const arch::Architecture& arch, const Setting& s) {
  if (!s.pipelined()) return {{0, 0, arch.layers, true, true}};
  const Pipeline& pipeline = s.pipeline;
  if (std::int64_t{s.stages()} * pipeline.chunks > arch.layers)
    throw UsageError("parallel.pipeline: {} stages x {} chunks need a layer each; the model has {}", s.stages(),
                     pipeline.chunks, arch.layers);
  const int global = s.stages() * pipeline.chunks;
  const std::vector<std::int64_t> layers = pipeline.layers.empty() ? balanced_layers(arch, s, global) : pipeline.layers;
  if (static_cast<int>(layers.size()) != global)
    throw UsageError("layers of {} chunks for a pipeline of {}", layers.size(), global);
  if (*std::min_element(layers.begin(), layers.end()) < 1 ||
      std::accumulate(layers.begin(), layers.end(), std::int64_t{0}) != arch.layers)
    throw UsageError("the chunks of the pipeline need at least a layer each, and {} in all", arch.layers);
  std::vector<Chunk> chunks;
  for (int c = 0; c < pipeline.chunks; ++c) {
    const int g = global_stage_of(pipeline.placement, s.stages(), pipeline.stage, c);
    const auto first = std::accumulate(layers.begin(), layers.begin() + g, std::int64_t{0});
    chunks.push_back({g, first, first + layers[static_cast<std::size_t>(g)], g == 0, g + 1 == global});
  }
  return chunks;
}

}  // namespace molen::program
