#include "prove/proof.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "arch/parameters.h"
#include "base/error.h"
#include "base/rng.h"
#include "launch/checkpointing.h"
#include "launch/init.h"
#include "launch/traffic.h"
#include "program/ir/layout.h"

namespace molen::prove {
namespace {

// A tensor of which this rank holds some of the elements.
struct Part {
  at::Tensor values, held;
  explicit Part(at::IntArrayRef shape) : values(at::zeros(shape, at::kDouble)), held(at::zeros(shape, at::kBool)) {}
};

// Copies this rank's elements of [of.first, of.second) of a unit's state, divided by `scale`, to their places in the
// whole tensors.
void put(const exec::Executor& executor, const char* family, int unit, std::pair<std::int64_t, std::int64_t> of,
         const std::string& prefix, double scale, std::map<std::string, Part>& parts) {
  const auto& p = executor.program();
  const auto parameters = arch::parameters(p.arch);
  const auto [held, held_end] = executor.state_range(family, unit);
  const std::int64_t from = std::max(of.first, held), to = std::min(of.second, held_end);
  for (const auto& run : program::global_runs(p, executor.coordinates(), unit, from, std::max(from, to))) {
    Part& part = parts.at(prefix + parameters[static_cast<std::size_t>(run.parameter)].name);
    at::Tensor values = part.values.view(-1).narrow(0, run.first, run.count);
    values.copy_(executor.state(family, unit).narrow(0, run.unit_first - held, run.count));
    if (scale != 1.0) values.div_(scale);
    part.held.view(-1).narrow(0, run.first, run.count).fill_(true);
  }
}

constexpr const char* kGradient = "grad/";

std::map<std::string, Part> held_by(const exec::Executor& executor, double loss_scale) {
  const auto& p = executor.program();
  std::map<std::string, Part> parts;
  for (const auto& parameter : arch::parameters(p.arch))
    for (const char* prefix : {"", kGradient}) parts.emplace(prefix + parameter.name, parameter.shape);
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
    const auto& unit = p.units[static_cast<std::size_t>(u)];
    put(executor, "param", u, {0, unit.elements}, "", 1.0, parts);
    // When a rank has a whole gradient, only the rank's own part of it is the reduced sum.
    put(executor, "grad", u, program::unit_range(p.grid, executor.coordinates(), unit, program::Range::kOwn), kGradient,
        loss_scale, parts);
  }
  return parts;
}

// Returns the whole tensor. Ranks that hold the same element must hold the same bits of it. An element is NaN when they
// do not, or when no rank holds it.
at::Tensor join(const Part& part, comm::Communicator& world) {
  at::Tensor high = at::where(part.held, part.values, -INFINITY), low = at::where(part.held, part.values, INFINITY);
  world.all_reduce(high.data_ptr(), high.numel(), DType::kF64, comm::Reduce::kMax);
  world.all_reduce(low.data_ptr(), low.numel(), DType::kF64, comm::Reduce::kMin);
  return at::where(high == low, high, NAN);
}

void check_memory(const exec::Executor& executor) {
  if (!executor.device().is_cpu()) return;  // scratch comes from the device's allocator (parts_aten.cpp: temporary)
  for (std::size_t i = 0; i < executor.ops().size(); ++i) {
    const auto& e = executor.ops()[i];
    const std::int64_t planned =
        executor.memory().high_water[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(e.op)];
    const std::int64_t used = executor.high_water()[i];
    if (used != planned)
      throw Error("op %{} ({}) used memory up to byte {} where {} was planned", e.op, program::kind_of(e.step->op),
                  used, planned);
  }
}

// Returns the largest difference over the largest value; infinity when any value is NaN.
double relative(const at::Tensor& difference, double scale) {
  const double value = difference.abs().max().item<double>() / scale;
  return std::isnan(value) ? INFINITY : value;
}

// The key's bias shifts all scores of a query equally, so its gradient is zero except for rounding, which AdamW then
// amplifies. Its difference is therefore taken relative to the query's bias.
std::string scale_name(std::string name) {
  if (const auto at = name.find("k_proj.bias"); at != std::string::npos) name[at] = 'q';
  return name;
}

double worst_of(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0.0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = a[i] == b[i] ? 0.0 : std::abs(a[i] - b[i]) / std::abs(a[i]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

// Returns the largest relative difference of all losses that a step reports: the model's and those of routers.
double worst_loss(const Outcome& a, const Outcome& b) {
  return std::max({worst_of(a.losses, b.losses), worst_of(a.balance, b.balance), worst_of(a.z, b.z),
                   worst_of(a.dropped, b.dropped)});
}

// The number of terms in the sums that follow one another between a token and the loss, and from there to the gradient
// of the first parameter.
struct Chain {
  std::int64_t forward, whole;
};
Chain chain_of(const program::Program& p) {
  const arch::Architecture& a = p.arch;
  const std::int64_t sequence = p.setting.sequence, queries_of_key = sequence * (a.heads / a.kv_heads);
  // a variance sums as many terms as a mean
  const std::int64_t norm = a.norm == arch::Norm::kRms ? a.hidden : 2 * a.hidden;
  const std::int64_t norm_qk = a.norms_qk() ? a.query_norm_size() : 0;
  // A sparse layer adds the router's logits, softmax and weights, and the sum over the experts of a token, including
  // shared ones.
  const std::int64_t routing = a.experts ? a.hidden + a.experts->count + 2 * a.experts->per_token +
                                               (a.shares_experts() ? 1 : 0)
                                         : 0,
                     ffn = std::max({a.experts ? a.experts->ffn : 0, a.shared_ffn(), a.dense() ? a.ffn : 0}),
                     up = std::max({a.expert_up_size(), a.shared_up_size(), a.dense() ? a.up_size() : 0});
  // The sums of a layer are: norm, QKV, [norms of queries and keys], scores, their softmax, values, projection; norm,
  // [routing], up, down. The head's norm, product and logsumexp follow.
  const std::int64_t layer =
      norm + a.hidden + norm_qk + a.head_dim + 2 * sequence + a.query_size() + norm + routing + a.hidden + ffn;
  const std::int64_t head = norm + a.hidden + a.vocabulary, batch = p.setting.global_batch * sequence;
  // The gradient of a product's input is a sum over its outputs. The order is: from down to up and norm, then from the
  // projection to values, softmax, keys, QKV and norm.
  const std::int64_t back = a.hidden + routing + up + norm +  //
                            a.hidden + a.head_dim + sequence + queries_of_key + norm_qk + a.qkv_size() + norm;
  const std::int64_t forward = a.layers * layer + head;
  return {forward + batch, forward + a.vocabulary + norm + a.layers * back + batch};
}

// Returns the last op of the step that writes one of `values` of a unit, as in "body last, op %14 (reduce_scatter)".
std::string last_writer(const program::Program& p, const std::string& unit, const std::vector<program::Value>& values) {
  const int wanted = p.find_unit(unit);
  std::string found = "no op of the program writes it";
  for (const auto& instance : p.schedule) {
    const auto& body = p.bodies[static_cast<std::size_t>(instance.body)];
    for (std::size_t k = 0; k < body.steps.size(); ++k)
      for (const auto& use : body.steps[k].operands)
        for (const auto value : values)
          if (const auto& b = p.buffers[static_cast<std::size_t>(use.buffer)];
              use.writes() && b.role == value && b.unit == wanted)
            found = fmt::format("body {}, op %{} ({})", body.name, k, program::kind_of(body.steps[k].op));
  }
  return found;
}

// Returns the op that sums the loss and squares over ranks.
std::string sum_of_scalars(const program::Program& p) {
  for (const auto& body : p.bodies)
    for (std::size_t k = 0; k < body.steps.size(); ++k)
      if (std::holds_alternative<program::ReduceScalars>(body.steps[k].op))
        return fmt::format("summed by body {}, op %{} (reduce_scalars)", body.name, k);
  return "which no op sums over the ranks";
}

}  // namespace

ReadSamples synthetic_samples(const program::Setting& setting, std::int64_t vocabulary) {
  return [sequence = setting.sequence, micro = setting.micro_batch, vocabulary](std::int64_t first, std::int64_t count,
                                                                                const exec::MicroBatch& to) {
    std::int64_t valid = 0;
    for (std::int64_t row = 0; row < micro; ++row) {
      const std::int64_t sample = first + row;
      const auto start = static_cast<std::int64_t>(uniform_at(11, static_cast<std::uint64_t>(sample)) * 1000.0);
      std::int32_t document = 0;
      for (std::int64_t t = 0; t < sequence; ++t) {
        const std::int64_t at = row * sequence + t;
        const bool there = row < count, counts = there && !(sample % 2 == 1 && t % 5 == 0);
        to.ids[at] = there ? static_cast<std::int32_t>((start + t) % vocabulary) : 0;
        to.labels[at] = counts ? static_cast<std::int32_t>((start + t + 1) % vocabulary) : -1;
        if (there && (start + t) % (7 + sample % 3) == 0) document = static_cast<std::int32_t>(t);
        if (to.document_start) to.document_start[at] = document;
        valid += counts;
      }
    }
    return valid;
  };
}

exec::LoadMicroBatch loads_of_step(const exec::Executor& executor, const program::Setting& setting, ReadSamples read,
                                   std::int64_t step) {
  const int data_rank = program::data_rank(executor.program().grid, executor.coordinates());
  return [&s = setting, data_rank, read = std::move(read), step,
          micro = std::int64_t{0}](const exec::MicroBatch& to) mutable {
    const std::int64_t slot = (micro++ * s.data_ranks() + data_rank) * s.micro_batch;
    const std::int64_t count = std::clamp<std::int64_t>(s.global_batch - slot, 0, s.micro_batch);
    return read((step - 1) * s.global_batch + slot, count, to);
  };
}

Outcome prove(const program::Program& program, comm::Communicator& world, const ReadSamples& read, const Trial& trial) {
  const c10::InferenceMode inference;
  at::set_num_threads(program.setting.threads);
  exec::Executor executor(program, world.rank(), &world, trial.options);
  launch::initialize_parameters(executor, trial.seed, program.setting.threads);
  if (trial.prepare) trial.prepare(executor);
  const auto& s = program.setting;
  const auto planned = program::calls_of(program, executor.ops(), executor.coordinates());
  Outcome out;
  for (int step = 1; step <= trial.steps; ++step) {
    exec::StepInput input;
    input.step = step;
    input.optimizer.lr = trial.lr;
    if (s.scales_loss()) input.loss_scale = trial.loss_scale;
    input.load = loads_of_step(executor, s, read, step);
    const launch::Traffic before = launch::traffic_of(executor);
    const auto result = executor.run(input);
    out.traffic = launch::since(before, launch::traffic_of(executor));
    launch::require_planned(out.traffic, planned);
    if (program.setting.shares_experts())
      launch::require_planned_exchanges(out.traffic, planned, program.arch.drops_tokens(), world);
    if (result.non_finite) throw Error("step {}: the loss or the gradient is not finite", step);
    check_memory(executor);
    out.losses.push_back(result.mean_loss());
    if (program.arch.sparse()) {
      out.balance.push_back(result.balance_loss);
      out.z.push_back(result.z_loss);
      if (program.arch.drops_tokens()) out.dropped.push_back(result.dropped_share);
    }
    out.norms.push_back(result.grad_norm);
  }
  out.hash = launch::state_hash(executor, world);
  for (const auto& [name, part] : held_by(executor, s.scales_loss() ? trial.loss_scale : 1.0))
    out.tensors[name] = join(part, world);
  return out;
}

OutcomeBytes outcome_bytes(const arch::Architecture& arch) {
  // A parameter and its gradient are each kept as fp64 values with a mask of the held elements (Part), and then as the
  // joined tensor. Joining one parameter at a time needs its highest and lowest values and whether they agree.
  constexpr std::int64_t kPart = sizeof(double) + 1, kJoining = 2 * sizeof(double) + 1;
  std::int64_t all = 0, largest = 0;
  for (const auto& parameter : arch::parameters(arch)) {
    std::int64_t elements = 1;
    for (const std::int64_t n : parameter.shape) elements *= n;
    all += elements;
    largest = std::max(largest, elements);
  }
  const std::int64_t made = 2 * all * static_cast<std::int64_t>(sizeof(double));
  return {Bytes(made + 2 * all * kPart + largest * kJoining), Bytes(made)};
}

Difference difference(const Outcome& a, const Outcome& b) {
  Difference d{worst_loss(a, b), worst_of(a.norms, b.norms), 0, 0, "", ""};
  for (const auto& [name, x] : a.tensors) {
    const bool gradient = name.rfind(kGradient, 0) == 0;
    const double scale = a.tensors.at(scale_name(name)).abs().max().item<double>();
    const double error = relative(x - b.tensors.at(name), scale);
    double& worst = gradient ? d.gradients : d.parameters;
    if (error > worst) {
      worst = error;
      (gradient ? d.worst_gradient : d.worst_parameter) = name;
    }
  }
  return d;
}

double over_bounds(const Difference& d, const Bounds& b) {
  double worst = 0;
  for (const auto& [off, bound] :
       {std::pair{d.loss, b.loss}, {d.norm, b.norm}, {d.parameters, b.parameters}, {d.gradients, b.gradients}}) {
    // A maximum would drop NaN, and inf / inf would be NaN.
    if (!std::isfinite(off)) return INFINITY;
    worst = std::max(worst, off / bound);
  }
  return worst;
}

Bounds bounds_of(const program::Program& p) {
  if (p.setting.compute == DType::kF64) return {1e-9, 1e-9, 1e-9, 1e-9};
  MOLEN_CHECK(p.setting.compute == DType::kF32, "no bound for {}", name_of(p.setting.compute));
  const auto bound = [](std::int64_t terms) {
    return 2 * std::sqrt(static_cast<double>(terms)) * 0x1p-24;  // both sides of the comparison round
  };
  const Chain terms = chain_of(p);
  return {bound(terms.forward), bound(terms.whole), INFINITY, bound(terms.whole)};
}

Bounds bounds_beside(const Outcome& exact, const Outcome& rounded) {
  const Difference d = difference(exact, rounded);
  const double bound = 4 * std::max({d.loss, d.norm, d.gradients});
  return {bound, bound, INFINITY, bound};
}

std::string first_difference(const std::vector<program::Program>& stages, const Outcome& reference,
                             const Outcome& outcome, const Bounds& bounds) {
  const auto parameters = arch::parameters(stages.front().arch);
  const auto differs = [&](const std::string& prefix, const std::string& name, double bound) {
    const double scale = reference.tensors.at(prefix + scale_name(name)).abs().max().item<double>();
    return !(relative(reference.tensors.at(prefix + name) - outcome.tensors.at(prefix + name), scale) <= bound);
  };
  // Returns the name of the first parameter that differs. The candidates are the parameters that an entry of a unit
  // holds on the expert ranks.
  const auto differing = [&](const program::Program& p, const program::UnitEntry& entry, const std::string& prefix,
                             double bound) -> std::optional<std::string> {
    for (mesh::PerAxis at{}; at[mesh::Axis::kEp] < p.setting.expert_ranks(); ++at[mesh::Axis::kEp]) {
      const auto& name = parameters[program::parameter_at(p, at, entry)].name;
      if (differs(prefix, name, bound)) return name;
    }
    return std::nullopt;
  };
  const auto in_pipeline = [&](const program::Program& p) {
    return p.setting.pipelined() ? fmt::format("stage {}, ", p.setting.pipeline.stage) : "";
  };
  for (auto p = stages.rbegin(); p != stages.rend(); ++p)
    for (auto unit = p->units.rbegin(); unit != p->units.rend(); ++unit)
      for (auto entry = unit->entries.rbegin(); entry != unit->entries.rend(); ++entry)
        if (const auto name = differing(*p, *entry, kGradient, bounds.gradients))
          return fmt::format("the gradient of {}, last written by {}{}", *name, in_pipeline(*p),
                             last_writer(*p, unit->name, {program::Value::kGrad, program::Value::kGradShard}));
  for (const auto& [name, off, bound] :
       {std::tuple{"loss", worst_loss(reference, outcome), bounds.loss},
        {"norm of the gradients", worst_of(reference.norms, outcome.norms), bounds.norm}})
    if (off > bound) return fmt::format("the {}, {}", name, sum_of_scalars(stages.front()));
  for (const auto& p : stages)
    for (const auto& unit : p.units)
      for (const auto& entry : unit.entries)
        if (const auto name = differing(p, entry, "", bounds.parameters))
          return fmt::format("{}, last written by {}{}", *name, in_pipeline(p),
                             last_writer(p, unit.name, {program::Value::kParam, program::Value::kParamShard}));
  return "nothing in its first step";
}

}  // namespace molen::prove
