#include "energy/power_model.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "energy/coverage.h"
#include "energy/cpu_busy.h"
#include "energy/nvml/utilisation.h"
#include "energy/scope.h"

namespace molen::energy {
namespace {

class CpuPart : public ModelledPart {
 public:
  CpuPart(PartFigures figures, const Machine& machine, std::vector<int> cpus, int all)
      : ModelledPart(std::move(figures), static_cast<double>(cpus.size()) / all),
        machine_(machine),
        cpus_(std::move(cpus)),
        last_s_(machine_.clock()) {
    const auto times = read_cpu_times(machine_, cpus_);
    if (!times) throw Error("{}", times.reason());
    last_ = times.value();
  }

 protected:
  Result<std::optional<Busy>> busy(double time_s) override {
    if (time_s - last_s_ < kModelWindowS) return std::optional<Busy>();
    const auto times = read_cpu_times(machine_, cpus_);
    if (!times) return Failure{times.reason()};
    const double all = times.value().all - last_.all, ran = times.value().busy - last_.busy;
    if (!(all > 0))
      return Failure{
          fmt::format("{} counted no time for {:.3g} s", (machine_.proc / "stat").string(), time_s - last_s_)};
    last_ = times.value();
    last_s_ = time_s;
    return std::optional(Busy{std::clamp(ran / all, 0.0, 1.0)});
  }

 private:
  Machine machine_;
  std::vector<int> cpus_;
  CpuTimes last_;
  double last_s_;
};

// Returns the scope of the meter that reads a part of this scope, or all of it; "" if no meter does.
std::string measured_by(const Meters& measured, const std::string& scope) {
  for (const auto& m : measured.meters) {
    const MeterInfo& info = m->info();
    if (info.source != Source::kNone && (info.scope == scope || overlap(info.scope, scope))) return info.scope;
  }
  return "";
}

}  // namespace

Result<Estimate> ModelledPart::read(double time_s) {
  if (!until_s_) until_s_ = time_s;
  const auto ran = busy(time_s);
  if (!ran) return Failure{ran.reason()};
  if (!ran.value() || !(time_s > *until_s_)) return joules_;
  Estimate watts = figures_.curve.watts_at(ran.value()->utilisation);
  if (!ran.value()->known) {
    watts.least = figures_.curve.points().front().watts.least;
    watts.most = figures_.curve.points().back().watts.most;
  }
  joules_ += (share_ * (time_s - *until_s_)) * watts;
  until_s_ = time_s;
  return joules_;
}

std::unique_ptr<ModelledPart> model_by_cpus(PartFigures figures, const Machine& machine, const std::vector<int>& cpus,
                                            int all) {
  return std::make_unique<CpuPart>(std::move(figures), machine, cpus, all);
}

PowerModel::PowerModel(const PowerFigures& figures, const Meters& measured, const ModelOptions& options)
    : machine_(options.machine) {
  if (!figures.by_cpus.empty()) add_by_cpus(figures, measured, options);
  if (figures.of_each_gpu) add_gpus(figures, measured, options);
  choose_counted();
  begin_.resize(parts_.size());
  (void)read_all();  // the time from which the joules count
  if (options.read_every_s > 0 && !parts_.empty())
    reader_ = std::thread([this, every_s = options.read_every_s] {
      ::pthread_setname_np(::pthread_self(), "power-model");
      std::unique_lock lock(mutex_);
      while (!wake_.wait_for(lock, std::chrono::duration<double>(every_s), [this] { return stopping_; }))
        for (const auto& part : parts_) (void)part->read(machine_.clock());
    });
}

PowerModel::~PowerModel() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (reader_.joinable()) reader_.join();
}

void PowerModel::add_by_cpus(const PowerFigures& figures, const Meters& measured, const ModelOptions& options) {
  const auto all = count_cpus(options.machine);
  const auto allowed = options.cpus ? Result<std::string>(*options.cpus) : allowed_cpus(options.machine);
  const auto cpus = allowed ? parse_cpu_list(allowed.value()) : Result<std::vector<int>>(Failure{allowed.reason()});
  const std::string here = processor_of(options.machine);
  if (all && figures.cpus > 0 && (figures.processor != here || figures.cpus != all.value()))
    throw UsageError(
        "{}: {} is of a machine with {} processors '{}', and this one has {} of '{}'; calibrate a machine of "
        "this kind",
        options.key, figures.by_cpus.front().source, figures.cpus, figures.processor, all.value(), here);
  for (const PartFigures& part : figures.by_cpus) {
    if (const std::string meter = measured_by(measured, part.scope); !meter.empty()) {
      unavailable_.push_back({"model", part.scope, fmt::format("a meter reads {}", meter)});
      continue;
    }
    try {
      if (!all || !cpus) throw Error("{}", all ? cpus.reason() : all.reason());
      add(model_by_cpus(part, options.machine, cpus.value(), all.value()));
    } catch (const Error& error) {
      unavailable_.push_back({"model", part.scope, error.what()});
    }
  }
}

void PowerModel::add_gpus(const PowerFigures& figures, const Meters& measured, const ModelOptions& options) {
  GpuParts gpus = model_gpus(*figures.of_each_gpu, options.nvml);
  for (auto& part : gpus.parts) {
    const std::string scope = part->figures().scope;
    if (const std::string meter = measured_by(measured, scope); !meter.empty())
      unavailable_.push_back({"model", scope, fmt::format("a meter reads {}", meter)});
    else
      add(std::move(part));
  }
  for (Unavailable& u : gpus.unavailable) unavailable_.push_back(std::move(u));
}

// As for meters, no two scopes of a sum share a part.
void PowerModel::choose_counted() {
  std::vector<std::string> scopes;
  for (const auto& part : parts_) scopes.push_back(part->figures().scope);
  const auto counted = counted_among(std::move(scopes));
  for (const auto& part : parts_) part->counted = counted.contains(part->figures().scope);
}

std::vector<Result<Estimate>> PowerModel::read_all() {
  const std::lock_guard lock(mutex_);
  std::vector<Result<Estimate>> all;
  for (const auto& part : parts_) all.push_back(part->read(machine_.clock()));
  return all;
}

Modelled PowerModel::between(const std::vector<Estimate>& from) {
  Modelled m;
  const auto now = read_all();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::string& scope = parts_[i]->figures().scope;
    auto& estimate = m.scopes[scope];
    if (!now[i]) {
      m.reasons[scope] = now[i].reason();
      continue;
    }
    const Estimate& to = now[i].value();
    if (to.value > from[i].value)
      estimate = Estimate{to.value - from[i].value, to.least - from[i].least, to.most - from[i].most};
    else
      m.reasons[scope] = fmt::format("no {} s have passed since the last estimate", kModelWindowS);
  }
  return m;
}

void PowerModel::begin_step() {
  const auto now = read_all();
  for (std::size_t i = 0; i < now.size(); ++i)
    if (now[i]) begin_[i] = now[i].value();
}

Modelled PowerModel::end_step() {
  Modelled m = between(begin_);
  for (std::size_t i = 0; i < parts_.size(); ++i)
    if (const auto& e = m.scopes.at(parts_[i]->figures().scope)) begin_[i] += *e;
  return m;
}

Modelled PowerModel::so_far() {
  return between(std::vector<Estimate>(parts_.size()));
}

std::unique_ptr<PowerModel> open_model(const PowerFigures& figures, const Meters& measured, bool gpus,
                                       const ModelOptions& options) {
  const Coverage coverage = coverage_of(measured, gpus);
  if (coverage.missing.empty()) return nullptr;
  auto model = std::make_unique<PowerModel>(figures, measured, options);
  if (!model->parts().empty()) return model;
  std::string parts, reasons;
  for (const auto& [part, hosts] : coverage.missing) parts += (parts.empty() ? "" : ", ") + part;
  for (const Unavailable& u : model->unavailable()) reasons += fmt::format("; {}: {}", u.scope, u.reason);
  throw UsageError("{}: there are no figures for the parts that no meter reads ({}){}; {}", options.key, parts, reasons,
                   figures.lacking);
}

}  // namespace molen::energy
