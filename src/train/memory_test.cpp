// The plan beside what runs: the scratch of each op and the peak, for ATen's kernels too; and that a run repeats bit
// for bit.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <thread>

#include "exec/executor.h"
#include "program/build.h"
#include "program/text.h"
#include "train/init.h"

namespace molen::train {
namespace {

program::Setting one_rank(DType compute, arch::Kernels kernels, std::int64_t batch, std::int64_t sequence,
                          std::int64_t vocabulary) {
  program::Setting s;
  s.global_batch = s.micro_batch = batch;
  s.sequence = sequence;
  s.compute = compute;
  s.kernels = kernels;
  s.threads = 2;
  s.head_chunk = arch::head_chunk(vocabulary);
  return s;
}

struct Figures {
  double loss = 0, grad_norm = 0;
  bool operator==(const Figures& o) const {
    return std::bit_cast<std::uint64_t>(loss) == std::bit_cast<std::uint64_t>(o.loss) &&
           std::bit_cast<std::uint64_t>(grad_norm) == std::bit_cast<std::uint64_t>(o.grad_norm);
  }
};

Figures one_step(exec::Executor& executor, std::int64_t step, std::int64_t vocabulary) {
  exec::StepInput input;
  input.step = step;
  input.optimizer.lr = 1e-3;
  input.load = [&](const exec::MicroBatch& to) {
    const std::int64_t n = executor.program().setting.tokens();
    for (std::int64_t i = 0; i < n; ++i) {
      to.ids[i] = static_cast<std::int32_t>((i * 7919 + step * 104729) % vocabulary);
      to.labels[i] = static_cast<std::int32_t>(((i + 1) * 7919 + step * 104729) % vocabulary);
    }
    return n;
  };
  const exec::StepResult result = executor.run(input);
  EXPECT_FALSE(result.non_finite);
  return {result.mean_loss(), result.grad_norm};
}

// The model of the benchmarks: 56.4M parameters, a sequence of 512.
void check_peak(const char* name, DType compute, arch::Kernels kernels) {
  const auto a = arch::preset("llama-60m");
  exec::Executor executor(program::build(a, one_rank(compute, kernels, 1, 512, a.vocabulary)), 0, nullptr, {});
  at::set_num_threads(2);
  initialize_parameters(executor, 1, 2);
  one_step(executor, 1, a.vocabulary);
  const auto& plan = executor.memory();
  const auto& high = executor.measured_high_water();
  std::int64_t peak = 0;
  for (std::size_t i = 0; i < executor.ops().size(); ++i) {
    const auto& e = executor.ops()[i];
    const std::int64_t planned = plan.high_water[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(e.op)];
    EXPECT_EQ(planned, high[i]) << program::kind_of(e.step->op) << " " << e.op;
    peak = std::max(peak, high[i]);
  }
  fmt::print("{:<12} planned peak {} measured {}\n", name, plan.peak.value, peak);
  EXPECT_EQ(plan.peak.value, peak);
}

TEST(Memory, PlannedIsMeasuredOpByOp) {
  check_peak("aten_bf16", DType::kBF16, arch::Kernels::kAten);
  check_peak("aten_fp32", DType::kF32, arch::Kernels::kAten);
}

// Two threads on whatever else the machine does: the same bits each time, from new memory and with other work beside.
TEST(Repeat, TwoThreadsGiveTheSameBits) {
  auto a = arch::preset("llama-tiny");
  a.name = "test", a.layers = 2, a.hidden = 256, a.ffn = 704, a.heads = 4, a.kv_heads = 2, a.head_dim = 64,
  a.vocabulary = 5003, a.max_sequence = 128;
  const program::Program p = program::build(a, one_rank(DType::kF32, arch::Kernels::kFused, 3, 120, a.vocabulary));
  std::vector<Figures> first;
  for (int run = 0; run < 8; ++run) {
    std::atomic<bool> stop{false};
    std::jthread busy;
    if (run % 2 == 1)
      busy = std::jthread([&] {
        while (!stop.load(std::memory_order_relaxed)) {
        }
      });
    at::set_num_threads(2);
    exec::Executor executor(p, 0, nullptr, {});
    initialize_parameters(executor, 5, 2);
    std::vector<Figures> figures;
    for (std::int64_t step = 1; step <= 3; ++step) figures.push_back(one_step(executor, step, a.vocabulary));
    stop = true;
    if (run == 0) first = figures;
    for (std::size_t i = 0; i < figures.size(); ++i)
      EXPECT_TRUE(figures[i] == first[i])
          << fmt::format("run {} step {}: loss {:.17g} grad_norm {:.17g}, first {:.17g} {:.17g}", run, i + 1,
                         figures[i].loss, figures[i].grad_norm, first[i].loss, first[i].grad_norm);
  }
}

}  // namespace
}  // namespace molen::train
