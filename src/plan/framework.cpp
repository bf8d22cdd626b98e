#include "plan/framework.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sim/attended.h"

namespace molen::plan {
namespace {

constexpr std::int64_t kTensorPieces = 4;  // of sharded rows, where a framework overlaps their exchange

// Communication over an axis that does not run beside compute is work of the compute stream.
void expose(program::Program& p, program::Stream stream) {
  for (program::Body& body : p.bodies)
    for (program::Step& step : body.steps)
      if (step.stream == stream) step.stream = program::Stream::kCompute;
}

// Other programs post a stage's sends and receives together, so that no receive queues behind a send. Receives
// therefore get a stream of their own: that of expert ranks, which these programs do not have.
void receive_beside_sends(program::Program& p) {
  for (program::Body& body : p.bodies)
    for (program::Step& step : body.steps)
      if (std::holds_alternative<program::Receive>(step.op)) step.stream = program::Stream::kEpComm;
}

// The keys of [framework], and what molen does instead.
constexpr std::pair<const char*, const char*> kOfMolen[] = {
    {"framework.kind", "has a program of its own"},
    {"framework.gradients", "keeps gradients in fp32"},
    {"framework.overlap", "runs beside compute what the streams of its program say"},
    {"framework.products", "has no products in fp8"},
    {"framework.saved_activations", "keeps what its own backward reads"},
    {"framework.compiled", "fuses element-wise ops by kernels of its own"}};

// `reason`: from what molen does instead of a key.
template <class Reason>
void refuse_each(const config::Config& c, Reason&& reason) {
  config::Problems problems;
  const config::Config plain;
  for (const auto& [key, of_molen] : kOfMolen) {
    const config::Field& field = config::field(key);
    if (field.write(c) != field.write(plain)) problems.add("{}: {}", c.where(key), reason(of_molen));
  }
  problems.raise();
}

bool cuts_rows(const program::Setting& s) {
  return s.sequence_parallel && s.sequence >= kTensorPieces * s.mesh[mesh::Axis::kTp];
}

// Refuses keys for which no framework's costs or memory are known.
void refuse_beside(const config::Config& c, const arch::Architecture& arch, const program::Setting& s) {
  const auto refuse = [&](bool wanted, const char* key, const std::string& why) {
    if (wanted) throw UsageError("{}: {}, {}", c.where(key), framework_text("with ", c.framework.kind), why);
  };
  const auto& p = c.parallel;
  refuse(size_of(s.compute) != 2, "precision.compute", "costs and memory are known for bf16 and fp16 alone");
  refuse(c.framework.gradients == "16-bit" && s.reduce == DType::kF32 && c.precision.reduce != "auto",
         "precision.reduce", "framework.gradients = \"16-bit\" is also the type in which gradients are reduced");
  refuse(p.tensor_chunks > 1, "parallel.tensor_chunks",
         "framework.overlap = [\"tp\"] says that products run in pieces");
  refuse(p.pipeline > 1 && p.schedule != "1f1b" && p.schedule != "interleaved", "parallel.schedule",
         "memory is known for 1f1b and interleaved alone");
  refuse(s.own_over_dp, "parallel.zero",
         "optimizer states over all copies of hybrid sharding are those of no known framework; leave the key out");
  refuse(p.recompute.mode == config::Recompute::Mode::kBudget, "parallel.recompute",
         "a budget would be one of molen's own memory plan; name what is computed again");
  refuse(!p.offload.empty(), "parallel.offload", "memory is known without offload alone");
  refuse(arch.sparse(), c.model.experts ? "model.experts" : "model.preset",
         "costs and memory are known for dense layers alone, and this model has experts");
  refuse(c.math.flash_attention && !sim::heads_in_tiles(arch), "math.flash_attention",
         "attention in tiles needs heads of at most 256 elements, a multiple of 8, and no ALiBi; set "
         "math.flash_attention = false, with which scores are written out");
  refuse(c.data.document_mask, "data.document_mask", "costs are known for attention over whole sequences alone");
  // The ranks of each axis, with those of context parallelism, over which gradients are reduced too.
  const std::pair<const char*, int> axes[] = {{"tp", s.mesh[mesh::Axis::kTp]},
                                              {"pp", s.mesh[mesh::Axis::kPp]},
                                              {"dp", s.data_ranks() * s.mesh[mesh::Axis::kCp]}};
  const auto overlaps = [&](const char* axis) { return std::ranges::count(c.framework.overlap, axis) > 0; };
  for (const auto& [axis, ranks] : axes)
    refuse(overlaps(axis) && ranks == 1, "framework.overlap",
           fmt::format("\"{}\" has no effect, because the axis has one rank; leave it out", axis));
  refuse(overlaps("tp") && !cuts_rows(s), "framework.overlap",
         fmt::format("exchanges of tensor ranks overlap in pieces of sharded rows: \"tp\" needs parallel.sequence = "
                     "true and sequences of {} tokens or more",
                     kTensorPieces * s.mesh[mesh::Axis::kTp]));
}

}  // namespace

int zero_of(int asked, int stages) {
  return asked == 3 && stages > 1 ? 1 : asked;
}

std::optional<FrameworkSetting> framework_of(const config::Config& c, const arch::Architecture& arch,
                                             const program::Setting& s) {
  const config::FrameworkTable& f = c.framework;
  if (f.kind == "molen") return std::nullopt;
  refuse_beside(c, arch, s);
  FrameworkSetting framework;
  framework.gradients_16bit = f.gradients == "16-bit";
  framework.fp8 = f.products == "fp8";
  framework.compiled = f.compiled;
  framework.flash_attention = c.math.flash_attention;
  framework.saves_activations = f.saved_activations == "autograd";
  framework.overlap = {f.overlap.begin(), f.overlap.end()};
  framework.zero = zero_of(s.zero, s.mesh[mesh::Axis::kPp]);
  return framework;
}

std::string framework_text(const std::string& before, const std::string& kind) {
  return kind == "molen" ? "" : fmt::format("{}framework.kind = \"{}\"", before, kind);
}

void refuse_framework(const config::Config& c, const std::string& why) {
  refuse_each(c, [&](const char*) { return why; });
}

void require_molen(const config::Config& c, const std::string& what) {
  refuse_each(c, [&](const char* of_molen) {
    return fmt::format(
        "{} molen itself, which {}; remove the key, or predict the framework with `molen simulate --cluster NAME`",
        what, of_molen);
  });
}

void set_framework(const FrameworkSetting& f, program::Setting& s) {
  using mesh::Axis;
  s.zero = f.zero;
  if (s.zero < 2) {  // every rank has all of its stage's parameters
    s.mesh[Axis::kDpReplicate] *= s.mesh[Axis::kDpShard];
    s.mesh[Axis::kDpShard] = 1;
    s.own_over_dp = false;
  }
  if (s.zero >= 2 && s.mesh[Axis::kDpShard] * s.mesh[Axis::kCp] == 1) s.zero = 0;  // one rank has nothing to shard over
  if (f.overlaps("tp") && cuts_rows(s)) s.tensor_chunks = kTensorPieces;
  if (f.gradients_16bit) s.reduce = DType::kBF16;
  s.head_chunk = s.tokens();  // other programs compute all logits of a micro-batch at once
}

// Gathers and reductions of sharded gradients that do not run beside compute are work of the compute stream. Messages
// stay on their stream: on that of compute, a sender would also wait while the receiver still computes.
void set_streams(const FrameworkSetting& f, std::vector<program::Program>& stages) {
  for (program::Program& p : stages) {
    if (!f.overlaps("dp") && f.zero >= 2) expose(p, program::Stream::kDpComm);
    receive_beside_sends(p);
  }
}

sim::Framework costs_of(const FrameworkSetting& f) {
  return {.flash_attention = f.flash_attention,
          .fp8 = f.fp8,
          .compiled = f.compiled,
          .messages_beside_compute = f.overlaps("pp"),
          // Whoever keeps whole gradients reduces them after the last micro-batch.
          .reduces_last = !f.overlaps("dp") && f.zero < 2,
          .gathers_in_forward = f.overlaps("dp") && f.zero == 1,
          // Systems that wait for fully sharded parameters gather matrix by matrix.
          .gathers_matrices = !f.overlaps("dp") && f.zero == 3,
          .pieces_at_once = true,
          .whole_logits = true,
          .whole_layers_again = !f.compiled,  // a compiler drops what nobody reads
          .one_at_a_time = false,
          .between_steps = true};
}

}  // namespace molen::plan
