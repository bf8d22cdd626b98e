#include "sim/forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "sim/periods.h"
#include "sim/simulate.h"

namespace molen::sim {
namespace {

// Whether the time of each op follows from ends of ops alone, so that a period of blocks proves the rest.
bool can_repeat(const Costs& costs) {
  return !costs.reduces_last() && !costs.gathers_in_forward();
}

// A number of blocks to simulate, and the numbers of blocks after which they may come back.
struct Attempt {
  std::size_t kept = 0;
  std::vector<std::size_t> every;
};

// Returns the attempts that are worth it, the cheapest first. Blocks come back one by one where one stage is the
// slowest, and later so where others are nearly as slow. Where messages between stages are the slowest, the
// micro-batches that are in the pipeline at once come back together.
std::vector<Attempt> attempts_for(std::size_t blocks, std::size_t stages, std::int64_t of_block) {
  constexpr std::size_t kSettling = 6;  // blocks after which most steps repeat themselves
  std::vector<Attempt> attempts;
  const auto add = [&](std::size_t settling, std::vector<std::size_t> every) {
    const std::size_t together = every.back(), least = fewest_blocks(together) + settling;
    if (least >= blocks) return;
    const std::size_t kept = least + (blocks - least) % together;
    if (3 * kept < 2 * blocks) attempts.push_back({kept, std::move(every)});
  };
  if (of_block > 1) {
    add(1, {1});
    add(kSettling, {1});
    return attempts;
  }
  add(kSettling, {1});
  if (stages == 1) return attempts;
  add(2 * kSettling + stages, {1});
  add(2 * (kSettling + stages), {1, stages});
  return attempts;
}

// An op of a period, or its rest behind the end of the period.
struct Piece {
  double start_s = 0.0, end_s = 0.0;
  std::size_t op = 0;
};

// Makes times equal that differ from each other or from `end` by rounding alone, so that no gap or overlap of a
// rounding error is between them.
void make_equal(std::vector<Piece>& pieces, double end, double rounding) {
  std::vector<double*> times;
  for (Piece& piece : pieces) times.push_back(&piece.start_s), times.push_back(&piece.end_s);
  std::sort(times.begin(), times.end(), [](const double* a, const double* b) { return *a < *b; });
  double last = 0.0;
  for (double* time : times)
    if (end - *time <= rounding)
      *time = end;
    else if (*time - last <= rounding)
      *time = last;
    else
      last = *time;
}

// Returns the times of the ops of a period within [0, seconds], as all periods together have them at any time: what
// goes on at the end is at the beginning.
std::vector<Piece> pieces_of(const program::Timeline& timeline, const program::Stages::OpRange& range, double seconds) {
  constexpr double kRounding = 1e-12;
  std::vector<Piece> pieces;
  double begin = timeline.ops[range.first].start_s;
  for (std::size_t i = range.first; i < range.end; ++i) begin = std::min(begin, timeline.ops[i].start_s);
  for (std::size_t i = range.first; i < range.end; ++i) {
    const double start = timeline.ops[i].start_s - begin, end = timeline.ops[i].end_s - begin;
    const double before = seconds > 0.0 ? std::floor(start / seconds + kRounding) * seconds : 0.0;
    pieces.push_back({std::max(0.0, start - before), std::min(end - before, seconds), i});
    if (end - before > seconds) pieces.push_back({0.0, end - before - seconds, i});
  }
  make_equal(pieces, seconds, kRounding * seconds);
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.start_s < b.start_s || (a.start_s == b.start_s && a.end_s < b.end_s);
  });
  return pieces;
}

}  // namespace

double with_periods(double step, double period, std::int64_t times) {
  return step + static_cast<double>(times) * period;
}

std::vector<double> with_periods(const std::vector<double>& step, const std::vector<double>& period,
                                 std::int64_t times) {
  MOLEN_CHECK(step.size() == period.size(), "{} sums and {}", step.size(), period.size());
  std::vector<double> sums;
  for (std::size_t i = 0; i < step.size(); ++i) sums.push_back(with_periods(step[i], period[i], times));
  return sums;
}

program::PhaseSeconds with_periods(const program::PhaseSeconds& step, const program::PhaseSeconds& period,
                                   std::int64_t times) {
  program::PhaseSeconds sums;
  for (std::size_t i = 0; i < sums.phase_s.size(); ++i)
    sums.phase_s[i] = with_periods(step.phase_s[i], period.phase_s[i], times);
  sums.bubble_s = with_periods(step.bubble_s, period.bubble_s, times);
  sums.idle_s = with_periods(step.idle_s, period.idle_s, times);
  return sums;
}

StepEnergy with_periods(const StepEnergy& step, const StepEnergy& period, std::int64_t times) {
  StepEnergy sums = step;
  sums.devices = Joules(with_periods(step.devices.value, period.devices.value, times));
  sums.hosts = Joules(with_periods(step.hosts.value, period.hosts.value, times));
  sums.site = with_periods(step.site, period.site, times);
  sums.kg_co2e = with_periods(step.kg_co2e, period.kg_co2e, times);
  return sums;
}

WhereJoules with_periods(const WhereJoules& step, const WhereJoules& period, std::int64_t times) {
  return {with_periods(step.phase_j, period.phase_j, times), with_periods(step.exposed_j, period.exposed_j, times)};
}

Forecast::Forecast(std::vector<program::Program> programs, const Costs& costs, bool every_op)
    : between_steps_(costs.between_steps()) {
  if (!every_op && can_repeat(costs))
    if (const auto blocks = blocks_of(programs))
      for (const Attempt& attempt :
           attempts_for(blocks->count(), programs.size(), blocks->of_stage.front().micro_batches))
        if (take_few(programs, costs, *blocks, attempt.kept, attempt.every)) return;
  all_.emplace(std::move(programs));
  timelines_ = simulate(*all_, costs);
}

bool Forecast::take_few(std::vector<program::Program>& programs, const Costs& costs, Blocks blocks, std::size_t kept,
                        const std::vector<std::size_t>& every) {
  const std::size_t left_out = blocks.count() - kept;
  std::vector<std::vector<program::Instance>> schedules;
  for (std::size_t s = 0; s < programs.size(); ++s) {
    program::Repeats& repeats = blocks.of_stage[s];
    schedules.push_back(std::exchange(programs[s].schedule, program::with_blocks(programs[s].schedule, repeats, kept)));
    repeats.blocks = kept;
  }
  all_.emplace(std::move(programs));
  std::optional<Period> period;
  std::vector<std::size_t> left = every;  // what every walk so far has proved, for the next one stands on it
  if (!may_slow_down(*all_, costs.core_contention())) {
    const auto proves = [&](const std::vector<program::Timeline>& timelines) {
      period.reset();
      std::erase_if(left, [&](std::size_t together) {
        auto found = period_of(*all_, blocks, together, timelines, costs.core_contention().one_at_a_time);
        if (found && !period) period = found;
        return !found;
      });
      return period.has_value();
    };
    if (auto timelines = simulate_if(*all_, costs, proves)) {
      timelines_ = std::move(*timelines);
      more_ = static_cast<std::int64_t>(left_out / left.front());
      cut_out(*period);
      return true;
    }
  }
  programs = std::move(*all_).take_programs();
  all_.reset();
  for (std::size_t s = 0; s < programs.size(); ++s) programs[s].schedule = std::move(schedules[s]);
  return false;
}

void Forecast::cut_out(const Period& period) {
  period_ops_ = period.ops;
  std::vector<std::vector<program::Expanded>> ops(all_->size());
  for (std::size_t s = 0; s < all_->size(); ++s) {
    period_timelines_.emplace_back().total_s = period.seconds;
    for (const Piece& piece : pieces_of(timelines_[s], period.ops[s], period.seconds)) {
      const program::Expanded& op = all_->ops(s)[piece.op];
      ops[s].push_back({op.instance, op.body, op.op, op.micro_batch, op.step, {}});
      period_timelines_[s].ops.push_back({.start_s = piece.start_s, .end_s = piece.end_s});
    }
  }
  period_.emplace(all_->with_ops(std::move(ops)));
}

const program::Stages& Forecast::stages() const {
  MOLEN_CHECK(has_every_op(), "a forecast that does not have every op");
  return *all_;
}

const std::vector<program::Timeline>& Forecast::timelines() const {
  MOLEN_CHECK(has_every_op(), "a forecast that does not have every op");
  return timelines_;
}

double Forecast::seconds() const {
  return (1.0 + between_steps_) * sum([](const auto&, const auto& timelines) { return step_seconds(timelines); });
}

std::size_t Forecast::busiest_stage() const {
  std::vector<double> busy(size(), 0.0);
  for (std::size_t s = 0; s < size(); ++s)
    each_op(s, [&](const program::Expanded& op, const program::OpTime& time, std::int64_t times) {
      if (op.step->stream == program::Stream::kCompute && !program::is_communication(op.step->op))
        busy[s] += static_cast<double>(times) * time.seconds();
    });
  return busiest_of(busy);
}

StepEnergy Forecast::energy(const cluster::Cluster& cluster, const Factors& factors, double time_spread) const {
  return sum([&](const auto& stages, const auto& timelines) {
    return energy_of(stages, timelines, cluster, factors, time_spread, between_steps_);
  });
}

Errors Forecast::errors(const OpErrors& of) const {
  return errors_of_step(*all_, timelines_, of);
}

std::map<std::string, double> Forecast::spreads_of_kinds(std::size_t stage, const OpErrors& of) const {
  return sim::spreads_of_kinds(all_->program(stage), all_->ops(stage), timelines_[stage], of);
}

program::PhaseSeconds Forecast::phases(std::size_t stage) const {
  return sum([&](const auto& stages, const auto& timelines) {
    return program::phase_seconds(stages.program(stage).setting, stages.ops(stage), timelines[stage]);
  });
}

}  // namespace molen::sim
