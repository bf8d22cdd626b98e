// The plan beside what runs: the scratch of each op and the peak, for ATen's kernels too; and that a run repeats bit
// for bit.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "exec/executor.h"
#include "math/scratch.h"
#include "program/build.h"
#include "program/payload.h"
#include "program/text.h"
#include "train/init.h"
#include "train/layouts_suite.h"

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

// What a step writes, found without the executor's own record of it: an arena full of a pattern, and which of its bytes
// hold another afterwards. Each rank tells of its own, in two runs of two patterns, for a step may write the pattern.
constexpr Bytes kGuard(1 << 16);
using Marks = std::vector<bool>;  // by byte of an arena and the guard behind it

// What a step reads before it writes begins as zeros: parameters, moments, and of whole gradients, which stay from step
// to step, what lies between parameters.
void clear_state(exec::Executor& executor, unsigned char pattern) {
  const auto& p = executor.program();
  for (const char* family : {"param", "master", "m", "v"})
    for (int u = 0; executor.has_state(family) && u < static_cast<int>(p.units.size()); ++u)
      executor.state(family, u).zero_();
  for (int u = 0; !p.setting.sharded_gradients() && u < static_cast<int>(p.units.size()); ++u) {
    at::Tensor grad = executor.state("grad", u);
    grad.zero_();
    for (const auto& run : program::global_runs(p, executor.coordinates(), u, 0, grad.numel())) {
      at::Tensor of = grad.narrow(0, run.unit_first, run.count);
      std::memset(of.data_ptr(), pattern, of.nbytes());
    }
  }
}

// Collective.
void mark_written(const program::Program& p, comm::Communicator& world, bool apart, unsigned char pattern,
                  Marks& written) {
  const c10::InferenceMode inference;
  at::set_num_threads(p.setting.threads);
  exec::Options options;
  options.guard = kGuard;
  options.apart = apart;
  exec::Executor executor(p, world.rank(), &world, options);
  const auto arena = executor.arena();
  std::memset(arena.data(), pattern, arena.size());
  clear_state(executor, pattern);
  initialize_parameters(executor, 5, p.setting.threads);
  exec::StepInput input;
  const ReadSamples read = synthetic_samples(p.setting, p.arch.vocabulary);
  std::int64_t micro = 0;
  input.load = [&](const exec::MicroBatch& to) {
    const std::int64_t slot = micro++ * p.setting.data_ranks() + program::data_rank(p.setting, executor.coordinates());
    return read(slot * p.setting.micro_batch, p.setting.micro_batch, to);
  };
  if (executor.run(input).non_finite) throw Error("rank {}: not finite", world.rank());
  written.resize(arena.size());
  for (std::size_t i = 0; i < arena.size(); ++i)
    if (arena[i] != std::byte{pattern}) written[i] = true;
}

// By rank.
std::vector<Marks> written_by(const program::Program& p, bool apart) {
  std::vector<Marks> written(static_cast<std::size_t>(p.setting.ranks()));
  suite::on_ranks(p.setting.ranks(), [&](comm::Communicator& world) {
    for (const unsigned char pattern : {0x5a, 0xa5})
      mark_written(p, world, apart, pattern, written[static_cast<std::size_t>(world.rank())]);
  });
  return written;
}

std::int64_t end_of(const Marks& bytes) {
  return bytes.rend() - std::find(bytes.rbegin(), bytes.rend(), true);
}

// What the plan gives a rank: buffers as far as this rank fills them, and scratch; without what aligns the next.
struct Planned {
  Marks buffers, all;
  Bytes peak;

  Planned(const program::Program& p, int rank, bool apart) {
    const program::MemoryPlan plan = program::plan_memory(p, apart);
    const mesh::Mesh mesh(p.setting.mesh, p.setting.ranks(), p.setting.order);
    peak = plan.peak;
    buffers.resize(static_cast<std::size_t>((peak + kGuard).value));
    const program::Slots slots(p);
    for (int b = 0; b < static_cast<int>(p.buffers.size()); ++b)
      std::fill_n(buffers.begin() + plan.offset(p, slots, b, -1),
                  program::used_bytes(p, {program::Use{b}}, mesh.coordinates(rank)), true);
    all = buffers;
    for (std::size_t body = 0; body < p.bodies.size(); ++body)
      for (std::size_t k = 0; k < p.bodies[body].steps.size(); ++k)
        if (const std::int64_t scratch = p.bodies[body].steps[k].scratch.value; scratch > 0)
          std::fill_n(all.begin() + plan.scratch_offset[body][k], scratch, true);
  }

  // What is wrong; "" if nothing is. Nothing is written elsewhere, all of every buffer is, and the arena ends where
  // writing does, up to the alignment of what comes last. An op may leave some of its scratch, as attention does whose
  // blocks are of more keys than a short sequence has: how much an op takes is held to its plan by train/proof.cpp.
  std::string differs_from(const Marks& written) const {
    std::int64_t beyond = 0, unused = 0;
    for (std::size_t i = 0; i < std::max(written.size(), all.size()); ++i) {
      const bool is = i < written.size() && written[i];
      beyond += is && !(i < all.size() && all[i]);
      unused += !is && i < buffers.size() && buffers[i];
    }
    const std::int64_t end = math::Scratch::aligned(end_of(written));
    if (beyond == 0 && unused == 0 && end == peak.value) return "";
    return fmt::format("{} bytes written elsewhere, {} of buffers not written, up to {} of {}", beyond, unused, end,
                       peak.value);
  }
};

struct Strategy {
  const char* name;
  suite::Layout layout;
};
suite::Layout sharded(int shards, int zero, int replicas = 1, bool own_over_dp = false) {
  suite::Layout l{shards, zero, false, 1};
  l.replicas = replicas, l.own_over_dp = own_over_dp;
  return l;
}
const std::vector<Strategy> kStrategies{{"NO_SHARD", sharded(4, 0)},
                                        {"ZeRO-1", sharded(4, 1)},
                                        {"SHARD_GRAD_OP", sharded(4, 2)},
                                        {"FULL_SHARD", sharded(4, 3)},
                                        {"HYBRID_SHARD", sharded(2, 3, 2)},
                                        {"HYBRID_SHARD_ZERO2", sharded(2, 2, 2)},
                                        {"HYBRID_SHARD, optimizer over all", sharded(2, 3, 2, true)}};

TEST(Memory, EveryRankWritesWhatIsPlanned) {
  for (const auto& [name, layout] : kStrategies)
    for (const bool apart : {false, true}) {
      const auto p = program::build(suite::llama(false), suite::setting_of(layout, DType::kF32));
      const auto written = written_by(p, apart);
      std::string ends;
      for (int rank = 0; rank < p.setting.ranks(); ++rank) {
        const Marks& mine = written[static_cast<std::size_t>(rank)];
        EXPECT_EQ(Planned(p, rank, apart).differs_from(mine), "") << name << ", rank " << rank << ", apart " << apart;
        ends += fmt::format(" {}", end_of(mine));
      }
      if (!apart)
        fmt::print("{:<33} planned {} bytes a rank, written up to{}\n", name, program::plan_memory(p).peak.value, ends);
    }
}

// The same comparison where a buffer is planned by 16 elements (a unit's block) smaller, or larger, than it is used;
// and where the scratch of an op is.
TEST(Memory, WhatIsPlannedTooSmallOrTooLargeIsFound) {
  const auto p = program::build(suite::llama(false), suite::setting_of(sharded(4, 3), DType::kF32));
  const Marks written = written_by(p, true).front();
  const auto found = [&](const program::Program& q) { return Planned(q, 0, true).differs_from(written) != ""; };
  EXPECT_FALSE(found(p));
  for (std::size_t b = 0; b < p.buffers.size(); ++b)
    for (const int more : {-16, 16}) {
      program::Program q = p;
      if (q.buffers[b].elements + more <= 0) continue;
      q.buffers[b].elements += more;
      EXPECT_TRUE(found(q)) << p.buffers[b].name << " " << more;
    }
  for (std::size_t body = 0; body < p.bodies.size(); ++body)
    for (std::size_t k = 0; k < p.bodies[body].steps.size(); ++k)
      for (const int more : {-64, 64}) {
        program::Program q = p;
        Bytes& scratch = q.bodies[body].steps[k].scratch;
        if (scratch.value + more <= 0 || scratch.value == 0) continue;
        scratch += Bytes(more);
        EXPECT_TRUE(found(q)) << program::kind_of(q.bodies[body].steps[k].op) << " " << more;
      }
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
