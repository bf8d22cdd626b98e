#include "launch/init.h"

#include <ATen/ATen.h>

#include "arch/parameters.h"
#include "base/error.h"
#include "base/rng.h"

namespace molen::launch {
namespace {

// Fills `out` with elements [first, first + out.numel()) of a parameter, drawn in double and rounded once.
void fill(const arch::Parameter& parameter, std::uint64_t seed, std::int64_t first, at::Tensor out, int threads) {
  if (parameter.init != arch::Init::kNormal) {
    out.fill_(parameter.init == arch::Init::kOnes ? 1.0 : 0.0);
    return;
  }
  const std::uint64_t key = stream_key(seed, parameter.name);
  const std::int64_t n = out.numel();
  const auto draw = [&]<class T>(T* data) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (std::int64_t i = 0; i < n; ++i)
      data[i] = static_cast<T>(parameter.init_std * normal_at(key, static_cast<std::uint64_t>(first + i)));
  };
  if (out.device().is_cpu() && out.scalar_type() == at::kDouble) return draw(out.data_ptr<double>());
  if (out.device().is_cpu() && out.scalar_type() == at::kFloat) return draw(out.data_ptr<float>());
  // For another device or type, the same numbers are drawn on the host first.
  const bool wide = out.scalar_type() == at::kDouble;
  at::Tensor host = at::empty({n}, wide ? at::kDouble : at::kFloat);
  if (wide)
    draw(host.data_ptr<double>());
  else
    draw(host.data_ptr<float>());
  out.copy_(host);
}

}  // namespace

void initialize_parameters(exec::Executor& executor, std::uint64_t seed, int threads) {
  const c10::InferenceMode inference;
  const auto& p = executor.program();
  const auto parameters = arch::parameters(p.arch);
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u)
    for (const char* family : {"param", "master"}) {
      if (!executor.has_state(family)) continue;
      const auto [first, last] = executor.state_range(family, u);
      for (const auto& run : program::global_runs(p, executor.coordinates(), u, first, last))
        fill(parameters[static_cast<std::size_t>(run.parameter)], seed, run.first,
             executor.state(family, u).narrow(0, run.unit_first - first, run.count), threads);
    }
}

at::Tensor parameter_view(const exec::Executor& executor, int parameter) {
  const auto& p = executor.program();
  const auto shape = arch::parameters(p.arch).at(static_cast<std::size_t>(parameter)).shape;
  std::int64_t elements = 1;
  for (const std::int64_t n : shape) elements *= n;
  for (std::size_t u = 0; u < p.units.size(); ++u)
    for (const auto& entry : p.units[u].entries)
      if (program::parameter_at(p, executor.coordinates(), entry) == static_cast<std::size_t>(parameter))
        return executor.state("param", static_cast<int>(u)).narrow(0, entry.offset, elements).view(shape);
  MOLEN_CHECK(false, "parameter {} has no unit", parameter);
}

}  // namespace molen::launch
