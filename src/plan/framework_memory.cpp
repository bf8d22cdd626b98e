#include "plan/framework_memory.h"

#include <algorithm>

#include "plan/memory_overheads.h"
#include "program/memory/memory.h"

namespace molen::plan {
namespace {

// The share by which an allocator's blocks exceed what is asked of it is fitted to the 36 runs of BLOOM's chronicles
// alone: their median prediction is 3 % too low.
constexpr double kFragments = 0.25;

// For each logit, a loss in separate kernels holds 14 bytes where its backward begins: the logits in 16 bits, the log
// of the softmax in fp32, and the gradients of both steps in fp32. A fused loss holds the logits and their gradient, 4
// bytes. molen's head holds 2.
constexpr double kMoreOfLogit = 12.0, kMoreOfLogitFused = 2.0;

// Bytes that autograd keeps of the result of a part, and molen does not.
struct Extra {
  arch::Part part;
  double bytes;
};

// Returns what autograd keeps of a layer and molen does not, of one micro-batch on one rank. For GPT's layer,
// Korthikanti et al. 2022 (section 4.1) count 34 bytes for each token and element of the residual stream, and 5 for
// each score of unfused attention; molen keeps 28 of the former: it computes the outputs of norms again and has no
// dropout, whose masks are 2 of the 34 and which runs seldom say they have. A gated MLP also keeps the result of its
// activation function. Context ranks have the scores of their own tokens and the keys of the whole sequence.
std::vector<Extra> extras_of_layer(const FrameworkSetting& f, const program::Program& p) {
  if (!f.saves_activations) return {};
  using arch::Part;
  const program::Setting& s = p.setting;
  const double tokens = static_cast<double>(s.tokens()), hidden = static_cast<double>(p.arch.hidden),
               ffn = static_cast<double>(p.arch.ffn), ranks = s.mesh[mesh::Axis::kTp];
  const double rows = s.sharded_rows() ? tokens / ranks : tokens;
  std::vector<Extra> extras{{Part::kNormQkv, 2.0 * rows * hidden}, {Part::kNormUp, 2.0 * rows * hidden}};
  if (p.arch.activation == arch::Activation::kSwiGlu) extras.push_back({Part::kActivation, 2.0 * tokens * ffn / ranks});
  if (!f.flash_attention)
    extras.push_back(
        {Part::kAttention, 5.0 * static_cast<double>(p.arch.heads) / ranks * tokens * static_cast<double>(s.sequence)});
  return extras;
}

double layers_of(const program::Program& p) {
  double layers = 0.0;
  for (const program::Chunk& chunk : p.chunks) layers += static_cast<double>(chunk.end - chunk.first);
  return layers;
}

// The micro-batches whose activations a stage keeps at once (Narayanan et al. 2021, section 2.2).
double micro_batches_in_flight(const program::Setting& s) {
  const double stages = s.stages(), chunks = s.pipeline.chunks;
  double micro_batches = stages - s.pipeline.stage;
  if (chunks > 1) micro_batches = stages * (1.0 + (stages - 1.0) / (stages * chunks));
  return std::min(micro_batches, static_cast<double>(s.micro_batches()));
}

// Returns what autograd keeps on a stage and molen does not. A layer keeps the results of the parts that it does not
// compute again. Where no layer of the stage keeps them, the layer whose backward runs has them; where some do, one of
// them has given its own back by then.
double extra_of_stage(const FrameworkSetting& f, const program::Program& p) {
  double kept = 0.0, again = 0.0;
  for (const auto& [part, bytes] : extras_of_layer(f, p)) {
    std::int64_t layers = 0;
    for (const program::Chunk& chunk : p.chunks)
      for (std::int64_t layer = chunk.first; layer < chunk.end; ++layer) layers += !p.setting.recompute.in(part, layer);
    (layers > 0 ? kept : again) += bytes * static_cast<double>(std::max<std::int64_t>(1, layers));
  }
  return micro_batches_in_flight(p.setting) * kept + again;
}

double parameters_of(const program::Program& p) {
  double elements = 0.0;
  for (const program::Unit& unit : p.units) elements += static_cast<double>(unit.elements);
  return elements;
}

// Bytes of parameters and gradients that the framework does not have: molen keeps gradients in fp32, and weights in 16
// bits beside the fp32 ones where the framework's sharding gathers them from fp32.
double fewer_of_state(const FrameworkSetting& f, const program::Program& p) {
  const program::Setting& s = p.setting;
  const double parameters = parameters_of(p), shards = s.shards();
  if (s.zero >= 3) return 2.0 * parameters / shards;
  return f.gradients_16bit ? 2.0 * parameters / (s.zero == 2 ? shards : 1.0) : 0.0;
}

double of_stage(const FrameworkSetting& f, const program::Program& p, double more_of_logit) {
  const double planned = static_cast<double>(program::planned_peak(p).device.value);
  const program::Setting& s = p.setting;
  const bool last = s.pipeline.stage + 1 == s.stages();
  const auto vocabulary = static_cast<double>(f.vocabulary > 0 ? f.vocabulary : p.arch.vocabulary);
  const double logits = last ? static_cast<double>(s.tokens()) * vocabulary / s.mesh[mesh::Axis::kTp] : 0.0;
  return planned + extra_of_stage(f, p) + more_of_logit * logits - fewer_of_state(f, p);
}

}  // namespace

FrameworkMemory memory_of(const FrameworkSetting& framework, const std::vector<program::Program>& stages,
                          double capacity) {
  FrameworkMemory m;
  double least = 0.0, most_layers = 0.0;
  // The first stages keep the most micro-batches, the first two have the parameters that the others have, and the last
  // one has the logits. So a stage between them needs no more than an earlier one, if it has no more layers.
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (i >= 2 && i + 1 < stages.size() && layers_of(stages[i]) <= most_layers) continue;
    most_layers = std::max(most_layers, layers_of(stages[i]));
    m.allocator = std::max(m.allocator, of_stage(framework, stages[i], kMoreOfLogit));
    least = std::max(least, of_stage(framework, stages[i], kMoreOfLogitFused));
  }
  // A pipeline also has groups of all ranks of a replica and of the two ends.
  using mesh::Axis;
  const mesh::PerAxis& sizes = stages.front().setting.mesh;
  const int communicators = 1 + (sizes[Axis::kTp] > 1) + 3 * (sizes[Axis::kPp] > 1) +
                            (sizes[Axis::kDpReplicate] * sizes[Axis::kDpShard] > 1) + (sizes[Axis::kCp] > 1);
  const auto others = static_cast<double>(memory_overheads(communicators).total().value);
  m.fits = least + others <= capacity;
  m.device = m.allocator * (1.0 + kFragments) + others;
  if (!m.fits) return m;
  // An allocator gives its fragments back before it fails, and whoever runs has a loss that fits.
  m.device = std::min(m.device, capacity);
  m.allocator = std::min(m.allocator, capacity - others);
  return m;
}

}  // namespace molen::plan
