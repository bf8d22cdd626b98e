#include "energy/accountant.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "base/clock.h"
#include "energy/uncertainty.h"

namespace molen::energy {

std::map<std::string, std::optional<double>> StepEnergy::joules() const {
  std::map<std::string, std::optional<double>> map;
  for (const auto& [scope, e] : scopes) map[scope] = e.joules;
  return map;
}

std::map<std::string, std::optional<double>> StepEnergy::resolutions() const {
  std::map<std::string, std::optional<double>> map;
  for (const auto& [scope, e] : scopes) map[scope] = e.resolution_j;
  return map;
}

std::map<std::string, std::string> StepEnergy::sources() const {
  std::map<std::string, std::string> map;
  for (const auto& [scope, e] : scopes) map[scope] = name_of(e.source);
  return map;
}

Accountant::Accountant(Meters meters, Seconds sample_every, std::function<double()> clock)
    : meters_(std::move(meters)),
      samples_(sample_every.value > 0),
      clock_(clock ? std::move(clock) : [] { return now().value; }),
      sampled_(meters_.meters.size()) {
  double every = 0;
  for (std::size_t i = 0; i < meters_.meters.size(); ++i)
    if (samples_ && is_read_by_thread(i)) every = sample_every.value;
  for (const auto& m : meters_.meters)
    if (const double e = m->info().read_every.value; e > 0) every = every > 0 ? std::min(every, e) : e;
  start_ = begin_ = snapshot(For::kSamples);
  if (every > 0) reader_ = std::thread([this, every] { keep_reading(every); });
}

Accountant::~Accountant() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (reader_.joinable()) reader_.join();
}

void Accountant::keep_reading(double every_s) {
  ::pthread_setname_np(::pthread_self(), "meters");  // as `top -H` shows it
  std::unique_lock lock(mutex_);
  // Intervals vary, because samples in step with a counter that changes as often would not show when it changes.
  std::minstd_rand engine;
  std::uniform_real_distribution<double> around(0.9, 1.1);
  while (!wake_.wait_for(lock, std::chrono::duration<double>(every_s * around(engine)), [this] { return stopping_; })) {
    for (std::size_t i = 0; i < meters_.meters.size(); ++i)
      if (is_read_by_thread(i))
        if (const auto reading = sample(i); reading && spans_[i].first)  // the next difference shows a gap found here
          since_start_j_[i] = (reading.value().total - spans_[i].first->total).value;
    tell_sink();
  }
}

void Accountant::on_reading(Sink sink) {
  const std::lock_guard lock(mutex_);
  sink_ = std::move(sink);
  tell_sink();
}

void Accountant::tell_sink() {
  if (!sink_) return;
  double counted = 0.0;
  for (std::size_t i = 0; i < since_start_j_.size(); ++i) {
    const MeterInfo& info = meters_.meters[i]->info();
    if (info.counted && info.source != Source::kNone && since_start_j_[i] > 0.0) counted += since_start_j_[i];
  }
  sink_(since_start_j_, counted);
}

bool Accountant::is_read_by_thread(std::size_t meter) const {
  const MeterInfo& info = meters_.meters[meter]->info();
  return info.read_every.value > 0 || (samples_ && info.source != Source::kNone);
}

bool Accountant::is_sampled(std::size_t meter) const {
  return samples_ && meters_.meters[meter]->info().joules_per_tick > 0;
}

Result<Reading> Accountant::sample(std::size_t meter) {
  Result<Reading> reading = meters_.meters[meter]->read();
  if (!is_sampled(meter)) return reading;
  Sampled& all = sampled_[meter];
  if (const double time_s = clock_() - (reading ? reading.value().age_s : 0.0); time_s > all.last_s) {
    all.samples.push_back({time_s, reading ? std::optional(reading.value()) : std::nullopt});
    all.last_s = time_s;
  }
  return reading;
}

std::vector<std::vector<Sample>> Accountant::take_samples() {
  const std::lock_guard lock(mutex_);
  std::vector<std::vector<Sample>> samples;
  for (Sampled& all : sampled_) samples.push_back(std::exchange(all.samples, {}));
  return samples;
}

Accountant::Snapshot Accountant::snapshot(For what) {
  const std::lock_guard lock(mutex_);
  Snapshot snapshot{{}, {}, clock_()};
  auto& all = snapshot.readings;
  for (std::size_t i = 0; i < meters_.meters.size(); ++i) {
    all.push_back(what == For::kSamples ? sample(i) : meters_.meters[i]->read());
    snapshot.times_s.push_back(clock_() - (all.back() ? all.back().value().age_s : 0.0));
  }
  spans_.resize(all.size());
  since_start_j_.resize(all.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < all.size(); ++i) {
    Span& s = spans_[i];
    s.failing = !all[i];
    if (!s.first && s.failing) s.late = true;
    if (s.failing) continue;
    if (!s.first) s.first = all[i].value(), s.first_s = snapshot.time_s;
    s.last = all[i].value(), s.last_s = snapshot.time_s;
    since_start_j_[i] = (s.last->total - s.first->total).value;
  }
  tell_sink();
  return snapshot;
}

ScopeEnergy Accountant::between(const MeterInfo& info, const Result<Reading>& a, const Result<Reading>& b,
                                double seconds) {
  ScopeEnergy e;
  e.seconds = seconds;
  if (!b)
    e.reason = b.reason();
  else if (!a)
    e.reason = "at the start: " + a.reason();
  else if (a.value().gaps != b.value().gaps)
    e.reason = "energy was lost between readings";
  else if (!(b.value().total > a.value().total))
    e.reason = "the counter did not change in this time", e.unchanged = true;
  else
    e.joules = (b.value().total - a.value().total).value;
  if (!e.joules) return e;
  e.source = info.source;
  e.resolution_j = resolution_j(info, *e.joules, seconds);
  return e;
}

void Accountant::begin_step() {
  begin_ = snapshot(For::kStep);
  begin_j_ = counted_so_far().value_or(0.0);
}

StepEnergy Accountant::end_step() {
  Snapshot end = snapshot(For::kStep);
  StepEnergy step = between(begin_, end);
  step.so_far_j = counted_so_far();
  if (reads_all_counted(step)) step.added_j = step.so_far_j.value_or(0.0) - begin_j_;
  begin_j_ = step.so_far_j.value_or(0.0);
  begin_ = std::move(end);
  return step;
}

bool Accountant::reads_all_counted(const StepEnergy& step) const {
  bool any = false;
  for (const auto& m : meters_.meters) {
    const MeterInfo& info = m->info();
    if (!info.counted || info.source == Source::kNone) continue;
    const ScopeEnergy& e = step.scopes.at(info.scope);
    if (!e.joules && !e.unchanged) return false;
    any = true;
  }
  return any;
}

StepEnergy Accountant::since_start() {
  return between(start_, snapshot(For::kStep));
}

std::optional<double> Accountant::counted_so_far() const {
  std::optional<double> total;
  for (std::size_t i = 0; i < meters_.meters.size(); ++i) {
    const MeterInfo& info = meters_.meters[i]->info();
    if (info.source == Source::kNone || !info.counted || !spans_[i].first) continue;
    if (const double joules = (spans_[i].last->total - spans_[i].first->total).value; joules > 0)
      total = total.value_or(0.0) + joules;
  }
  return total;
}

EnergySoFar Accountant::so_far() {
  (void)snapshot(For::kSamples);
  EnergySoFar all;
  all.total_j = counted_so_far();
  for (std::size_t i = 0; i < meters_.meters.size(); ++i) {
    const MeterInfo& info = meters_.meters[i]->info();
    const Span& s = spans_[i];
    if (info.source == Source::kNone) continue;
    const double joules = s.first ? (s.last->total - s.first->total).value : 0.0;
    if (!(joules > 0) || s.late || s.failing || s.first->gaps != s.last->gaps) all.lost[info.scope] = 1;
    if (!(joules > 0)) continue;
    all.joules[info.scope] = joules;
    all.resolution_j[info.scope] = resolution_j(info, joules, s.last_s - s.first_s);
  }
  const std::lock_guard lock(mutex_);  // the thread may read a meter, which its doubt follows from
  for (const auto& meter : meters_.meters)
    if (const std::string doubt = meter->doubt(); !doubt.empty()) all.doubts[meter->info().scope] = doubt;
  return all;
}

StepEnergy Accountant::between(const Snapshot& a, const Snapshot& b) const {
  StepEnergy step;
  double total = 0;
  std::optional<double> resolution = 0.0;
  bool any = false;
  for (std::size_t i = 0; i < meters_.meters.size(); ++i) {
    const MeterInfo& info = meters_.meters[i]->info();
    ScopeEnergy& e = step.scopes[info.scope];
    e = between(info, a.readings[i], b.readings[i], b.times_s[i] - a.times_s[i]);
    if (!info.counted || info.source == Source::kNone) continue;
    any = true;
    if (e.joules)
      total += *e.joules;
    else if (step.total_reason.empty())
      step.total_reason = fmt::format("{}: {}", info.scope, e.reason);
    resolution = resolution && e.resolution_j ? std::optional(*resolution + *e.resolution_j) : std::nullopt;
  }
  if (!any) step.total_reason = "no meter";
  if (step.total_reason.empty()) step.total_j = total, step.total_resolution_j = resolution;
  return step;
}

Json Accountant::describe() const {
  Json available = Json::object(), unavailable = Json::object();
  for (const auto& m : meters_.meters)
    if (m->info().source != Source::kNone)
      available[m->info().scope] = fmt::format("{}: {}", m->info().name, m->info().detail);
  for (const auto& u : meters_.unavailable) {
    std::string key = fmt::format("{} {}", u.meter, u.scope);
    while (unavailable.contains(key)) key += "'";
    unavailable[key] = u.reason;
  }
  return {{"available", available}, {"unavailable", unavailable}};
}

}  // namespace molen::energy
