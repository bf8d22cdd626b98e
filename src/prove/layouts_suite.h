// Shared parts of the layout proofs: small models, settings, and runs of a program on thread-ranks. Used by
// layouts_test.cpp, mutants_test.cpp and, under a launcher, tests/ranks/layouts_mpi.cpp.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "base/rng.h"
#include "base/test_sanitized.h"
#include "comm/self/self.h"
#include "comm/threads/threads.h"
#include "exec/executor.h"
#include "launch/checkpointing.h"
#include "launch/init.h"
#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/ir/timeline.h"
#include "program/provenance/provenance.h"
#include "program/text/text.h"
#include "program/values/optimizer.h"
#include "program/verify/verify.h"
#include "prove/proof.h"

namespace molen::prove::suite {

inline arch::Architecture llama(bool tied) {
  auto a = arch::preset("llama-tiny");
  a.name = "test";
  a.layers = 2;
  a.hidden = 30;
  a.ffn = 44;
  a.heads = 6;
  a.kv_heads = 3;
  a.head_dim = 10;
  a.vocabulary = 71;
  a.max_sequence = 64;
  a.tied = tied;
  return a;
}

// A Llama with norms of queries and keys, and with heads that together are wider than the residual stream.
inline arch::Architecture qwen(arch::QkNorm norm = arch::QkNorm::kHead) {
  auto a = llama(false);
  a.head_dim = 14;
  a.qk_norm = norm;
  return a;
}

// A Llama with experts, of which each token chooses 2 of 5.
inline arch::Architecture mixtral() {
  auto a = llama(false);
  a.experts = arch::Experts{.count = 5, .per_token = 2, .ffn = 26, .balance_loss = 0.1, .z_loss = 0.01};
  return a;
}

// The same with 8 experts in both layers, which 2 or 4 expert ranks share evenly.
inline arch::Architecture eight_experts() {
  auto a = mixtral();
  a.experts->count = 8;
  return a;
}

inline arch::Architecture gpt() {
  auto a = arch::preset("gpt2");
  a.name = "test";
  a.layers = 2;
  a.hidden = 30;
  a.ffn = 50;
  a.heads = a.kv_heads = 3;
  a.head_dim = 10;
  a.vocabulary = 71;
  a.max_sequence = 64;
  return a;
}

// A layout of `shards` x `replicas` x `tensor` ranks.
struct Layout {
  int shards = 1, zero = 0;
  bool recompute = false;
  std::int64_t micro = 2;
  int replicas = 1;
  bool own_over_dp = false;
  int prefetch = 1;
  int tensor = 1;
  bool rows = false;         // sequence parallelism
  std::int64_t chunks = 1;   // number of pieces of the rows
  std::string recomputed{};  // replaces `recompute`: "attention,activation/2"
  int stages = 1;            // stages of a pipeline
  program::Pipeline pipeline{};
  int context = 1;
  program::ContextForm form = program::ContextForm::kGather;
  std::int64_t sequence = 23;
  std::string order{};  // order of the axes; empty: the default
  bool documents = false;
  program::Offload offload{};
  std::int64_t unit_layers = 1;
  int experts = 1;  // expert ranks
  int ranks() const { return shards * replicas * tensor * stages * context * experts; }
  Layout units(std::int64_t layers) const {
    Layout l = *this;
    l.unit_layers = layers;
    return l;
  }
  Layout recomputing(std::string what) const {
    Layout l = *this;
    l.recomputed = std::move(what);
    return l;
  }
};

inline constexpr auto kGather = program::ContextForm::kGather, kRing = program::ContextForm::kRing;
inline constexpr program::Offload kOptimizer{true, false, false}, kGradients{true, true, false},
    kParameters{true, false, true}, kAll{true, true, true}, kActivations{false, false, false, true},
    kEverything{true, true, true, true};

inline Layout on_host(program::Offload offload, Layout l) {
  l.offload = offload;
  return l;
}

inline Layout over_two_stages(Layout l, program::ScheduleKind kind, int chunks = 1) {
  l.stages = 2;
  l.pipeline = program::pipeline_of(kind, chunks);
  return l;
}

// The tokens of a sequence in layouts of context ranks and of expert ranks; 2, 3 or 4 context ranks can share it.
inline constexpr std::int64_t kSharedSequence = 24;

inline Layout experts(int ranks, Layout l = {1, 0, false, 1}) {
  l.experts = ranks, l.sequence = kSharedSequence;
  return l;
}

inline program::Setting setting_of(int ranks, int zero, bool recompute, DType compute, std::int64_t micro = 2) {
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = ranks;
  s.zero = zero;
  if (recompute) s.recompute = program::Recompute::full();
  s.global_batch = 12;
  s.micro_batch = micro;
  s.sequence = 23;
  s.compute = compute;
  s.master = compute == DType::kF64 ? DType::kF64 : DType::kF32;
  s.reduce = s.master;
  s.kernels = compute == DType::kF64 ? arch::Kernels::kReference : arch::Kernels::kFused;
  return s;
}
// Returns the setting of one rank with everything on its device, with which layouts are compared.
inline program::Setting reference_setting(DType compute, std::int64_t sequence = kSharedSequence) {
  auto s = setting_of(1, 0, false, compute, 3);
  s.sequence = sequence;
  return s;
}

inline program::Setting setting_of(const Layout& l, DType compute) {
  program::Setting s = setting_of(l.shards, l.zero, l.recompute, compute, l.micro);
  s.mesh[mesh::Axis::kDpReplicate] = l.replicas;
  s.mesh[mesh::Axis::kTp] = l.tensor;
  s.mesh[mesh::Axis::kCp] = l.context;
  s.mesh[mesh::Axis::kEp] = l.experts;
  s.sequence = l.sequence;
  s.context_form = l.form;
  s.sequence_parallel = l.rows;
  s.tensor_chunks = l.chunks;
  s.mesh[mesh::Axis::kPp] = l.stages;
  s.pipeline = l.pipeline;
  if (!l.recomputed.empty()) s.recompute = program::recompute_from_text(l.recomputed);
  if (!l.order.empty()) s.order = mesh::parse_order(l.order);
  s.document_mask = l.documents;
  s.own_over_dp = l.own_over_dp;
  s.offload = l.offload;
  s.prefetch = l.prefetch;
  s.unit_layers = l.unit_layers;
  return s;
}

// Trains one rank of `p` on samples that count up.
inline Outcome train_rank(const program::Program& p, comm::Communicator& world, int steps, exec::Options options = {}) {
  Trial trial;
  trial.steps = steps;
  trial.options = options;
  return prove(p, world, synthetic_samples(p.setting, p.arch.vocabulary), trial);
}

// Runs all ranks as threads. Rethrows the first error of a rank.
inline void on_ranks(int count, const std::function<void(comm::Communicator&)>& run, comm::ThreadOptions between = {}) {
  const auto n = static_cast<std::size_t>(count);
  std::vector<std::exception_ptr> errors(n);
  comm::ThreadWorld world(count, between);
  std::vector<std::unique_ptr<comm::Communicator>> ranks;
  for (int r = 0; r < count; ++r) ranks.push_back(world.communicator(r));
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      try {
        run(*ranks[r]);
      } catch (const std::exception& error) {
        errors[r] = std::current_exception();
        ranks[r]->abort(error.what());
      }
    });
  threads.clear();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

// Returns how much of an axis's communication a step hides on rank 0, when every op is a sleep.
inline program::Overlap hidden_of(const program::Program& p, program::Axis axis,
                                  const std::function<double(const program::Step&)>& seconds_of) {
  program::Overlap overlap;
  on_ranks(p.setting.ranks(), [&](comm::Communicator& world) {
    exec::Options options;
    options.sleep = seconds_of;
    exec::Executor executor(p, world.rank(), &world, options);
    exec::StepInput input;
    input.load = [](const exec::MicroBatch&) { return std::int64_t{0}; };
    const auto result = executor.run(input);
    if (world.rank() == 0) overlap = program::overlap_of(executor.ops(), result.timeline, axis);
  });
  return overlap;
}

// Trains each rank with the program of its stage; returns the outcome that rank 0 assembles.
inline Outcome train_threads(const std::vector<program::Program>& stages, int steps, exec::Options options = {},
                             comm::ThreadOptions between = {}) {
  const program::Setting& setting = stages.front().setting;
  Outcome first;
  on_ranks(
      setting.ranks(),
      [&](comm::Communicator& world) {
        const int stage = program::at_rank(setting, world.rank()).pipeline.stage;
        Outcome out = train_rank(stages.at(static_cast<std::size_t>(stage)), world, steps, options);
        if (world.rank() == 0) first = std::move(out);
      },
      between);
  return first;
}
inline Outcome train_threads(const program::Program& p, int steps, exec::Options options = {}) {
  return train_threads(std::vector{p}, steps, options);
}

// Returns the outcome of one rank on its own, with which many layouts are compared. It is computed once for each
// program.
inline const Outcome& train_alone(const program::Program& p, int steps) {
  static std::map<std::pair<std::string, int>, Outcome> made;
  const auto [found, fresh] = made.try_emplace({program::print(p), steps});
  if (fresh) found->second = train_threads(p, steps);
  return found->second;
}

// Fills the biases of routers with values that depend on their position. They begin as zeros, so a lost bias would not
// be noticed.
inline void fill_biases(const exec::Executor& executor) {
  const program::Program& p = executor.program();
  for (std::size_t u = 0; u < p.units.size(); ++u)
    for (const program::UnitEntry& entry : p.units[u].entries) {
      const arch::Parameter& parameter = p.parameters[static_cast<std::size_t>(entry.parameter)];
      if (!arch::moved_by_load(parameter.role)) continue;
      at::Tensor t = executor.state("param", static_cast<int>(u));
      const std::int64_t first = executor.state_range("param", static_cast<int>(u)).first - entry.offset;
      for (std::int64_t i = 0; i < t.numel(); ++i)
        if (first + i >= 0 && first + i < parameter.elements())
          t.data_ptr<float>()[i] =
              static_cast<float>(uniform_at(stream_key(9, parameter.name), static_cast<std::uint64_t>(first + i)));
    }
}

// Returns the hash of all ranks' states. With `save`, the states are filled by position alone and saved to `dir`;
// otherwise they are read from `dir`. Each rank has the program of its stage.
inline std::string hash_of_checkpoint(const std::vector<program::Program>& stages, const std::filesystem::path& dir,
                                      bool save) {
  std::string hash;
  const program::Setting& setting = stages.front().setting;
  on_ranks(setting.ranks(), [&](comm::Communicator& world) {
    const int stage = program::at_rank(setting, world.rank()).pipeline.stage;
    const program::Program& p = stages.at(static_cast<std::size_t>(stage));
    exec::Executor executor(p, world.rank(), &world, {});
    if (save) {
      launch::initialize_parameters(executor, 9, 1);
      fill_biases(executor);
      for (const program::OptimizerState& state : program::optimizer_named(p.setting.optimizer).states)
        for (std::size_t u = 0; u < p.units.size(); ++u) {
          const std::string family(name_of(state.value));
          at::Tensor t = executor.state(family, static_cast<int>(u));
          const std::int64_t first = executor.state_range(family, static_cast<int>(u)).first;
          for (std::int64_t i = 0; i < t.numel(); ++i)
            t.data_ptr<float>()[i] = static_cast<float>(uniform_at(u + 77, static_cast<std::uint64_t>(first + i)));
        }
      checkpoint::save(launch::spans_of(executor),
                       {dir, 4, world.rank(), world.size(), launch::agree_over(world), Json{{"x", 1}}, {}, 0});
    } else {
      launch::load_state(checkpoint::Checkpoint(*checkpoint::latest(dir)), executor, world, false);
    }
    const std::string own = launch::state_hash(executor, world);
    if (world.rank() == 0) hash = own;
  });
  return hash;
}
inline std::string hash_of_checkpoint(const program::Program& p, const std::filesystem::path& dir, bool save) {
  return hash_of_checkpoint(std::vector{p}, dir, save);
}

// Returns the number of steps of an fp64 run that is compared with one rank. A layout's fault shows in the first steps:
// a fault of gradients in one step, and a fault of moments or accumulation in two, which include all that passes from
// one step to the next. The nightly run takes ten, and so does `molen verify`.
inline std::int64_t proof_steps() {
  return exhaustive() ? 10 : 2;
}

// Builds the programs of all stages. Each is sound, is read back from its text, and agrees with the others on messages.
inline std::vector<program::Program> proved_stages(const arch::Architecture& a, const program::Setting& s,
                                                   const program::Schedule* file = nullptr) {
  auto stages = program::build_stages(a, s, file);
  for (const program::Program& p : stages) {
    program::require_sound(p, fmt::format("stage {}", p.setting.pipeline.stage));
    EXPECT_EQ(program::parse(program::print(p), "text"), p);
  }
  if (const auto between = program::verify_world(stages); !between.empty()) throw Error("{}", between.front().text);
  return stages;
}

// Checks that two outcomes of one step are equal but for rounding.
inline void expect_within(const Difference& d, const Bounds& bounds) {
  EXPECT_LE(d.loss, bounds.loss);
  EXPECT_LE(d.norm, bounds.norm);
  EXPECT_LE(d.gradients, bounds.gradients) << d.worst_gradient;
}

// Checks that dead values are never read: a second run that fills each dead buffer with NaN gives the bits of the
// first. Two steps include all that passes from one step to the next.
inline void expect_dead_buffers_unread(const std::vector<program::Program>& stages) {
  const Outcome once = train_threads(stages, 2), filled = train_threads(stages, 2, {at::kCPU, true});
  EXPECT_EQ(once.losses, filled.losses);
  EXPECT_EQ(once.hash, filled.hash);
}

// Checks that a run in fp64 is the same model as one rank's.
inline void expect_same_model(const Outcome& one, const Outcome& many) {
  const Difference d = difference(one, many);
  EXPECT_LE(d.parameters, 1e-9) << d.worst_parameter;
  EXPECT_LE(d.gradients, 1e-9) << d.worst_gradient;
  EXPECT_LE(d.loss, 1e-9);
  EXPECT_LE(d.norm, 1e-9);
  EXPECT_LT(many.losses.back(), many.losses.front()) << "it does not learn";
}

}  // namespace molen::prove::suite
