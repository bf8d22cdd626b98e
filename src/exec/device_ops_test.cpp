// Tests compute ops on tensors that are not on the host: ATen's meta device has shapes and types but no memory. An op
// that reads a device's tensors from the host fails there by itself. Some of the meta device's operators accept a mix
// of device and host tensors, so every call is checked for such a mix.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>

#include "arch/architecture.h"
#include "exec/arena.h"
#include "exec/bind.h"
#include "exec/bind_context.h"
#include "model/context.h"
#include "program/build/build.h"
#include "program/text/text.h"

namespace molen::exec {
namespace {

const at::Device kMeta(at::kMeta);

arch::Architecture llama() {
  auto a = arch::preset("llama-tiny");
  a.layers = 2, a.hidden = 32, a.ffn = 48, a.heads = 4, a.kv_heads = 2, a.head_dim = 8, a.vocabulary = 71;
  a.max_sequence = 64;
  return a;
}

arch::Architecture qwen() {
  auto a = llama();
  a.qk_norm = arch::QkNorm::kHead;
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

// Returns whether an error says that libtorch 2.13 has no meta form of an operator; an op is tested up to that call.
bool lacks_meta(const std::string& error) {
  for (const char* op : {"_fused_adamw_", "abs.out", "addmm.dtype_out", "index_select.out", "mm.dtype_out",
                         "native_batch_norm", "native_layer_norm_backward"})
    if (error.starts_with(fmt::format("aten::{}: attempted to run this operator with Meta tensors", op))) return true;
  return false;
}

// Records, during its lifetime, the ATen calls that mix host tensors with others. An operator of a real device accepts
// such a mix only in copies and for numbers in the form of tensors.
class Mixtures {
 public:
  Mixtures() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(look).needsInputs(true))) {
    seen().clear();
  }
  ~Mixtures() { at::removeCallback(handle_); }
  Mixtures(const Mixtures&) = delete;
  Mixtures& operator=(const Mixtures&) = delete;
  static std::set<std::string>& seen() {
    static thread_local std::set<std::string> names;
    return names;
  }

 private:
  static std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& call) {
    bool host = false, other = false;
    const auto add = [&](const at::Tensor& t) {
      if (t.defined() && t.dim() > 0) (t.device().is_cpu() ? host : other) = true;
    };
    for (const c10::IValue& value : call.inputs())
      if (value.isTensor())
        add(value.toTensor());
      else if (value.isTensorList())
        for (const at::Tensor& t : value.toTensorVector()) add(t);
    const std::string name = call.name();
    if (host && other && name != "aten::copy_" && name != "aten::_to_copy") seen().insert(name);
    return nullptr;
  }

  at::CallbackHandle handle_;
};

bool computes(const program::Op& op) {
  return std::holds_alternative<program::Compute>(op) || std::holds_alternative<program::ZeroFill>(op) ||
         std::holds_alternative<program::SumSquares>(op) || std::holds_alternative<program::OptimizerStep>(op) ||
         std::holds_alternative<program::Cast>(op);
}

// Returns the names of the compute ops of rank 0 that ran to their end.
std::set<std::string> run_compute_ops(const program::Program& p) {
  std::vector<at::Tensor> buffers;
  for (const auto& b : p.buffers)
    buffers.push_back(at::empty({b.elements}, at::TensorOptions().dtype(to_aten(b.dtype)).device(kMeta)));
  const mesh::PerAxis first{};
  const BindContext context{p, first, [](program::Axis) { return nullptr; },
                            [&](int buffer) { return buffers.at(static_cast<std::size_t>(buffer)); }};
  std::set<std::string> ended;
  for (const auto& body : p.bodies)
    for (const auto& step : body.steps) {
      if (!computes(step.op)) continue;
      const StepInput input;
      StepState state;
      state.input = &input;
      RunState run(state);
      math::Scratch none;  // for the host's ops
      const Mixtures mixtures;
      try {
        bind(context, step)(run, none);
        run.require_declared(step, true);
        ended.insert(program::kind_of(step.op));
      } catch (const std::exception& error) {
        EXPECT_TRUE(lacks_meta(error.what()))
            << program::print_step(p, step) << ": " << std::string(error.what()).substr(0, 600);
      }
      EXPECT_TRUE(Mixtures::seen().empty()) << program::print_step(p, step) << ": " << *Mixtures::seen().begin();
    }
  return ended;
}

TEST(DeviceOps, TakeNothingOfTheHosts) {
  const c10::InferenceMode inference;
  // Some ops lack an operator of the meta device, and ATen would trace the C++ stack of each such failure, which took
  // most of this test's time.
  c10::SetStackTraceFetcher(std::function<std::string()>([] { return std::string(); }));
  const auto with = [](program::Setting s, const auto& change) {
    change(s);
    return s;
  };
  for (const DType compute : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    const auto plain = setting(compute);
    const auto write_scores_out = [](program::Setting& s) {
      s.other_kernels.emplace(arch::Part::kAttention, arch::Kernels("unfused"));
    };
    const auto gathered = with(plain, [](auto& s) { s.mesh[mesh::Axis::kCp] = 2; });
    const program::Setting settings[] = {plain,
                                         gathered,
                                         with(gathered, [](auto& s) { s.context_form = program::ContextForm::kRing; }),
                                         with(gathered, [](auto& s) { s.document_mask = true; }),
                                         with(plain, [](auto& s) { s.document_mask = true; }),
                                         with(plain, write_scores_out),
                                         with(with(plain, write_scores_out), [](auto& s) { s.document_mask = true; }),
                                         with(plain, [](auto& s) { s.mesh[mesh::Axis::kTp] = 2; }),
                                         with(plain, [](auto& s) {
                                           s.mesh[mesh::Axis::kDpShard] = 2, s.zero = 2;
                                           if (s.compute != DType::kF64) s.reduce = DType::kBF16;
                                         })};
    for (const auto& a : {llama(), qwen(), gpt(arch::Position::kLearned), gpt(arch::Position::kAlibi)})
      for (const auto& s : settings) {
        SCOPED_TRACE(fmt::format("{} {}, {}", a.name, name_of(compute), program::sharding_text(s)));
        const auto ended = run_compute_ops(program::build(a, s));
        EXPECT_EQ(ended.count("cast"), s.reduce == DType::kBF16 ? 1U : 0U);
        EXPECT_EQ(ended.count("backward qk_norm"), a.norms_qk() ? 1U : 0U);
        for (const char* kind :
             {"forward attention", "backward attention", "forward activation", "forward out_projection", "sum_squares"})
          EXPECT_TRUE(ended.count(kind)) << kind << " of " << fmt::format("{}", fmt::join(ended, ", "));
      }
  }
}

TEST(DeviceOps, MixedTensorsAreSeen) {
  const c10::InferenceMode inference;
  const at::Tensor device = at::empty({4, 4}, kMeta), host = at::ones({4, 4});
  const auto sees = [&](const auto& call) {
    const Mixtures mixtures;
    try {
      call();
    } catch (const std::exception&) {
    }
    return !Mixtures::seen().empty();
  };
  EXPECT_TRUE(sees([&] { device.mm(host); }));
  EXPECT_TRUE(sees([&] { device.add(host); }));
  EXPECT_TRUE(sees([&] { at::cat({device, host}); }));
  EXPECT_TRUE(sees([&] { device.masked_fill(host.gt(0), 0.0); }));
  EXPECT_TRUE(sees([&] {
    at::Tensor out = at::empty({4, 4});
    at::mul_out(out, device, device);
  }));
  EXPECT_FALSE(sees([&] { device.clone().copy_(host); }));
  EXPECT_FALSE(sees([&] { device.mul(2.0).add(at::scalar_tensor(2.0)); }));
  EXPECT_THROW(device.sum().item<double>(), std::exception);
}

}  // namespace
}  // namespace molen::exec
