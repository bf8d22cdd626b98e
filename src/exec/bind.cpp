#include "exec/bind.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"
#include "base/match.h"
#include "exec/bind_compute.h"
#include "optim/adamw.h"
#include "program/signature.h"

namespace molen::exec {
namespace {

using program::Program;
using program::Step;

Kernel bind_load(const BindContext& c, const Step& step) {
  auto ids = c.flat(step.writes.at(0).buffer), labels = c.flat(step.writes.at(1).buffer),
       scalars = c.flat(step.writes.at(2).buffer);
  const std::size_t count = static_cast<std::size_t>(ids.numel());
  if (ids.device().is_cpu())
    return [=](RunState& run, math::Scratch&) {
      const std::int64_t valid = run.input->load(ids.data_ptr<std::int32_t>(), labels.data_ptr<std::int32_t>());
      scalars.data_ptr<double>()[program::kValidTokens] += static_cast<double>(valid);
    };
  return [=](RunState& run, math::Scratch&) mutable {
    run.ids.resize(count);
    run.labels.resize(count);
    const std::int64_t valid = run.input->load(run.ids.data(), run.labels.data());
    ids.copy_(at::from_blob(run.ids.data(), {ids.numel()}, at::kInt));
    labels.copy_(at::from_blob(run.labels.data(), {labels.numel()}, at::kInt));
    scalars.select(0, program::kValidTokens).add_(static_cast<double>(valid));
  };
}

Kernel bind_sum_squares(const BindContext& c, const Step& step) {
  const auto [first, last] = range_of(c.program, step.reads.at(0), c.dp_rank);
  auto grad = c.flat(step.reads[0].buffer).narrow(0, first, last - first), scalars = c.flat(step.writes.at(0).buffer);
  const int threads = c.program.setting.threads;
  return [=](RunState&, math::Scratch&) mutable {
    if (!grad.device().is_cpu()) {
      scalars.select(0, program::kSumSquares).add_(grad.to(at::kDouble).square().sum());
      return;
    }
    const double sum = grad.scalar_type() == at::kDouble
                           ? optim::sum_squares(grad.data_ptr<double>(), grad.numel(), threads)
                           : optim::sum_squares(grad.data_ptr<float>(), grad.numel(), threads);
    scalars.data_ptr<double>()[program::kSumSquares] += sum;
  };
}

Kernel bind_clip(const BindContext& c, const Step& step) {
  auto scalars = c.flat(step.writes.at(0).buffer);
  const double places =
      static_cast<double>(c.program.setting.global_batch) * static_cast<double>(c.program.setting.sequence);
  return [=](RunState& run, math::Scratch&) mutable {
    auto host = scalars.device().is_cpu() ? scalars : scalars.to(at::kCPU);
    double* s = host.data_ptr<double>();
    const double mean = s[program::kValidTokens] > 0 ? places / s[program::kValidTokens] : 0.0;
    const double norm = std::sqrt(s[program::kSumSquares]) * mean;
    s[program::kGradNorm] = norm;
    // As torch.nn.utils.clip_grad_norm_: min(1, clip / (norm + 1e-6)).
    const double clip = run.input->clip;
    s[program::kGradScale] = mean * (clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0);
    if (!scalars.device().is_cpu()) scalars.copy_(host);
  };
}

Kernel bind_agree(const BindContext& c, const Step& step) {
  auto scalars = c.flat(step.reads.at(0).buffer);
  return [=](RunState& run, math::Scratch&) {
    const auto host = scalars.to(at::kCPU);
    const double* s = host.data_ptr<double>();
    run.non_finite = !std::isfinite(s[program::kLossSum]) || !std::isfinite(s[program::kGradNorm]) ||
                     !(s[program::kValidTokens] > 0);
  };
}

template <class T>
void update_entry(const StepInput& input, bool decay, double scale, std::int64_t n, int threads, const at::Tensor& grad,
                  at::Tensor& target, at::Tensor& m, at::Tensor& v) {
  optim::adamw_update<T>(input.optimizer, input.step, decay, scale, n, threads, grad.data_ptr<T>(),
                         target.data_ptr<T>(), m.data_ptr<T>(), v.data_ptr<T>());
}

// One run of elements of a unit that this rank updates, all with or all without weight decay.
struct Run {
  bool decay;
  at::Tensor grad, param, m, v, master;
};

std::vector<Run> runs_of(const BindContext& c, const Step& step) {
  const int unit = program::unit_of_step(c.program, step);
  const auto& u = c.program.units[static_cast<std::size_t>(unit)];
  const auto [first, last] = range_of(c.program, step.reads.at(0), c.dp_rank);
  const bool master = step.writes.size() > 3;
  std::vector<Run> runs;
  for (const auto& entry : u.entries) {
    const auto& parameter = c.parameters[static_cast<std::size_t>(entry.parameter)];
    const std::int64_t from = std::max(first, entry.offset), to = std::min(last, entry.offset + parameter.elements());
    if (from >= to) continue;
    const auto part = [&](int buffer, std::int64_t origin) {
      return c.flat(buffer).narrow(0, from - origin, to - from);
    };
    Run run{parameter.decay, part(step.reads[0].buffer, 0), part(step.writes.at(0).buffer, 0), {}, {}, {}};
    // Moments and master weights hold the owned range only.
    const std::int64_t origin = c.program.setting.zero >= 1 ? first : 0;
    run.m = part(step.writes.at(1).buffer, origin);
    run.v = part(step.writes.at(2).buffer, origin);
    if (master) run.master = part(step.writes.at(3).buffer, origin);
    runs.push_back(std::move(run));
  }
  return runs;
}

void update_on_device(const StepInput& input, Run& run, const at::Tensor& scalars) {
  at::Tensor& target = run.master.defined() ? run.master : run.param;
  // The fused op divides gradients by grad_scale.
  const at::Tensor inverse = scalars.select(0, program::kGradScale).reciprocal().to(at::kFloat);
  const at::Tensor step = at::full({}, static_cast<double>(input.step), run.grad.options().dtype(at::kFloat));
  const double decay = run.decay ? input.optimizer.weight_decay : 0.0;
  at::_fused_adamw_({target}, {run.grad}, {run.m}, {run.v}, {}, {step}, input.optimizer.lr, input.optimizer.beta1,
                    input.optimizer.beta2, decay, input.optimizer.eps, false, false, inverse);
}

Kernel bind_optimizer(const BindContext& c, const Step& step) {
  auto runs = runs_of(c, step);
  auto scalars = c.flat(step.reads.at(1).buffer);
  const int threads = c.program.setting.threads;
  return [=](RunState& state, math::Scratch&) mutable {
    for (Run& run : runs) {
      if (!scalars.device().is_cpu()) {
        update_on_device(*state.input, run, scalars);
      } else {
        at::Tensor& target = run.master.defined() ? run.master : run.param;
        const double scale = scalars.data_ptr<double>()[program::kGradScale];
        const std::int64_t n = run.grad.numel();
        if (run.grad.scalar_type() == at::kDouble)
          update_entry<double>(*state.input, run.decay, scale, n, threads, run.grad, target, run.m, run.v);
        else
          update_entry<float>(*state.input, run.decay, scale, n, threads, run.grad, target, run.m, run.v);
      }
      if (run.master.defined()) run.param.copy_(run.master);
    }
  };
}

std::vector<std::int64_t> owned_counts(const Program& p, int buffer) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < p.setting.data_ranks; ++r) {
    const auto [first, last] =
        program::owned_range(p.buffers[static_cast<std::size_t>(buffer)].elements, r, p.setting.data_ranks);
    counts.push_back(last - first);
  }
  return counts;
}

Kernel bind_collective(const BindContext& c, const Step& step) {
  MOLEN_CHECK(c.dp != nullptr, "a program with collectives needs a communicator");
  comm::Communicator* dp = c.dp;
  const int buffer = step.writes.at(0).buffer;
  const DType dtype = c.program.buffers[static_cast<std::size_t>(buffer)].dtype;
  auto tensor = c.flat(buffer);
  const auto [first, last] = program::owned_range(tensor.numel(), c.dp_rank, c.program.setting.data_ranks);
  const auto counts = owned_counts(c.program, buffer);
  char* base = static_cast<char*>(tensor.data_ptr());
  char* own = base + first * size_of(dtype);
  const std::int64_t all = tensor.numel();
  return std::visit(
      Match{
          [&](const program::AllReduce&) -> Kernel {
            return [=](RunState&, math::Scratch&) { dp->all_reduce(base, all, dtype, comm::Reduce::kSum); };
          },
          [&](const program::ReduceScatter&) -> Kernel {
            return [=](RunState&, math::Scratch&) { dp->reduce_scatter(base, own, counts, dtype, comm::Reduce::kSum); };
          },
          [&](const program::AllGather&) -> Kernel {
            return [=](RunState&, math::Scratch&) { dp->all_gather(own, base, counts, dtype); };
          },
          [&](const program::ReduceScalars& o) -> Kernel {
            const std::int64_t count = o.count;
            return [=](RunState&, math::Scratch&) { dp->all_reduce(base, count, DType::kF64, comm::Reduce::kSum); };
          },
          [](const auto&) -> Kernel { throw Error("not a collective"); },
      },
      step.op);
}

}  // namespace

std::pair<std::int64_t, std::int64_t> range_of(const Program& program, const program::Use& use, int dp_rank) {
  const std::int64_t elements = program.buffers.at(static_cast<std::size_t>(use.buffer)).elements;
  if (use.range == program::Range::kAll) return {0, elements};
  return program::owned_range(elements, dp_rank, program.setting.data_ranks);
}

Kernel bind(const BindContext& c, const Step& step) {
  return std::visit(Match{
                        [&](const program::Compute& op) { return bind_compute(c, step, op); },
                        [&](const program::LoadBatch&) { return bind_load(c, step); },
                        [&](const program::ZeroFill&) -> Kernel {
                          auto target = c.flat(step.writes.at(0).buffer);
                          return [=](RunState&, math::Scratch&) mutable { target.zero_(); };
                        },
                        [&](const program::SumSquares&) { return bind_sum_squares(c, step); },
                        [&](const program::ClipScale&) { return bind_clip(c, step); },
                        [&](const program::OptimizerStep&) { return bind_optimizer(c, step); },
                        [&](const program::AllReduce&) { return bind_collective(c, step); },
                        [&](const program::ReduceScatter&) { return bind_collective(c, step); },
                        [&](const program::AllGather&) { return bind_collective(c, step); },
                        [&](const program::ReduceScalars&) { return bind_collective(c, step); },
                        [&](const program::Agree&) { return bind_agree(c, step); },
                    },
                    step.op);
}

}  // namespace molen::exec
