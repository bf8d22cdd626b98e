#include "measure/calibration_programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "data/attended.h"
#include "program/build/build.h"
#include "program/parts/part.h"
#include "program/provenance/provenance.h"
#include "program/values/optimizer.h"
#include "sim/attended.h"

namespace molen::measure {
namespace {

struct Shape {
  std::int64_t hidden, ffn, heads, kv_heads, head_dim, vocabulary, batch, sequence, layers;
  std::int64_t experts = 0, per_token = 0, shared = 0;  // for sparse layers; ffn is then the width of an expert
};

// These shapes spread over the sizes that a CPU machine trains. No two sizes grow in step over the shapes, so that no
// two exponents of the fit are coupled.
constexpr Shape kShapes[] = {
    {128, 352, 4, 2, 32, 2048, 2, 128, 2},          {128, 512, 2, 1, 64, 8192, 8, 128, 2},
    {128, 256, 4, 2, 32, 3072, 4, 128, 2, 6, 2, 1}, {192, 512, 6, 2, 32, 4096, 4, 256, 2},
    {256, 704, 4, 2, 64, 16384, 4, 256, 2},         {256, 1024, 8, 8, 32, 4096, 1, 512, 2},
    {256, 640, 4, 4, 64, 12000, 8, 256, 1},         {256, 320, 4, 4, 32, 4096, 3, 256, 2, 8, 2, 2},
    {320, 896, 5, 5, 64, 6000, 2, 384, 2},          {384, 1024, 6, 2, 64, 16384, 2, 512, 2},
    {384, 448, 6, 2, 64, 8192, 2, 384, 2, 12, 4},   {384, 1536, 12, 4, 32, 24000, 8, 128, 1},
    {512, 1408, 8, 4, 64, 32000, 4, 256, 2},        {512, 1408, 8, 4, 64, 16384, 4, 512, 3},
    {512, 2048, 8, 8, 64, 8192, 1, 768, 2},         {640, 1728, 10, 5, 64, 20000, 2, 512, 1},
    {768, 3072, 12, 12, 64, 8192, 1, 1024, 1},
};

constexpr std::int64_t kLargestVocabulary = 32000;

arch::Architecture architecture(const Shape& s) {
  arch::Architecture a = arch::preset("llama-tiny");
  a.name = "calibration";
  a.hidden = s.hidden;
  a.ffn = s.ffn;
  a.heads = s.heads;
  a.kv_heads = s.kv_heads;
  a.head_dim = s.head_dim;
  a.vocabulary = s.vocabulary;
  a.layers = s.layers;
  a.max_sequence = 2048;
  if (s.experts > 0)
    a.experts = arch::Experts{.count = s.experts, .per_token = s.per_token, .ffn = s.ffn, .shared = s.shared};
  if (s.batch >= 4) a.qk_norm = arch::QkNorm::kHead;  // for the kinds of ops that only models with these norms have
  a.tied = s.batch == 2 || s.batch == 8;              // tied models clear their table's gradient, untied ones do not
  return a;
}

// Returns whether a setting can compute the ops of a model: sparse layers are not implemented in all types.
bool computed(const arch::Architecture& a, const program::Setting& s) {
  return std::ranges::none_of(arch::parts_in_order(a), [&](arch::Part part) {
    const program::KernelRequest request{
        .compute = s.compute, .head_dim = a.head_dim, .documents = s.document_mask, .context_ranks = s.context_ranks()};
    return program::kernels_refused(s.kernels_of(part), part, request).has_value();
  });
}

// A way to run the measured models, for the kinds of ops that only this way has.
struct TrialKind {
  std::string text;                          // " on expert ranks"
  std::function<bool(const Shape&)> covers;  // whether a shape is measured in this way
  std::function<void(arch::Architecture&, program::Setting&)> change;
  bool once = true;  // CalibrationProgram::once
  std::int64_t documents = 1;
};

bool is_dense(const Shape& shape) {
  return shape.experts == 0;
}
bool is_sparse(const Shape& shape) {
  return shape.experts > 0;
}
// Fits extrapolate by power laws, so a few small models suffice for kinds whose cost depends on few sizes.
bool is_small(const Shape& shape) {
  return is_dense(shape) && shape.layers == 2 && shape.hidden <= 192;
}
bool is_dense_of_two_layers(const Shape& shape) {
  return is_dense(shape) && shape.layers == 2 && shape.hidden <= 256;
}
bool is_smallest(const Shape& shape) {
  return is_small(shape) && shape.hidden <= 128;
}

std::int64_t multiple_of(std::int64_t ranks, std::int64_t count) {
  return (count + ranks - 1) / ranks * ranks;
}

void share_out(program::Setting& s, mesh::Axis axis, int ranks) {
  s.mesh = mesh::kOne;
  s.mesh[axis] = ranks;
}

void share_sequences(program::Setting& s, int ranks) {
  share_out(s, mesh::Axis::kCp, ranks);
  s.sequence = multiple_of(2 * ranks, s.sequence);
}

// Each tensor rank has as many heads, columns and tokens of the vocabulary.
void share_layers(arch::Architecture& a, program::Setting& s, int ranks) {
  share_out(s, mesh::Axis::kTp, ranks);
  a.heads = a.kv_heads = multiple_of(ranks, a.heads);
  a.ffn = multiple_of(ranks, a.ffn);
  a.vocabulary = multiple_of(ranks, a.vocabulary);
}

void put_in_stages(arch::Architecture& a, program::Setting& s, int ranks, program::ScheduleKind schedule) {
  share_out(s, mesh::Axis::kPp, ranks);
  s.pipeline = program::pipeline_of(schedule, 1);
  a.layers = std::max<std::int64_t>(a.layers, ranks);
}

void add_axes(std::vector<TrialKind>& kinds, const CalibrateOptions& o, int ranks) {
  kinds.push_back({" on expert ranks", is_sparse,
                   [=](arch::Architecture& a, program::Setting& s) {
                     share_out(s, mesh::Axis::kEp, ranks);
                     a.experts->count = multiple_of(ranks, a.experts->count);
                   },
                   false});
  kinds.push_back({" on context ranks", is_sparse,
                   [=](arch::Architecture& a, program::Setting& s) {
                     share_sequences(s, ranks);
                     a.experts->capacity = 1.0;  // these ranks apply it together
                   },
                   false});
  kinds.push_back({" in a ring", is_small, [=](arch::Architecture&, program::Setting& s) {
                     share_sequences(s, ranks);
                     s.context_form = program::ContextForm::kRing;
                   }});
  for (const bool sharded : {false, true})
    kinds.push_back({fmt::format(" on tensor ranks{}", sharded ? " with sharded rows" : ""), is_small,
                     [=](arch::Architecture& a, program::Setting& s) {
                       share_layers(a, s, ranks);
                       s.sequence_parallel = sharded;
                     }});
  for (const auto schedule : {program::ScheduleKind::k1f1b, program::ScheduleKind::kZbH1})
    kinds.push_back({fmt::format(" in stages by {}", name_of(schedule)), is_small,
                     [=](arch::Architecture& a, program::Setting& s) { put_in_stages(a, s, ranks, schedule); }});
  // Halves of backwards that dense models do not have, or not with the usual kernels.
  const auto halves = program::ScheduleKind::kZbH1;
  kinds.push_back({" in stages by halves", is_sparse,
                   [=](arch::Architecture& a, program::Setting& s) { put_in_stages(a, s, ranks, halves); }});
  if (!o.other_kernels.empty())
    kinds.push_back(
        {" in stages by halves, by other kernels", is_smallest, [=, &o](arch::Architecture& a, program::Setting& s) {
           put_in_stages(a, s, ranks, halves);
           s.other_kernels = o.other_kernels;
         }});
}

std::vector<TrialKind> trial_kinds(const CalibrateOptions& o, int ranks) {
  const auto everything = [](const Shape&) { return true; };
  std::vector<TrialKind> kinds{{"", everything, [](arch::Architecture&, program::Setting&) {}, false}};
  if (!o.other_kernels.empty())
    kinds.push_back({" by other kernels", is_dense,
                     [&](arch::Architecture&, program::Setting& s) { s.other_kernels = o.other_kernels; }, false});
  for (const program::Optimizer& optimizer : program::optimizers()) {
    if (optimizer.name == program::Setting().optimizer) continue;
    const auto chosen = [&](arch::Architecture&, program::Setting& s) { s.optimizer = optimizer.name; };
    // Products of matrices cost less for each FLOP the larger they are.
    kinds.push_back({fmt::format(" with {}", optimizer.name),
                     optimizer.whole_matrices ? is_dense_of_two_layers : is_small, chosen});
    if (ranks == 1 || !optimizer.has_whole()) continue;
    kinds.push_back({fmt::format(" on tensor ranks with {}", optimizer.name), is_smallest,
                     [=](arch::Architecture& a, program::Setting& s) { share_layers(a, s, ranks), chosen(a, s); }});
  }
  // For copies between the host and the device, which is the host here, and sums on the host.
  kinds.push_back({" with all values on the host", is_small, [=](arch::Architecture&, program::Setting& s) {
                     s.zero = ranks > 1 ? 3 : 0;
                     s.offload = {true, true, true, true};
                   }});
  const auto masked = [](arch::Architecture&, program::Setting& s) { s.document_mask = true; };
  for (const std::int64_t documents : {1, 4})
    kinds.push_back({fmt::format(" with {} within a mask", counted(documents, "document")), is_dense_of_two_layers,
                     masked, true, documents});
  if (ranks == 1) return kinds;
  // ZeRO has collectives and sums of its own. The bytes of a collective are its only feature, so the narrow shapes and
  // the largest table suffice.
  kinds.push_back({" in ZeRO-2",
                   [](const Shape& shape) { return shape.hidden <= 256 || shape.vocabulary == kLargestVocabulary; },
                   [](arch::Architecture&, program::Setting& s) { s.zero = 2; }, false});
  if (o.compute != DType::kF64)
    for (const DType type : {DType::kBF16, DType::kF16})
      for (const int zero : {0, 2})
        kinds.push_back({fmt::format(" with gradients in {}, ZeRO-{}", name_of(type), zero), is_smallest,
                         [=](arch::Architecture&, program::Setting& s) {
                           s.zero = zero;
                           s.reduce = type;
                         }});
  add_axes(kinds, o, ranks);
  return kinds;
}

program::Setting trial_setting(const CalibrateOptions& o, const Shape& shape, int ranks) {
  program::Setting setting;
  setting.mesh[mesh::Axis::kDpShard] = ranks;
  setting.micro_batch = shape.batch;
  setting.sequence = shape.sequence;
  setting.compute = o.compute;
  setting.master = o.compute == DType::kF64 ? DType::kF64 : DType::kF32;
  setting.reduce = setting.master;
  setting.kernels = o.kernels;
  setting.threads = o.threads;
  return setting;
}

// Leaves this share of their FLOPs to the ops that a document mask acts on.
void leave_to_attention(program::Program& p, double share) {
  std::vector<program::Program> programs{std::move(p)};
  sim::attend_within_documents(programs, share, false);
  p = std::move(programs.front());
}

}  // namespace

std::vector<std::int32_t> equal_documents(std::int64_t sequence, std::int64_t documents) {
  const std::int64_t length = std::max<std::int64_t>(1, sequence / documents);
  std::vector<std::int32_t> starts(static_cast<std::size_t>(sequence));
  for (std::int64_t i = 0; i < sequence; ++i)
    starts[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(std::min(i / length, documents - 1) * length);
  return starts;
}

std::int64_t calibrated_width(std::int64_t hidden) {
  for (const Shape& shape : kShapes)
    if (shape.hidden >= hidden) return shape.hidden;
  return std::rbegin(kShapes)->hidden;
}

std::vector<CalibrationProgram> calibration_programs(const CalibrateOptions& o, int ranks, int rank) {
  std::vector<CalibrationProgram> programs;
  const std::int64_t narrowest = std::begin(kShapes)->hidden;
  if (o.widest > 0 && o.widest < narrowest)
    throw UsageError("--widest: {}; the narrowest shape is {} wide", o.widest, narrowest);
  const std::int64_t widest = o.widest == 0 && o.kernels == arch::Kernels::kReference ? kWidestReference : o.widest;
  const std::vector<TrialKind> kinds = trial_kinds(o, ranks);
  for (const Shape& shape : kShapes) {
    if (widest > 0 && shape.hidden > widest) continue;
    for (const TrialKind& kind : kinds) {
      if (!kind.covers(shape)) continue;
      arch::Architecture arch = architecture(shape);
      program::Setting setting = trial_setting(o, shape, ranks);
      kind.change(arch, setting);
      setting.head_chunk = arch::head_chunk(arch.vocabulary);
      // The second micro-batch adds to the gradients that the first one overwrites.
      setting.global_batch = 2 * setting.micro_batch * setting.data_ranks();
      arch.max_sequence = std::max(arch.max_sequence, setting.sequence);
      if (!computed(arch, setting)) continue;
      programs.push_back({program::build(arch, program::at_rank(setting, rank)), kind.once,
                          fmt::format("d {} {}ffn {} vocabulary {} batch {} x {}{}", shape.hidden,
                                      shape.experts > 0 ? fmt::format("{} experts of ", shape.experts) : "", shape.ffn,
                                      shape.vocabulary, shape.batch, setting.sequence, kind.text),
                          kind.documents});
      program::require_sound(programs.back().program, "calibration");
      if (setting.document_mask)
        leave_to_attention(programs.back().program,
                           data::attended_share(equal_documents(setting.sequence, kind.documents)));
    }
  }
  return programs;
}

}  // namespace molen::measure
