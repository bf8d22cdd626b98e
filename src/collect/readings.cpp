#include "collect/readings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "collect/job_labels.h"

namespace molen::collect {
namespace {

// Records of a line: even if each has texts of the greatest length with an escape for each character, they fit.
constexpr std::size_t kRecordsOfLine = 24;
constexpr double kClockToleranceS = 1.0;

// The text of the events of a job. Names have no spaces, so a program can read it too.
std::string job_text(const Labels& labels) {
  std::string text = "job=" + labels.job;
  if (!labels.step.empty()) text += " step=" + labels.step;
  if (!labels.user.empty()) text += " user=" + labels.user;
  return text;
}

}  // namespace

std::vector<Period> periods_of(const energy::StepEnergy& energy, const energy::Meters& meters, double start_s,
                               double end_s, const Labels& labels) {
  std::vector<Period> periods;
  for (const auto& meter : meters.meters) {
    const energy::MeterInfo& info = meter->info();
    const auto found = energy.scopes.find(info.scope);
    if (found == energy.scopes.end()) continue;
    const energy::ScopeEnergy& e = found->second;
    Period p{as_name(info.scope), start_s,    end_s,       e.joules,   as_text(e.reason), as_name(info.name), e.source,
             info.counted,        labels.job, labels.step, labels.user};
    if (p.joules) p.reason.clear();
    if (const std::string wrong = wrong_with(p); !wrong.empty()) {
      p.joules.reset();
      p.source = energy::Source::kNone;
      p.reason = as_text("the reading cannot be right: " + wrong);
    }
    periods.push_back(std::move(p));
  }
  return periods;
}

std::vector<Batch> in_batches(std::vector<Period> periods, std::vector<Event> events) {
  std::vector<Batch> batches;
  const auto room = [&]() -> Batch& {
    if (batches.empty() || batches.back().records() >= kRecordsOfLine) batches.emplace_back();
    return batches.back();
  };
  for (Period& p : periods) room().periods.push_back(std::move(p));
  for (Event& e : events) room().events.push_back(std::move(e));
  return batches;
}

Readings::Readings(energy::Meters meters, Labels labels, std::function<double()> wall, std::function<double()> steady)
    : labels_(std::move(labels)),
      wall_(wall ? std::move(wall) : [] { return wall_time(); }),
      steady_(steady ? std::move(steady) : [] { return now().value; }),
      accountant_(std::move(meters)),
      wall_s_(wall_()),
      steady_s_(steady_()) {}

std::vector<Batch> Readings::describe() const {
  std::vector<Event> events;
  std::string scopes;
  for (const auto& m : accountant_.meters().meters)
    if (m->info().source != energy::Source::kNone)
      scopes += fmt::format("{}{} {}", scopes.empty() ? "" : ", ", m->info().scope, m->info().name);
  events.push_back({wall_s_, "start", as_text(scopes.empty() ? "no meter" : scopes),
                    static_cast<std::int64_t>(accountant_.meters().meters.size())});
  if (!labels_.job.empty()) events.push_back({wall_s_, "job_start", as_text(job_text(labels_)), 0});
  add_labels(events);
  for (const auto& u : accountant_.meters().unavailable)
    events.push_back({wall_s_, "unavailable", as_text(fmt::format("{} {}: {}", u.meter, u.scope, u.reason)), 0});
  return in_batches({}, std::move(events));
}

void Readings::add_labels(std::vector<Event>& events) const {
  const JobLabels of_job{labels_.job, labels_.group, labels_.account, labels_.tag};
  if (!of_job.job.empty() && !of_job.empty()) events.push_back(job_labels_event(wall_s_, of_job));
}

std::vector<Batch> Readings::farewell() const {
  std::vector<Event> events;
  if (!labels_.job.empty()) events.push_back({wall_s_, "job_stop", as_text(job_text(labels_)), 0});
  add_labels(events);  // a spool that was full has lost what came first
  events.push_back({wall_s_, "stop", "", 0});
  return in_batches({}, std::move(events));
}

std::vector<Batch> Readings::next() {
  // The meters take time to read, so the period ends in the middle of that time.
  const double steady_before_s = steady_(), wall_before_s = wall_();
  const energy::StepEnergy energy = accountant_.end_step();
  const double steady_s = 0.5 * (steady_before_s + steady_());
  double end_s = wall_before_s + (steady_s - steady_before_s);
  const double length_s = steady_s - steady_s_;
  std::vector<Event> events;
  double start_s = wall_s_;
  if (const double set_s = (end_s - wall_s_) - length_s; std::abs(set_s) > kClockToleranceS || !(end_s > start_s)) {
    start_s = std::max(0.0, end_s - length_s);
    end_s = std::max(end_s, start_s + 1e-3);
    events.push_back({end_s, "clock", fmt::format("this node's clock was set by {:+.3f} s", set_s), 0});
  }
  wall_s_ = end_s;
  steady_s_ = steady_s;
  return in_batches(periods_of(energy, accountant_.meters(), start_s, end_s, labels_), std::move(events));
}

}  // namespace molen::collect
