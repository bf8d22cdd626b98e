// Checks across keys that need only arithmetic. Features that this build of molen lacks are refused by the code that
// would implement them.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "config/config.h"

namespace molen::config {
namespace {

// Checks that the sizes are given if there is no preset that supplies them. The vocabulary may also come from the
// tokenizer, whose number of entries only the reader of the tokenizer knows.
void check_sizes(const Config& c, Problems& problems) {
  const ModelTable& m = c.model;
  for (const auto& [key, given] : {std::pair{"model.layers", m.layers.has_value()},
                                   {"model.hidden", m.hidden.has_value()},
                                   {"model.heads", m.heads.has_value()}})
    if (!given)
      problems.add("{}: needed where model.family stands without model.preset (`molen model list` shows the presets)",
                   key);
  if (!m.vocabulary && !c.data.tokenizer)
    problems.add("model.vocabulary: needed where neither model.preset nor data.tokenizer gives it");
}

void check_model(const Config& c, Problems& problems) {
  const ModelTable& m = c.model;
  if (m.preset && m.family) {
    problems.add("{}: a preset ({}) has its family; drop one of the two, or set it to \"none\"",
                 c.where("model.family"), *m.preset);
  }
  if (m.family && !m.preset) check_sizes(c, problems);
  if (m.heads && m.kv_heads && *m.heads % *m.kv_heads != 0) {
    problems.add("{}: {} does not divide model.heads = {}", c.where("model.kv_heads"), *m.kv_heads, *m.heads);
  }
  if (m.hidden && m.heads && !m.head_dim && *m.hidden % *m.heads != 0) {
    problems.add("{}: {} does not divide model.hidden = {}; or set model.head_dim", c.where("model.heads"), *m.heads,
                 *m.hidden);
  }
  if (m.max_sequence && c.data.sequence_length > *m.max_sequence) {
    problems.add("{}: {} is longer than model.max_sequence = {}", c.where("data.sequence_length"),
                 c.data.sequence_length, *m.max_sequence);
  }
}

void check_batch(const Config& c, Problems& problems) {
  if (c.batch.global % c.batch.micro != 0) {
    problems.add("{}: {} does not divide batch.global = {}", c.where("batch.micro"), c.batch.micro, c.batch.global);
  }
}

// Returns the ZeRO stage of a sharding name.
std::int64_t stage_of(const std::string& sharding) {
  if (sharding == "NO_SHARD") return 0;
  if (sharding == "SHARD_GRAD_OP" || sharding == "HYBRID_SHARD_ZERO2") return 2;
  return 3;
}

void check_parallel(const Config& c, Problems& problems) {
  const ParallelTable& p = c.parallel;
  // With stage 1 and a hybrid name, groups shard as the name says, and the optimizer shards over all ranks.
  const bool hybrid = p.sharding && p.sharding->rfind("HYBRID", 0) == 0;
  if (p.sharding && p.zero && stage_of(*p.sharding) != *p.zero && !(hybrid && *p.zero == 1)) {
    problems.add("{}: {} contradicts parallel.sharding = {}, which is stage {}", c.where("parallel.zero"), *p.zero,
                 *p.sharding, stage_of(*p.sharding));
  }
  if (p.virtual_stages > 1 && p.pipeline == 1) {
    problems.add("{}: {} needs parallel.pipeline above 1", c.where("parallel.virtual_stages"), p.virtual_stages);
  }
  if (p.virtual_stages > 1 && (p.schedule == "gpipe" || p.schedule == "1f1b" || p.schedule == "zb-h1")) {
    problems.add("{}: {} needs parallel.schedule = \"interleaved\" or \"zb-v\", is \"{}\"",
                 c.where("parallel.virtual_stages"), p.virtual_stages, p.schedule);
  }
}

void check_precision(const Config& c, Problems& problems) {
  const PrecisionTable& p = c.precision;
  if (p.compute == "fp64" && p.master == "fp32") {
    problems.add("{}: fp32 is narrower than precision.compute = fp64", c.where("precision.master"));
  }
  const PrecisionTable plain;
  for (const auto& [key, changed] : {std::pair{"precision.loss_scale", p.loss_scale != plain.loss_scale},
                                     {"precision.loss_scale_window", p.loss_scale_window != plain.loss_scale_window}})
    if (changed && !p.scales_loss())
      problems.add("{}: is for precision.compute or precision.reduce = \"fp16\", not \"{}\" and \"{}\"", c.where(key),
                   p.compute, p.reduce);
  if (p.compute == "fp64" && (p.reduce == "fp32" || p.reduce == "bf16" || p.reduce == "fp16"))
    problems.add("{}: {} is narrower than precision.compute = fp64", c.where("precision.reduce"), p.reduce);
}

void check_data(const Config& c, Problems& problems) {
  for (const DataSource& set : c.data.validation)
    if (set.weight != 1.0)
      problems.add("{}: {} has a weight; weights mix data.train, and each held-out set is read whole",
                   c.where("data.validation"), set.path);
}

// Returns whether `a` is longer than `b`; false if their units differ.
bool longer(const Horizon& a, const Horizon& b) {
  return a.unit == b.unit && a.value > b.value;
}

void check_lengths(const Config& c, Problems& problems) {
  const Horizon& until = c.train.until;
  if (c.schedule.warmup && longer(*c.schedule.warmup, until)) {
    problems.add("{}: {} is longer than train.until = {}; set a shorter one, or \"none\" for the default",
                 c.where("schedule.warmup"), print(*c.schedule.warmup), print(until));
  }
  if (c.train.stop_after && longer(*c.train.stop_after, until)) {
    problems.add("{}: {} is after train.until = {}", c.where("train.stop_after"), print(*c.train.stop_after),
                 print(until));
  }
  if (!c.schedule.decay) return;
  if (c.schedule.kind != "wsd") {
    problems.add("{}: is for schedule.kind = \"wsd\", not \"{}\"", c.where("schedule.decay"), c.schedule.kind);
    return;
  }
  Horizon both = *c.schedule.decay;
  if (c.schedule.warmup && both.unit == c.schedule.warmup->unit) both.value += c.schedule.warmup->value;
  if (longer(both, until)) {
    problems.add("{}: {} with warm-up is longer than train.until = {}", c.where("schedule.decay"),
                 print(*c.schedule.decay), print(until));
  }
}

void check_rates(const Config& c, Problems& problems) {
  if (c.schedule.min_lr && *c.schedule.min_lr > c.optimizer.lr) {
    problems.add("{}: {} is above optimizer.lr = {}", c.where("schedule.min_lr"), *c.schedule.min_lr, c.optimizer.lr);
  }
}

void check_budgets(const Config& c, Problems& problems) {
  const EnergyTable& e = c.energy;
  const EnergyTable plain;
  const bool budget = e.energy_budget || e.co2_budget;
  if (e.on_budget != plain.on_budget && !budget)
    problems.add("{}: is for energy.energy_budget or energy.co2_budget, and neither is set",
                 c.where("energy.on_budget"));
  if (e.on_budget != "slow") return;
  if (e.power_budget)
    problems.add("{}: slow sets clocks or power limits, and energy.power_budget sets them too; leave one of them out",
                 c.where("energy.on_budget"));
  else if (e.policy != "none" && e.policy != "monitor")
    problems.add(
        "{}: slow sets clocks or power limits, and energy.policy = \"{}\" sets them too; leave one of them out",
        c.where("energy.on_budget"), e.policy);
}

// The keys of [framework] say how a framework differs from others, so they need one.
void check_framework(const Config& c, Problems& problems) {
  if (c.framework.kind != "molen") return;
  const Config plain;
  for (const char* key : {"framework.gradients", "framework.overlap", "framework.products",
                          "framework.saved_activations", "framework.compiled"})
    if (field(key).write(c) != field(key).write(plain))
      problems.add("{}: has an effect only with framework.kind = \"pytorch\"; set that, or remove this key",
                   c.where(key));
}

}  // namespace

void check(const Config& config, Problems& problems) {
  check_model(config, problems);
  check_data(config, problems);
  check_batch(config, problems);
  check_parallel(config, problems);
  check_precision(config, problems);
  check_lengths(config, problems);
  check_rates(config, problems);
  check_budgets(config, problems);
  check_framework(config, problems);
}

}  // namespace molen::config
