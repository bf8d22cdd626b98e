// What the layout proofs share: small models, a setting, steps on a communicator, and the comparison of two runs. Used
// on thread-ranks (layouts_test.cpp) and under a launcher (tests/ranks/layouts_mpi.cpp).
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <thread>

#include "base/rng.h"
#include "comm/self/self.h"
#include "comm/threads/threads.h"
#include "exec/executor.h"
#include "program/build.h"
#include "program/text.h"
#include "program/verify.h"
#include "train/checkpointing.h"
#include "train/init.h"

namespace molen::train::suite {

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

// Data-parallel layouts: `shards` x `replicas` ranks.
struct Layout {
  int shards = 1, zero = 0;
  bool recompute = false;
  std::int64_t micro = 2;
  int replicas = 1;
  bool own_over_dp = false;
  int prefetch = 1;
  int ranks() const { return shards * replicas; }
};

inline program::Setting setting_of(int ranks, int zero, bool recompute, DType compute, std::int64_t micro = 2) {
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = ranks;
  s.zero = zero;
  s.recompute = recompute;
  s.global_batch = 12;
  s.micro_batch = micro;
  s.sequence = 23;
  s.compute = compute;
  s.master = compute == DType::kF64 ? DType::kF64 : DType::kF32;
  s.reduce = s.master;
  s.kernels = compute == DType::kF64 ? arch::Kernels::kReference : arch::Kernels::kFused;
  return s;
}

inline program::Setting setting_of(const Layout& l, DType compute) {
  program::Setting s = setting_of(l.shards, l.zero, l.recompute, compute, l.micro);
  s.mesh[mesh::Axis::kDpReplicate] = l.replicas;
  s.own_over_dp = l.own_over_dp;
  s.prefetch = l.prefetch;
  return s;
}

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> tensors;  // weights, and gradients as "grad/..." of the last step, in double
  std::string hash;
};

// A micro-batch of the global order: slot m of rank r, as data::samples_of deals them. Every fifth label is left out in
// odd samples.
inline std::int64_t fill(const program::Setting& s, const arch::Architecture& a, std::int64_t first, std::int64_t count,
                         std::int32_t* ids, std::int32_t* labels) {
  std::int64_t valid = 0;
  for (std::int64_t row = 0; row < s.micro_batch; ++row)
    for (std::int64_t t = 0; t < s.sequence; ++t) {
      const std::int64_t at = row * s.sequence + t, sample = first + row;
      const auto token = [&](std::int64_t i) {
        // Each sample counts up from a random start: something to learn.
        return static_cast<std::int32_t>(
            (static_cast<std::int64_t>(uniform_at(11, static_cast<std::uint64_t>(sample)) * 1000.0) + i) %
            a.vocabulary);
      };
      ids[at] = row < count ? token(t) : 0;
      labels[at] = row < count && !(sample % 2 == 1 && t % 5 == 0) ? token(t + 1) : -1;
      valid += labels[at] >= 0;
    }
  return valid;
}

// Puts together what the ranks hold: each fills in its part (whoever holds all of it fills in all).
inline void collect(const exec::Executor& executor, Outcome& out) {
  const auto& p = executor.program();
  const auto parameters = arch::parameters(p.arch);
  for (std::size_t u = 0; u < p.units.size(); ++u) {
    const auto part = [&](const char* family, std::int64_t first, std::int64_t last, std::int64_t offset,
                          at::Tensor whole) {
      const auto [held, held_end] = executor.state_range(family, static_cast<int>(u));
      const std::int64_t from = std::max({first, held, offset}),
                         to = std::min({last, held_end, offset + whole.numel()});
      if (from >= to) return;
      whole.view(-1)
          .narrow(0, from - offset, to - from)
          .copy_(executor.state(family, static_cast<int>(u)).narrow(0, from - held, to - from));
    };
    for (const auto& entry : p.units[u].entries) {
      const auto& parameter = parameters[static_cast<std::size_t>(entry.parameter)];
      auto& whole = out.tensors[parameter.name];
      if (!whole.defined()) whole = at::full(parameter.shape, NAN, at::kDouble);
      part("param", 0, p.units[u].elements, entry.offset, whole);
    }
    // Of a whole gradient the rank's own part is the reduced one.
    const auto [first, last] =
        program::unit_range(p.setting, executor.coordinates(), p.units[u].elements, program::Range::kOwn);
    auto& whole = out.tensors["grad/" + p.units[u].name];
    if (!whole.defined()) whole = at::full({p.units[u].elements}, NAN, at::kDouble);
    part("grad", first, last, 0, whole);
  }
}

inline void train_rank(const program::Program& p, comm::Communicator& world, int steps, exec::Options options,
                       Outcome& out, std::mutex& mutex) {
  const c10::InferenceMode inference;
  exec::Executor executor(p, world.rank(), &world, options);
  initialize_parameters(executor, 5, 1);
  const auto& s = p.setting;
  for (int step = 1; step <= steps; ++step) {
    std::int64_t m = 0;
    exec::StepInput input;
    input.step = step;
    input.optimizer.lr = 3e-3;
    input.load = [&](std::int32_t* ids, std::int32_t* labels) {
      const std::int64_t slot = (m++ * s.data_ranks() + world.rank()) * s.micro_batch;
      const std::int64_t count = std::clamp<std::int64_t>(s.global_batch - slot, 0, s.micro_batch);
      return fill(s, p.arch, (step - 1) * s.global_batch + slot, count, ids, labels);
    };
    const auto result = executor.run(input);
    EXPECT_FALSE(result.non_finite);
    const auto& plan = executor.memory();
    for (std::size_t i = 0; i < executor.ops().size(); ++i) {
      const auto& e = executor.ops()[i];
      EXPECT_EQ(executor.measured_high_water()[i],
                plan.high_water[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(e.op)])
          << program::kind_of(e.step->op);
    }
    if (world.rank() == 0) {
      out.losses.push_back(result.mean_loss());
      out.norms.push_back(result.grad_norm);
    }
  }
  const std::string hash = state_hash(executor, world);
  const std::lock_guard lock(mutex);
  if (world.rank() == 0) out.hash = hash;
  collect(executor, out);
}

// Largest difference over the tensor's largest value; NaN counts as infinite.
inline double worst(const Outcome& a, const Outcome& b, const std::string& prefix = "") {
  double most = 0.0;
  for (const auto& [name, x] : a.tensors) {
    if (prefix.empty() ? name.rfind("grad/", 0) == 0 : name.rfind(prefix, 0) != 0) continue;
    // A key's bias moves all scores of a query alike, so its gradient is zero but for rounding, which AdamW then
    // amplifies: it is held to the query's bias instead of to itself.
    std::string of = name;
    if (const auto at = of.find("k_proj.bias"); at != std::string::npos) of.replace(at, 1, "q");
    const double scale = a.tensors.at(of).abs().max().item<double>(),
                 error = (x - b.tensors.at(name)).abs().max().item<double>();
    const double relative = error / scale;
    if (!(relative <= most)) most = std::isnan(relative) ? INFINITY : relative;
  }
  return most;
}

}  // namespace molen::train::suite
