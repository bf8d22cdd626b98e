#include "train/job/optimizer_config.h"

#include "base/error.h"
#include "plan/resolve.h"

namespace molen::train {
namespace {

optim::ScheduleKind kind_of(const std::string& name) {
  if (name == "cosine") return optim::ScheduleKind::kCosine;
  if (name == "linear") return optim::ScheduleKind::kLinear;
  if (name == "wsd") return optim::ScheduleKind::kWsd;
  MOLEN_CHECK(name == "constant", "unknown schedule '{}'", name);
  return optim::ScheduleKind::kConstant;
}

}  // namespace

optim::Schedule resolve_schedule(const config::Config& c, std::int64_t total_steps, double sequences_per_epoch) {
  optim::Schedule s;
  s.kind = kind_of(c.schedule.kind);
  s.peak_lr = c.optimizer.lr;
  s.min_lr = c.min_lr();
  s.total_steps = total_steps;
  if (c.schedule.warmup) s.warmup_steps = plan::steps_of(c, *c.schedule.warmup, "schedule.warmup", sequences_per_epoch);
  if (s.warmup_steps < 0)
    throw UsageError("{}: a time cannot be a warm-up; give steps or tokens", c.where("schedule.warmup"));
  if (s.warmup_steps > total_steps)
    throw UsageError("{}: {} steps of warm-up are more than the {} steps of train.until", c.where("schedule.warmup"),
                     s.warmup_steps, total_steps);
  if (c.schedule.decay) s.decay_steps = plan::steps_of(c, *c.schedule.decay, "schedule.decay", sequences_per_epoch);
  return s;
}

optim::Options resolve_optimizer(const config::Config& c) {
  const config::OptimizerTable& o = c.optimizer;
  return {o.lr,           o.beta1,    o.beta2,       o.eps,
          o.weight_decay, o.momentum, o.match_adamw, o.rest_lr.value_or(o.lr) / o.lr,
          o.beta2_decay,  o.eps1,     o.eps2,        o.update_clip};
}

}  // namespace molen::train
