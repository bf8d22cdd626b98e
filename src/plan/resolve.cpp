#include "plan/resolve.h"

#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "plan/framework.h"
#include "plan/recompute.h"
#include "plan/resolve_parallel.h"
#include "policy/step_policy.h"
#include "program/build/build.h"
#include "program/parts/part.h"

namespace molen::plan {
program::KernelRequest attention_request(const program::Setting& s, const arch::Architecture& arch, bool cuda) {
  return {.compute = s.compute,
          .head_dim = arch.head_dim,
          .documents = s.document_mask,
          .context_ranks = s.context_ranks(),
          .cuda = cuda};
}

std::optional<std::string> leave_tiles(program::Setting& s, const arch::Architecture& arch, bool cuda) {
  auto others = program::without_flash(s.kernels, attention_request(s, arch, cuda));
  if (!others) return others.reason();
  s.other_kernels = std::move(others).value();
  return std::nullopt;
}

namespace {

using config::Config;
using config::Horizon;

template <class T>
void override_with(const std::optional<T>& value, T& target) {
  if (value) target = *value;
}

template <class E>
E choice(const Config& config, const std::string& key, const std::string& value,
         std::initializer_list<std::pair<const char*, E>> known) {
  for (const auto& [name, e] : known)
    if (value == name) return e;
  throw UsageError("{}: unknown value '{}'", config.where(key), value);
}

void family_defaults(arch::Architecture& a) {
  if (a.family == arch::Family::kLlama) return;
  a.norm = arch::Norm::kLayer;
  a.position = arch::Position::kLearned;
  a.activation = arch::Activation::kGeluTanh;
  a.biases = true;
}

void require_sizes(const Config& config) {
  const auto& m = config.model;
  const std::pair<const char*, bool> needed[] = {{"model.layers", m.layers.has_value()},
                                                 {"model.hidden", m.hidden.has_value()},
                                                 {"model.heads", m.heads.has_value()},
                                                 {"model.vocabulary", m.vocabulary.has_value()},
                                                 {"model.max_sequence", m.max_sequence.has_value()}};
  for (const auto& [key, given] : needed)
    if (!given)
      throw UsageError("{}: needed where model.preset is not given (`molen model list` shows the presets)", key);
}

void resolve_experts(const Config& config, arch::Architecture& a) {
  const auto& m = config.model;
  const bool sparse_preset = a.sparse();
  if (m.experts && !a.experts) {
    if (!m.experts_per_token)
      throw UsageError("model.experts_per_token: needed with {}; it says how many of them a token meets",
                       config.where("model.experts"));
    a.experts = arch::Experts{.ffn = a.ffn};
  }
  const std::pair<const char*, bool> of_experts[] = {{"model.experts_per_token", m.experts_per_token.has_value()},
                                                     {"model.expert_ffn", m.expert_ffn.has_value()},
                                                     {"model.shared_experts", m.shared_experts.has_value()},
                                                     {"model.dense_layers", m.dense_layers.has_value()},
                                                     {"model.norm_topk", m.norm_topk.has_value()},
                                                     {"model.router_scores", m.router_scores.has_value()},
                                                     {"model.router_scale", m.router_scale.has_value()},
                                                     {"model.router_bias_rate", m.router_bias_rate.has_value()},
                                                     {"model.expert_capacity", m.expert_capacity.has_value()},
                                                     {"model.balance_loss", m.balance_loss.has_value()},
                                                     {"model.z_loss", m.z_loss.has_value()}};
  for (const auto& [key, given] : of_experts)
    if (given && !a.experts)
      throw UsageError("{}: this model has no experts; model.experts says how many", config.where(key));
  if (!a.experts) return;
  override_with(m.dense_layers, a.experts->dense_layers);
  if (m.ffn && sparse_preset && a.experts->dense_layers == 0)
    throw UsageError("{}: every layer of this preset has experts, whose width is model.expert_ffn",
                     config.where("model.ffn"));
  override_with(m.experts, a.experts->count);
  override_with(m.experts_per_token, a.experts->per_token);
  override_with(m.expert_ffn, a.experts->ffn);
  override_with(m.shared_experts, a.experts->shared);
  override_with(m.norm_topk, a.experts->norm_topk);
  override_with(m.balance_loss, a.experts->balance_loss);
  override_with(m.z_loss, a.experts->z_loss);
  override_with(m.router_scale, a.experts->scale);
  override_with(m.router_bias_rate, a.experts->bias_rate);
  override_with(m.expert_capacity, a.experts->capacity);
  if (m.router_scores)
    a.experts->scores = choice<arch::RouterScores>(
        config, "model.router_scores", *m.router_scores,
        {{"softmax", arch::RouterScores::kSoftmax}, {"sigmoid", arch::RouterScores::kSigmoid}});
}

void not_built(const Config& config, bool wanted, const std::string& key, const std::string& built) {
  if (wanted) throw UsageError("{}: only {} is built yet", config.where(key), built);
}

void refuse_unbuilt(const Config& c) {
  not_built(c, !c.train.deterministic, "train.deterministic", "true");
}

// Refuses an energy policy that there is not, and keys that would have no effect beside it.
void check_energy_policy(const Config& c) {
  const std::string& name = c.energy.policy;
  std::vector<std::string> names = policy::step_policy_names();
  names.insert(names.begin(), "none");
  names.emplace_back("slack");  // its clocks are the program's
  if (std::ranges::find(names, name) == names.end())
    throw UsageError("{}: no policy is called '{}'; there are {}{}", c.where("energy.policy"), name,
                     fmt::join(names, ", "), did_you_mean(name, names));
  if (c.energy.slowdown > 0 && name != "min_energy" && name != "sweep" && name != "slack")
    throw UsageError(
        "{}: only the policies min_energy, sweep and slack take a bound of the slowdown; energy.policy is {}",
        c.where("energy.slowdown"), name);
  if (c.energy.slowdown >= 1)
    throw UsageError("{}: a step may take less than twice as long, so it must be below 100 %; it is {:g} %",
                     c.where("energy.slowdown"), 100.0 * c.energy.slowdown);
  if (c.energy.power_budget && name != "none" && name != "monitor")
    throw UsageError(
        "{}: a budget of power chooses the settings itself, so energy.policy must be none or monitor; it is {}",
        c.where("energy.power_budget"), name);
}

void resolve_offload(const Config& c, const arch::Architecture& arch, program::Setting& s) {
  for (const std::string& what : c.parallel.offload)
    for (const auto& [name, on] : program::kOffloads) s.offload.*on = s.offload.*on || what == name;
  if (const auto why = program::offload_refused(arch, s)) throw UsageError("{}: {}", c.where("parallel.offload"), *why);
}

// Turns a budget into the cheapest choice whose plan fits it, and writes the choice back, so that every later reader of
// the configuration sees it.
void resolve_recompute(Config& c, const arch::Architecture& arch, program::Setting& s) {
  using Mode = config::Recompute::Mode;
  const std::string key = "parallel.recompute", where = c.where(key);
  const config::Recompute wanted = c.parallel.recompute;
  try {
    if (wanted.mode == Mode::kFull) s.recompute = program::Recompute::full(wanted.every);
    for (const std::string& part : wanted.parts) {
      program::add_part(s.recompute, part);
      if (std::ranges::none_of(arch::parts_in_order(arch), [&](arch::Part has) { return arch::name_of(has) == part; }))
        throw UsageError("'{}' is no part of this model's layers", part);
    }
    if (wanted.mode == Mode::kParts) s.recompute.every = wanted.every;
    if (s.recompute.every > arch.layers)
      throw UsageError("every {} layers of a model that has {}", s.recompute.every, arch.layers);
    if (wanted.mode != Mode::kBudget) return;
    const auto file = read_schedule(c);
    const RecomputeChoice choice = recompute_within(arch, s, wanted.budget, file ? &*file : nullptr);
    s.recompute = choice.recompute;
    config::assign(c, key, program::text_of(choice.recompute),
                   {config::Origin::Kind::kOther,
                    fmt::format("derived: a plan of {} within {}", human(choice.peak), config::print(wanted.budget))});
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", where, error.what());
  }
}

// Refuses settings that are not built for models with sparse layers.
void refuse_experts(const Config& c, const arch::Architecture& arch, const Machine& machine,
                    const program::Setting& s) {
  if (!arch.sparse()) return;
  if (machine.cuda)
    throw UsageError("{}: experts (model.experts) are computed on the host's cores alone yet", c.where("device.kind"));
  for (const arch::Part part : arch::parts_in_order(arch))
    if (const auto why = program::kernels_refused(s.kernels, part, {.compute = s.compute}))
      throw UsageError("{}: {}", c.where("precision.compute"), *why);
  if (const auto why = program::chunks_refused(arch, s))
    throw UsageError("{}: {}", c.where("parallel.tensor_chunks"), *why);
  if (const auto why = program::reduce_refused(arch, s)) throw UsageError("{}: {}", c.where("precision.reduce"), *why);
}

DType resolve_precision(Config& c, const Machine& machine, int threads) {
  std::string name = c.precision.compute;
  if (name == "auto") {
    std::string why = machine.cuda ? "derived: bf16 on CUDA, not measured" : "derived: not measured on this machine";
    name = machine.cuda ? "bf16" : "fp32";
    if (machine.measure_precision) {
      const PrecisionRates rates = machine.measure_precision(threads);
      name = rates.bf16 > rates.fp32 ? "bf16" : "fp32";
      why = fmt::format("measured{}: fp32 {:.0f}, bf16 {:.0f} GFLOP/s",
                        rates.measured.empty() ? "" : " on " + rates.measured, rates.fp32, rates.bf16);
    }
    config::assign(c, "precision.compute", name, {config::Origin::Kind::kOther, why});
  }
  return dtype_from_name(name);
}

}  // namespace

arch::Architecture resolve_architecture(const Config& config) {
  const auto& m = config.model;
  arch::Architecture a;
  if (m.preset) {
    a = arch::preset(*m.preset);
  } else {
    if (!m.family) throw UsageError("model.preset: a preset, or model.family with its sizes, is needed");
    require_sizes(config);
    a.name = "custom";
  }
  if (m.family) {
    a.family = choice<arch::Family>(config, "model.family", *m.family,
                                    {{"llama", arch::Family::kLlama}, {"gpt", arch::Family::kGpt}});
    if (!m.preset) family_defaults(a);
  }
  const arch::Architecture before = a;
  override_with(m.layers, a.layers);
  override_with(m.hidden, a.hidden);
  override_with(m.heads, a.heads);
  override_with(m.vocabulary, a.vocabulary);
  override_with(m.max_sequence, a.max_sequence);
  override_with(m.kv_heads, a.kv_heads);
  override_with(m.head_dim, a.head_dim);
  override_with(m.ffn, a.ffn);
  // These sizes follow from others when the configuration does not give them.
  if (!m.kv_heads && (a.kv_heads == 0 || (m.heads && before.kv_heads == before.heads))) a.kv_heads = a.heads;
  if (!m.head_dim && (a.head_dim == 0 || m.hidden || m.heads) && a.heads > 0) a.head_dim = a.hidden / a.heads;
  if (!m.ffn && a.ffn == 0) a.ffn = 4 * a.hidden;
  override_with(m.rope_theta, a.rope_theta);
  override_with(m.tied, a.tied);
  override_with(m.biases, a.biases);
  override_with(m.norm_eps, a.norm_eps);
  override_with(m.init_std, a.init_std);
  if (m.rope_scaling)
    a.rope_scaling = arch::RopeScaling{m.rope_scaling->factor, m.rope_scaling->low_freq_factor,
                                       m.rope_scaling->high_freq_factor, m.rope_scaling->original_max_sequence};
  if (m.norm)
    a.norm = choice<arch::Norm>(
        config, "model.norm", *m.norm,
        {{"rms", arch::Norm::kRms}, {"layer", arch::Norm::kLayer}, {"layer_plain", arch::Norm::kLayerPlain}});
  if (m.qk_norm)
    a.qk_norm = choice<arch::QkNorm>(
        config, "model.qk_norm", *m.qk_norm,
        {{"none", arch::QkNorm::kNone}, {"head", arch::QkNorm::kHead}, {"all", arch::QkNorm::kAll}});
  if (m.position)
    a.position = choice<arch::Position>(
        config, "model.position", *m.position,
        {{"rope", arch::Position::kRope}, {"learned", arch::Position::kLearned}, {"alibi", arch::Position::kAlibi}});
  if (m.activation)
    a.activation =
        choice<arch::Activation>(config, "model.activation", *m.activation,
                                 {{"swiglu", arch::Activation::kSwiGlu}, {"gelu_tanh", arch::Activation::kGeluTanh}});
  resolve_experts(config, a);
  if (m.preset && !(a == before)) a.name += "*";  // a preset with changes
  arch::validate(a);
  return a;
}

int auto_threads(int local_ranks) {
  cpu_set_t mask;
  int cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0) cores = CPU_COUNT(&mask);
  return std::max(1, cores / std::max(1, local_ranks));
}

arch::Kernels resolve_kernels(const Config& c, bool cuda, DType compute) {
  const bool reference = c.math.kernels == "reference", narrow = compute == DType::kBF16 || compute == DType::kF16;
  if (reference && cuda)
    throw UsageError("{}: the reference kernels compute in the host's memory, not on cuda; device.kind = \"cpu\" does",
                     c.where("math.kernels"));
  if (reference && narrow)
    throw UsageError("{}: the reference kernels compute in fp64 or fp32, not in {}", c.where("math.kernels"),
                     name_of(compute));
  if (cuda || narrow) return arch::Kernels::kAten;
  if (compute != DType::kF64) return reference ? arch::Kernels::kReference : arch::Kernels::kFused;
  // Kernels that the configuration asks for are not replaced by others; "fused" as the default may be.
  if (!reference && c.origins.count("math.kernels") > 0)
    throw UsageError("{}: fp64 has the reference kernels alone on the host", c.where("math.kernels"));
  return arch::Kernels::kReference;
}

void resolve_attention(const Config& c, const arch::Architecture& arch, const Machine& machine, program::Setting& s) {
  if (!c.math.flash_attention)
    if (const auto why = leave_tiles(s, arch, machine.cuda))
      throw UsageError("{}: {}", c.where("math.flash_attention"), *why);
  constexpr auto kPart = arch::Part::kAttention;
  const auto why = program::kernels_refused(s.kernels_of(kPart), kPart, attention_request(s, arch, machine.cuda));
  if (!why) return;
  program::Setting other = s;
  const bool helps = c.math.flash_attention && !leave_tiles(other, arch, machine.cuda);
  throw UsageError("{}: {}{}", c.where(s.document_mask ? "data.document_mask" : "math.kernels"), *why,
                   helps ? "; math.flash_attention = false has no such limit" : "");
}

program::Setting resolve_setting(Config& c, const arch::Architecture& arch, const Machine& machine) {
  refuse_unbuilt(c);
  if (!machine.described) require_molen(c, "this command is for");
  check_energy_policy(c);
  program::Setting s;
  resolve_parallel(c, arch, machine, s);
  resolve_offload(c, arch, s);
  s.global_batch = c.batch.global;
  s.micro_batch = c.batch.micro;
  s.sequence = c.data.sequence_length;
  s.document_mask = c.data.document_mask;
  s.optimizer = c.optimizer.kind;
  if (const auto why = program::optimizer_refused(s)) throw UsageError("{}: {}", c.where("optimizer.kind"), *why);
  s.head_chunk = arch::head_chunk(arch.vocabulary, machine.cuda);
  if (s.sequence > arch.max_sequence)
    throw UsageError("{}: {} is more than model.max_sequence {}", c.where("data.sequence_length"), s.sequence,
                     arch.max_sequence);
  s.threads = static_cast<int>(c.math.threads);
  if (s.threads == 0) {
    s.threads = machine.threads.value_or(auto_threads(machine.local_ranks));
    config::assign(c, "math.threads", s.threads, {config::Origin::Kind::kOther, "derived"});
  }
  s.compute = resolve_precision(c, machine, s.threads);
  s.kernels = resolve_kernels(c, machine.cuda, s.compute);
  if (c.framework.kind == "molen") resolve_attention(c, arch, machine, s);
  s.master = s.compute == DType::kF64 ? DType::kF64 : DType::kF32;
  const auto typed = [&](const std::string& text, const char* key, std::vector<DType> built) {
    if (text == "auto") return built.front();
    const DType wanted = dtype_from_name(text);
    std::string names;
    for (const DType type : built) names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(type));
    not_built(c, std::find(built.begin(), built.end(), wanted) == built.end(), key,
              names + " with this compute precision");
    return wanted;
  };
  s.master = typed(c.precision.master, "precision.master", {s.master});
  s.reduce =
      typed(c.precision.reduce, "precision.reduce",
            s.compute == DType::kF64 ? std::vector{DType::kF64} : std::vector{DType::kF32, DType::kBF16, DType::kF16});
  const auto framework = framework_of(c, arch, s);
  refuse_experts(c, arch, machine, s);
  resolve_recompute(c, arch, s);
  if (framework) set_framework(*framework, s);
  return s;
}

std::optional<program::Schedule> read_schedule(const Config& c) {
  const std::string& wanted = c.parallel.schedule;
  for (const auto kind : program::kAllScheduleKinds)
    if (wanted == name_of(kind)) return std::nullopt;
  return program::parse_schedule(read_file(wanted), wanted);
}

program::Setting evaluation_setting(const program::Setting& setting) {
  program::Setting s = setting;
  s.purpose = program::Purpose::kEvaluate;
  s.global_batch = s.micro_batch;
  if (!s.sharded_parameters()) {
    s.zero = 0;
    s.own_over_dp = false;
    if (!s.tensor() && !s.pipelined() && !s.context() && !s.shares_experts()) s.mesh = mesh::kOne;
  }
  return s;
}

std::int64_t steps_of(const Config& c, const Horizon& horizon, std::string_view key, double sequences_per_epoch) {
  const double per_step = static_cast<double>(c.batch.global);
  switch (horizon.unit) {
    case Horizon::Unit::kSteps:
      return horizon.count();
    case Horizon::Unit::kTokens:
      return static_cast<std::int64_t>(
          std::ceil(horizon.value / (per_step * static_cast<double>(c.data.sequence_length))));
    case Horizon::Unit::kEpochs:
      return static_cast<std::int64_t>(std::ceil(horizon.value * sequences_per_epoch / per_step));
    case Horizon::Unit::kSeconds:
      return -1;
  }
  throw Error("{}: unknown unit", key);
}

}  // namespace molen::plan
