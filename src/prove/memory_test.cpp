// Tests the memory plan against the run: the scratch of each op and the peak, also with ATen's kernels. Also tests that
// a repeated run gives the same bits.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "exec/executor.h"
#include "launch/init.h"
#include "math/allocation.h"
#include "math/scratch.h"
#include "program/build/build.h"
#include "program/text/text.h"
#include "program/values/payload.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
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

// The model of the benchmarks with sequences of 512 tokens, in two layers: the other six would be like the second.
void check_peak(const char* name, DType compute, arch::Kernels kernels) {
  auto a = arch::preset("llama-60m");
  a.layers = 2;
  exec::Executor executor(program::build(a, one_rank(compute, kernels, 1, 512, a.vocabulary)), 0, nullptr, {});
  at::set_num_threads(2);
  launch::initialize_parameters(executor, 1, 2);
  one_step(executor, 1, a.vocabulary);
  const auto& plan = executor.memory();
  const auto& high = executor.high_water();
  std::int64_t peak = 0;
  for (std::size_t i = 0; i < executor.ops().size(); ++i) {
    const auto& e = executor.ops()[i];
    const std::int64_t planned = plan.high_water[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(e.op)];
    EXPECT_EQ(planned, high[i]) << program::kind_of(e.step->op) << " " << e.op;
    peak = std::max(peak, high[i]);
  }
  fmt::print("{:<12} planned peak {} counted {}\n", name, plan.peak.value, peak);
  EXPECT_EQ(plan.peak.value, peak);
}

TEST(Memory, PlannedIsCountedOpByOp) {
  check_peak("aten_bf16", DType::kBF16, arch::Kernels::kAten);
  check_peak("aten_fp32", DType::kF32, arch::Kernels::kAten);
}

// Finds the bytes that a step writes without the executor's own record: the arenas are filled with a pattern, and the
// bytes that differ from it afterwards were written. Each rank reports its own bytes. There are two runs with two
// patterns, because a step may write the pattern itself.
constexpr Bytes kGuard(1 << 16);
constexpr std::array kPlaces{program::Place::kDevice, program::Place::kHost};
using Marks = std::vector<bool>;               // by byte of an arena and the guard after it
using PlaceMarks = std::array<Marks, 2>;       // by place
using Stages = std::vector<program::Program>;  // programs of a pipeline's stages; one program without a pipeline

Stages memory_stages(const arch::Architecture& a, program::Setting s) {
  Stages stages;
  for (s.pipeline.stage = 0; s.pipeline.stage < s.stages(); ++s.pipeline.stage) stages.push_back(program::build(a, s));
  return stages;
}
const program::Program& program_of_rank(const Stages& stages, int rank) {
  return stages[static_cast<std::size_t>(program::at_rank(stages[0].setting, rank).pipeline.stage)];
}

// Sets to zero the memory that a step reads before it writes: parameters, including those that the host updates for the
// device; moments; and the gaps between parameters in whole gradients, which stay from step to step.
void clear_state(exec::Executor& executor, unsigned char pattern) {
  const auto& p = executor.program();
  for (std::size_t b = 0; b < p.buffers.size(); ++b)
    if (p.buffers[b].name.starts_with("param_host."))
      std::memset(executor.arena(program::Place::kHost).data() + executor.memory().buffer_offset[b], 0,
                  static_cast<std::size_t>(p.buffers[b].bytes().value));
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

// Fills the arenas with the pattern, except for constant buffers, which the executor has filled.
void fill_arenas(const exec::Executor& executor, unsigned char pattern) {
  std::vector<std::pair<std::byte*, std::vector<std::byte>>> constants;
  const auto& buffers = executor.program().buffers;
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].lifetime != program::Lifetime::kConstant) continue;
    std::byte* at = executor.arena().data() + executor.memory().buffer_offset[b];
    constants.emplace_back(at, std::vector<std::byte>(at, at + buffers[b].bytes().value));
  }
  for (const program::Place place : kPlaces) {
    const auto arena = executor.arena(place);
    if (!arena.empty()) std::memset(arena.data(), pattern, arena.size());
  }
  for (const auto& [at, bytes] : constants) std::copy(bytes.begin(), bytes.end(), at);
}

// Runs two steps, so that bytes count as written whether only the first step or also later steps write them.
// Collective.
void mark_written(const program::Program& p, comm::Communicator& world, program::Packing packing, unsigned char pattern,
                  PlaceMarks& written) {
  const c10::InferenceMode inference;
  at::set_num_threads(p.setting.threads);
  exec::Options options;
  options.guard = kGuard;
  options.packing = packing;
  exec::Executor executor(p, world.rank(), &world, options);
  fill_arenas(executor, pattern);
  clear_state(executor, pattern);
  launch::initialize_parameters(executor, 5, p.setting.threads);
  exec::StepInput input;
  world.barrier();
  const std::int64_t before = math::AllocationGuard::unserved();
  world.barrier();
  for (input.step = 1; input.step <= 2; ++input.step) {
    input.load = loads_of_step(executor, p.setting, synthetic_samples(p.setting, p.arch.vocabulary), input.step);
    if (executor.run(input).non_finite) throw Error("rank {}: not finite", world.rank());
  }
  world.barrier();
  EXPECT_EQ(math::AllocationGuard::unserved() - before, 0) << "bytes that ATen took beside the arenas, of all ranks";
  world.barrier();
  for (std::size_t place = 0; place < kPlaces.size(); ++place) {
    const auto arena = executor.arena(kPlaces[place]);
    Marks& marks = written[place];
    marks.resize(arena.size());
    for (std::size_t i = 0; i < arena.size(); ++i)
      if (arena[i] != std::byte{pattern}) marks[i] = true;
  }
}

// Returns the written bytes by rank.
std::vector<PlaceMarks> written_by(const Stages& stages, program::Packing packing) {
  const int ranks = stages[0].setting.ranks();
  std::vector<PlaceMarks> written(static_cast<std::size_t>(ranks));
  suite::on_ranks(ranks, [&](comm::Communicator& world) {
    for (const unsigned char pattern : {0x5a, 0xa5})
      mark_written(program_of_rank(stages, world.rank()), world, packing, pattern,
                   written[static_cast<std::size_t>(world.rank())]);
  });
  return written;
}

std::int64_t end_of(const Marks& bytes) {
  return bytes.rend() - std::find(bytes.rbegin(), bytes.rend(), true);
}

// The plan of one rank: its buffers, each up to the bytes that this rank fills, and scratch. The padding that aligns
// the next buffer is left out.
struct Planned {
  struct Part {
    std::size_t place;
    std::int64_t first, last;
    std::string name;
  };
  PlaceMarks buffers, all;
  std::array<Bytes, 2> peak;
  std::vector<Part> parts;

  Planned(const program::Program& p, int rank, program::Packing packing) {
    const program::MemoryPlan plan = program::plan_memory(p, packing);
    const mesh::Mesh mesh(p.setting.mesh, p.setting.ranks(), p.setting.order);
    peak = {plan.peak, plan.host};
    for (std::size_t place = 0; place < kPlaces.size(); ++place)
      if (peak[place].value > 0) buffers[place].resize(static_cast<std::size_t>((peak[place] + kGuard).value));
    const program::Slots slots(p);
    for (int b = 0; b < static_cast<int>(p.buffers.size()); ++b) {
      const program::Buffer& buffer = p.buffers[static_cast<std::size_t>(b)];
      if (buffer.lifetime == program::Lifetime::kExternal) continue;
      const std::size_t place = buffer.place == program::Place::kHost;
      const std::int64_t bytes = program::used_bytes(p, {program::Use{.buffer = b}}, mesh.coordinates(rank));
      for (std::int64_t slot = 0; slot < slots.count(b); ++slot) {
        const std::int64_t first =
            plan.buffer_offset[static_cast<std::size_t>(b)] + slot * math::Scratch::aligned(buffer.bytes().value);
        std::fill_n(buffers[place].begin() + first, bytes, true);
        parts.push_back({place, first, first + bytes, buffer.name});
      }
    }
    all = buffers;
    for (std::size_t body = 0; body < p.bodies.size(); ++body)
      for (std::size_t k = 0; k < p.bodies[body].steps.size(); ++k)
        if (const std::int64_t scratch = p.bodies[body].steps[k].scratch.value; scratch > 0)
          std::fill_n(all[0].begin() + plan.scratch_offset[body][k], scratch, true);
  }

  // Returns what is wrong, or "" if nothing is. Nothing may be written elsewhere, every buffer must be written whole,
  // and each arena must end where writing ends, up to the alignment of its last part. An op may leave some of its
  // scratch unwritten, as attention does when its key blocks are longer than a short sequence. prove/proof.cpp checks
  // how much scratch an op takes.
  std::string differs_from(const PlaceMarks& written) const {
    std::string text;
    for (std::size_t place = 0; place < kPlaces.size(); ++place) {
      const Marks &is = written[place], &planned = all[place];
      std::int64_t beyond = 0;
      for (std::size_t i = 0; i < is.size(); ++i) beyond += is[i] && !(i < planned.size() && planned[i]);
      std::string missing;
      for (const Part& part : parts) {
        if (part.place != place) continue;
        std::int64_t bytes = 0;
        for (std::int64_t i = part.first; i < part.last; ++i)
          bytes += static_cast<std::size_t>(i) >= is.size() || !is[static_cast<std::size_t>(i)];
        if (bytes > 0)
          missing += fmt::format(", {} of {} bytes of {} not written", bytes, part.last - part.first, part.name);
      }
      const std::int64_t end = math::Scratch::aligned(end_of(is));
      // Unwritten scratch may lie after all written bytes.
      const bool ends = end == peak[place].value ||
                        (end < peak[place].value && math::Scratch::aligned(end_of(buffers[place])) <= end &&
                         math::Scratch::aligned(end_of(planned)) == peak[place].value);
      if (beyond == 0 && missing.empty() && ends) continue;
      text += fmt::format("{}: {} bytes written elsewhere, up to {} of {}{}; ", program::name_of(kPlaces[place]),
                          beyond, end, peak[place].value, missing);
    }
    return text;
  }
};

struct Strategy {
  const char* name;
  suite::Layout layout;
  DType compute = DType::kF32;
};
suite::Layout sharded(int shards, int zero, int replicas = 1, bool own_over_dp = false) {
  suite::Layout l{shards, zero, false, 1};
  l.replicas = replicas, l.own_over_dp = own_over_dp;
  return l;
}
suite::Layout over(int tensor, int stages, int context, int shards = 1, int zero = 0) {
  suite::Layout l = sharded(shards, zero);
  l.tensor = tensor, l.stages = stages, l.context = context;
  l.rows = tensor > 1;
  l.sequence = 24;  // divides evenly among context ranks
  return l;
}
suite::Layout shared_experts(int experts, int shards, int zero) {
  suite::Layout l = sharded(shards, zero);
  l.experts = experts;
  return l;
}
// Each token chooses all experts, so a rank gets as many rows as it has room for. With a capacity, these are the rows
// of half of each sequence.
arch::Architecture all_experts(double capacity) {
  auto a = suite::mixtral();
  a.experts->count = a.experts->per_token = 4;
  a.experts->capacity = capacity;
  return a;
}
suite::Layout ring(suite::Layout l) {
  l.form = program::ContextForm::kRing;
  return l;
}
suite::Layout offloading(suite::Layout l, program::Offload offload) {
  l.offload = offload;
  return l;
}
const std::vector<Strategy> kStrategies{
    {"NO_SHARD", sharded(4, 0)},
    {"ZeRO-1", sharded(4, 1)},
    {"SHARD_GRAD_OP", sharded(4, 2)},
    {"FULL_SHARD", sharded(4, 3)},
    {"HYBRID_SHARD", sharded(2, 3, 2)},
    {"HYBRID_SHARD_ZERO2", sharded(2, 2, 2)},
    {"HYBRID_SHARD, optimizer over all", sharded(2, 3, 2, true)},
    {"bf16", sharded(1, 0), DType::kBF16},
    {"bf16, FULL_SHARD", sharded(2, 3), DType::kBF16},
    {"TP 2", over(2, 1, 1)},
    {"TP 2, bf16, FULL_SHARD 2", over(2, 1, 1, 2, 3), DType::kBF16},
    {"PP 2", over(1, 2, 1)},
    {"PP 2, bf16, FULL_SHARD 2", over(1, 2, 1, 2, 3), DType::kBF16},
    {"CP 2, gathered", over(1, 1, 2)},
    {"CP 2, in a ring", ring(over(1, 1, 2))},
    {"CP 2, in a ring, bf16", ring(over(1, 1, 2)), DType::kBF16},
    {"TP 2 x PP 2 x CP 2", over(2, 2, 2)},
    {"EP 2", shared_experts(2, 1, 1)},
    {"EP 2, bf16, FULL_SHARD 2", shared_experts(2, 2, 3), DType::kBF16},
    {"optimizer on the host", offloading(sharded(2, 3), {true, false, false, false})},
    {"optimizer and gradients on the host, bf16", offloading(sharded(2, 3), {true, true, false, false}), DType::kBF16},
    {"all on the host", offloading(sharded(2, 3), {true, true, true, true})},
};

TEST(Memory, EveryRankWritesWhatIsPlanned) {
  auto even = suite::llama(false);  // sizes that two tensor ranks share evenly
  even.hidden = 32, even.heads = 4, even.kv_heads = 2, even.head_dim = 8, even.vocabulary = 72;
  for (const auto& [name, layout, compute] : kStrategies)
    for (const auto packing : {program::Packing::kShared, program::Packing::kApart}) {
      const auto model = layout.experts > 1  ? all_experts(compute == DType::kBF16 ? 0.5 : 0.0)
                         : layout.tensor > 1 ? even
                                             : suite::llama(false);
      auto setting = suite::setting_of(layout, compute);
      if (compute == DType::kBF16) setting.kernels = arch::Kernels::kAten;
      const auto stages = memory_stages(model, setting);
      const auto written = written_by(stages, packing);
      std::string ends;
      for (int rank = 0; rank < stages[0].setting.ranks(); ++rank) {
        const PlaceMarks& mine = written[static_cast<std::size_t>(rank)];
        EXPECT_EQ(Planned(program_of_rank(stages, rank), rank, packing).differs_from(mine), "")
            << name << ", rank " << rank << ", packing " << static_cast<int>(packing);
        ends += fmt::format(" {}", end_of(mine[0]));
        if (!mine[1].empty()) ends += fmt::format("+{}", end_of(mine[1]));
      }
      if (packing != program::Packing::kShared) continue;
      const auto plan = program::plan_memory(stages[0]);
      fmt::print("{:<42} planned {} bytes a rank{}, touched up to{}\n", name, plan.peak.value,
                 plan.host.value > 0 ? fmt::format(" and {} on the host", plan.host.value) : "", ends);
    }
}

// Arena::touched equals the system's count when single pages are touched.
TEST(Memory, TouchedPagesAreTheSystemsAccount) {
  const exec::Arena arena(Bytes(std::int64_t{64} << 20), at::kCPU);
  ASSERT_TRUE(arena.touched().has_value());
  EXPECT_EQ(arena.touched()->value, 0);
  *static_cast<char*>(arena.at(5)) = 1;
  const std::int64_t one = arena.touched()->value;  // one page of 4 KiB, or a large page
  EXPECT_TRUE(one >= 4096 && one <= 2 << 20) << one;
  *static_cast<char*>(arena.at((32 << 20) + 7)) = 1;
  EXPECT_EQ(arena.touched()->value, 2 * one);
  std::memset(arena.at(0), 1, static_cast<std::size_t>(arena.size().value));
  EXPECT_EQ(arena.touched()->value, arena.size().value);
  const exec::Arena odd(Bytes(5000), at::kCPU);
  std::memset(odd.at(0), 1, 5000);
  EXPECT_EQ(odd.touched()->value, 5000) << "no more than there is";
}

// The same comparison must find a buffer that is planned 16 elements (a unit's block) smaller or larger than the step
// uses it. It must also find such an error in an op's scratch.
TEST(Memory, WhatIsPlannedTooSmallOrTooLargeIsFound) {
  const auto p = program::build(suite::llama(false), suite::setting_of(sharded(4, 3), DType::kF32));
  const PlaceMarks written = written_by({p}, program::Packing::kApart).front();
  const auto found = [&](const program::Program& q) {
    return Planned(q, 0, program::Packing::kApart).differs_from(written) != "";
  };
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

// An evaluation beside a training takes no memory of its own while it fits into the training's transient memory.
TEST(Memory, AnEvaluationUsesTheTransientMemoryOfItsTraining) {
  const auto a = arch::preset("llama-tiny");
  program::Setting s = one_rank(DType::kF32, arch::Kernels::kFused, 2, 64, a.vocabulary);
  const exec::Executor training(program::build(a, s), 0, nullptr, {});
  const auto evaluation = [&](std::int64_t batch) {
    s.purpose = program::Purpose::kEvaluate;
    s.global_batch = s.micro_batch = batch;
    return exec::Executor(program::build(a, s), 0, nullptr, {}, &training);
  };
  const std::int64_t space = training.memory().peak.value - training.memory().persistent.value;
  const exec::Executor small = evaluation(2), large = evaluation(32);
  ASSERT_LE(small.memory().peak.value, space);
  ASSERT_GT(large.memory().peak.value, space);
  EXPECT_EQ(small.arena().data(), training.arena().data());
  EXPECT_NE(large.arena().data(), training.arena().data());
  EXPECT_GE(large.arena().size(), static_cast<std::size_t>(large.memory().peak.value));
}

// With two threads, and under any other load of the machine, the bits are the same each time: in new memory and beside
// other work.
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
    launch::initialize_parameters(executor, 5, 2);
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
}  // namespace molen::prove
