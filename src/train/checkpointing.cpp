#include "train/checkpointing.h"

#include <ATen/ATen.h>

#include "arch/parameters.h"
#include "base/error.h"

namespace molen::train {
namespace {

DType dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    default:
      throw Error("state of an unexpected type");
  }
}

constexpr std::int64_t kPiece = 1 << 18;  // elements read at a time

struct Family {
  std::string storage, prefix;
};

std::vector<Family> families(const exec::Executor& executor) {
  return {{executor.has_state("master") ? "master" : "param", ""}, {"m", "optimizer.m/"}, {"v", "optimizer.v/"}};
}

// Calls f(name, parameter, offset in the parameter, tensor view of the run) for each run of elements of [first, last)
// of a unit.
template <class F>
void each_run(const exec::Executor& executor, const Family& family, int unit, std::int64_t first, std::int64_t last,
              F&& f) {
  const auto& program = executor.program();
  const auto parameters = arch::parameters(program.arch);
  const at::Tensor state = executor.state(family.storage, unit);
  const auto [held_first, held_last] = executor.state_range(family.storage, unit);
  MOLEN_CHECK(held_first <= first && last <= held_last, "state [{}, {}) asked for [{}, {})", held_first, held_last,
              first, last);
  for (const auto& run : program::global_runs(program, executor.coordinates(), unit, first, last)) {
    const auto& p = parameters[static_cast<std::size_t>(run.parameter)];
    f(family.prefix + p.name, p, run.first, state.narrow(0, run.unit_first - held_first, run.count));
  }
}

}  // namespace

std::vector<checkpoint::Span> spans_of(const exec::Executor& executor) {
  const c10::InferenceMode inference;
  std::vector<checkpoint::Span> spans;
  for (const Family& family : families(executor))
    for (std::size_t u = 0; u < executor.program().units.size(); ++u) {
      const auto& p = executor.program();
      if (!p.counts(static_cast<int>(u))) continue;
      const auto [tile, tile_end] = program::unit_tile(p.setting, executor.coordinates(), p.units[u].elements);
      const auto [first, last] = program::counted_once(executor.coordinates(), p.units[u], tile, tile_end);
      each_run(executor, family, static_cast<int>(u), first, last,
               [&](const std::string& name, const arch::Parameter& p, std::int64_t offset, const at::Tensor& values) {
                 checkpoint::Span span{name, dtype_of(values), p.shape, offset, values.numel(), nullptr, {}};
                 if (values.device().is_cpu())
                   span.data = values.data_ptr();
                 else
                   span.read = [values](std::int64_t at, std::int64_t count, void* destination) {
                     const at::Tensor host = values.narrow(0, at, count).to(at::kCPU);
                     std::memcpy(destination, host.data_ptr(), host.nbytes());
                   };
                 spans.push_back(std::move(span));
               });
    }
  return spans;
}

void load_state(const checkpoint::Checkpoint& from, exec::Executor& executor, bool weights_only) {
  const c10::InferenceMode inference;
  const auto load = [&](const Family& family, const std::string& stored_prefix) {
    for (std::size_t u = 0; u < executor.program().units.size(); ++u) {
      const auto [first, last] = executor.state_range(family.storage, static_cast<int>(u));
      each_run(executor, family, static_cast<int>(u), first, last,
               [&](const std::string&, const arch::Parameter& p, std::int64_t offset, at::Tensor values) {
                 const std::string name = stored_prefix + p.name;
                 const auto& stored = from.tensor(name);
                 if (stored.shape != p.shape)
                   throw UsageError("{}: tensor {} has another shape than the model", from.path().string(), name);
                 // In pieces: a whole embedding table beside the arena would show in the process's peak.
                 at::Tensor host = at::empty({std::min(values.numel(), kPiece)}, exec::to_aten(stored.dtype));
                 for (std::int64_t at = 0; at < values.numel(); at += kPiece) {
                   const std::int64_t n = std::min(kPiece, values.numel() - at);
                   from.read(name, offset + at, n, host.data_ptr());
                   values.narrow(0, at, n).copy_(host.narrow(0, 0, n));
                 }
               });
    }
  };
  load({"param", ""}, "");
  if (executor.has_state("master")) load({"master", ""}, "");
  if (weights_only) return;
  load({"m", ""}, "optimizer.m/");
  load({"v", ""}, "optimizer.v/");
}

std::string state_hash(const exec::Executor& executor, comm::Communicator& world) {
  checkpoint::StateDigest digest;
  for (const auto& span : spans_of(executor)) {
    std::vector<char> staged;
    const void* data = span.data;
    if (!data) {
      staged.resize(static_cast<std::size_t>(span.count * size_of(span.dtype)));
      span.read(0, span.count, staged.data());
      data = staged.data();
    }
    digest.add(span.tensor, span.dtype, span.shape, span.offset, span.count, data);
  }
  auto lanes = digest.lanes();
  // Sums modulo 2^64 are the same bits signed and unsigned.
  world.all_reduce(lanes.data(), 2, DType::kI64, comm::Reduce::kSum);
  return checkpoint::StateDigest::from_lanes(lanes).hex();
}

checkpoint::Agree agree_over(comm::Communicator& world) {
  return [&world](bool ok) {
    std::int32_t flag = ok ? 1 : 0;
    world.all_reduce(&flag, 1, DType::kI32, comm::Reduce::kMin);
    return flag == 1;
  };
}

}  // namespace molen::train
