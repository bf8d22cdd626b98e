// Ops that compute on tensors that are not the host's: ATen's meta device has shapes and types and no memory, so that
// an op which mixes a device's tensors with the host's, or reads them from the host, fails here.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>

#include "arch/architecture.h"
#include "exec/arena.h"
#include "exec/bind.h"
#include "exec/bind_context.h"
#include "model/context.h"
#include "program/build.h"
#include "program/text.h"

namespace molen::exec {
namespace {

const at::Device kMeta(at::kMeta);

arch::Architecture llama() {
  auto a = arch::preset("llama-tiny");
  a.layers = 2, a.hidden = 32, a.ffn = 48, a.heads = 4, a.kv_heads = 2, a.head_dim = 8, a.vocabulary = 71;
  a.max_sequence = 64;
  return a;
}
arch::Architecture gpt(arch::Position position) {
  auto a = llama();
  a.family = arch::Family::kGpt, a.norm = arch::Norm::kLayer, a.position = position;
  a.activation = arch::Activation::kGeluTanh, a.kv_heads = a.heads, a.biases = true, a.tied = true;
  return a;
}

program::Setting setting(DType compute) {
  program::Setting s;
  s.global_batch = 4, s.micro_batch = 2, s.sequence = 24;
  s.compute = compute;
  s.kernels = arch::Kernels::kAten;
  s.head_chunk = 64;
  return s;
}

// What libtorch 2.13 has no meta form of: an op that comes to it is seen up to there.
bool lacks_meta(const std::string& error) {
  for (const char* op : {"_fused_adamw_", "abs.out", "addmm.dtype_out", "index_select.out", "mm.dtype_out",
                         "native_batch_norm", "native_layer_norm_backward"})
    if (error.starts_with(fmt::format("aten::{}: attempted to run this operator with Meta tensors", op))) return true;
  return false;
}

bool computes(const program::Op& op) {
  return std::holds_alternative<program::Compute>(op) || std::holds_alternative<program::ZeroFill>(op) ||
         std::holds_alternative<program::SumSquares>(op) || std::holds_alternative<program::OptimizerStep>(op) ||
         std::holds_alternative<program::Cast>(op);
}

// Which compute ops of rank 0 ran to their end.
std::set<std::string> run_compute_ops(const program::Program& p) {
  const auto& s = p.setting;
  std::vector<at::Tensor> buffers;
  for (const auto& b : p.buffers)
    buffers.push_back(at::empty({b.elements}, at::TensorOptions().dtype(to_aten(b.dtype)).device(kMeta)));
  const mesh::PerAxis first{};
  const auto positions = positions_of(s, first);
  const at::ScalarType table = s.compute == DType::kF64 ? at::kDouble : at::kFloat;
  const std::vector<model::RopeTable> rope{positions.empty() ? model::make_rope_table(p.arch, s.sequence, table, kMeta)
                                                             : model::make_rope_table(p.arch, positions, table, kMeta)};
  const BindContext context{p, first, [](program::Axis) { return nullptr; },
                            [&](int buffer) { return buffers.at(static_cast<std::size_t>(buffer)); }, rope};
  std::set<std::string> ended;
  for (const auto& body : p.bodies)
    for (const auto& step : body.steps) {
      if (!computes(step.op)) continue;
      const StepInput input;
      RunState run;
      run.input = &input;
      math::Scratch none;  // of the host's
      try {
        bind(context, step)(run, none);
        ended.insert(program::kind_of(step.op));
      } catch (const std::exception& error) {
        EXPECT_TRUE(lacks_meta(error.what()))
            << program::print_step(p, step) << ": " << std::string(error.what()).substr(0, 600);
      }
    }
  return ended;
}

TEST(DeviceOps, TakeNothingOfTheHosts) {
  const c10::InferenceMode inference;
  const auto with = [](program::Setting s, const auto& change) {
    change(s);
    return s;
  };
  for (const DType compute : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    const auto plain = setting(compute);
    const auto gathered = with(plain, [](auto& s) { s.mesh[mesh::Axis::kCp] = 2; });
    const program::Setting settings[] = {plain,
                                         gathered,
                                         with(gathered, [](auto& s) { s.context_form = program::ContextForm::kRing; }),
                                         with(gathered, [](auto& s) { s.document_mask = true; }),
                                         with(plain, [](auto& s) { s.document_mask = true; }),
                                         with(plain, [](auto& s) { s.mesh[mesh::Axis::kTp] = 2; }),
                                         with(plain, [](auto& s) {
                                           s.mesh[mesh::Axis::kDpShard] = 2, s.zero = 2;
                                           if (s.compute != DType::kF64) s.reduce = DType::kBF16;
                                         })};
    for (const auto& a : {llama(), gpt(arch::Position::kLearned), gpt(arch::Position::kAlibi)})
      for (const auto& s : settings) {
        SCOPED_TRACE(fmt::format("{} {}, {}", a.name, name_of(compute), program::sharding_text(s)));
        const auto ended = run_compute_ops(program::build(a, s));
        EXPECT_EQ(ended.count("cast"), s.reduce == DType::kBF16 ? 1U : 0U);
        for (const char* kind :
             {"forward attention", "backward attention", "forward activation", "forward out_projection", "sum_squares"})
          EXPECT_TRUE(ended.count(kind)) << kind << " of " << fmt::format("{}", fmt::join(ended, ", "));
      }
  }
}

// What the test above is worth: of an op that is handed a tensor of the host's, ATen says so.
TEST(DeviceOps, MixedTensorsAreRefused) {
  const c10::InferenceMode inference;
  EXPECT_THROW(at::empty({4}, kMeta).add_(at::ones({4})), c10::Error);
}

}  // namespace
}  // namespace molen::exec
