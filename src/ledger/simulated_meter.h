// For tests: ranks whose phases have known powers, and a meter of the energy that they draw. Nothing here is shared
// with the code under test: energy is added up by stretches of constant power.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "ledger/scope_ledger.h"

namespace molen::ledger {

struct Interval {
  int rank = 0, phase = 0;
  double start_s = 0, end_s = 0;
};

// The phases of a job on one scope. Powers are those of one rank in the phase, beside the base of the scope.
struct SimulatedJob {
  std::vector<std::string> phases;
  std::vector<double> watts;
  double base_watts = 0;
  int ranks = 1;
  std::vector<Interval> intervals;
  std::vector<double> step_ends_s;
  double end_s = 0;

  double draw(std::uint64_t key) { return normal_at(key, draws_++); }
  // A duration that varies from one time to the next, with a relative standard deviation.
  double about(std::uint64_t key, double seconds, double spread) {
    return seconds * std::max(0.2, 1.0 + spread * draw(key));
  }

 private:
  std::uint64_t draws_ = 0;
};

// Fully sharded data parallelism: each block gathers its parameters beside the computation of the block before it, and
// its gradients are reduced and scattered beside the backward of the next one. The ranks of a scope are in step, but
// for a few milliseconds. `scale` multiplies all durations.
inline SimulatedJob fsdp_job(int ranks, int steps, std::uint64_t seed, double scale = 1.0) {
  SimulatedJob job;
  job.phases = {"forward", "backward", "all_gather", "reduce_scatter", "optimizer"};
  job.watts = {310, 360, 110, 130, 190};
  job.base_watts = 95;
  job.ranks = ranks;
  const std::uint64_t key = stream_key(seed, "fsdp");
  double step_s = 0.013;
  for (int step = 0; step < steps; ++step) {
    double latest_s = step_s;
    const double pace = 1.0 + 0.03 * job.draw(key);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto add = [&](int phase, double from_s, double seconds) {
        job.intervals.push_back({rank, phase, from_s, from_s + seconds});
        return from_s + seconds;
      };
      double t = step_s + std::abs(0.003 * job.draw(key));
      const auto takes = [&](double seconds, double spread) { return scale * pace * job.about(key, seconds, spread); };
      double gathered_s = add(2, t, takes(0.045, 0.2));
      t = gathered_s;  // nothing hides the first one
      for (int block = 0; block < 4; ++block) {
        const double end_s = add(0, t, takes(0.055, 0.05));
        if (block < 3) gathered_s = add(2, t, takes(0.035, 0.3));
        t = std::max(end_s, gathered_s);
      }
      double reduced_s = t;
      for (int block = 0; block < 4; ++block) {
        const double end_s = add(1, t, takes(0.105, 0.05));
        if (block < 3) gathered_s = add(2, t, takes(0.04, 0.3));
        t = std::max(end_s, gathered_s);
        const double from_s = std::max(t, reduced_s);
        reduced_s = add(3, from_s, takes(0.05, 0.3));
      }
      t = add(4, std::max(t, reduced_s), takes(0.06, 0.05));
      latest_s = std::max(latest_s, t);
    }
    step_s = latest_s + job.about(key, 0.07, 0.3);  // the data of the next step
    job.step_ends_s.push_back(step_s);
  }
  job.end_s = step_s;
  return job;
}

// One forward, one backward (Narayanan et al., SOSP 2019) on four stages and six micro-batches, with warm-up, bubbles,
// messages beside computation, the reduction of gradients and the optimizer. The scope holds stage 1, or all four.
// With `bubble_watts` the bubble is a phase of that power: the time in which a stage waits for a message and sends
// none.
inline SimulatedJob pipeline_job(int ranks, int steps, std::uint64_t seed, double scale = 1.0,
                                 std::optional<double> bubble_watts = {}) {
  constexpr int kStages = 4, kBatches = 6, kBubble = 5;
  SimulatedJob job;
  job.phases = {"forward", "backward", "send_recv", "all_reduce", "optimizer"};
  job.watts = {300, 350, 120, 160, 200};
  if (bubble_watts) job.phases.emplace_back("bubble"), job.watts.push_back(*bubble_watts);
  job.base_watts = 120;
  job.ranks = ranks;
  const std::uint64_t key = stream_key(seed, "1f1b");
  double step_s = 0.017;
  for (int step = 0; step < steps; ++step) {
    const double pace = scale * (1.0 + 0.03 * job.draw(key));
    // For each stage the order of its work: 0.. are forwards, kBatches.. are backwards.
    std::vector<std::vector<int>> order(kStages);
    for (int s = 0; s < kStages; ++s) {
      const int warm = std::min(kStages - 1 - s, kBatches);
      for (int f = 0; f < warm; ++f) order[s].push_back(f);
      for (int b = 0; b < kBatches; ++b) {
        if (warm + b < kBatches) order[s].push_back(warm + b);
        order[s].push_back(kBatches + b);
      }
    }
    const auto add = [&](int stage, int phase, double from_s, double seconds) {
      if (ranks == kStages)
        job.intervals.push_back({stage, phase, from_s, from_s + seconds});
      else if (stage == 1)
        job.intervals.push_back({0, phase, from_s, from_s + seconds});
      return from_s + seconds;
    };
    std::vector<std::vector<double>> arrived(kStages, std::vector<double>(2 * kBatches, -1.0));
    std::vector<double> free_s(kStages, step_s), sending_s(kStages, step_s);
    std::vector<std::size_t> next(kStages, 0);
    for (int b = 0; b < kBatches; ++b) arrived[0][b] = step_s;
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < kStages; ++s) {
        if (next[s] == order[s].size()) continue;
        const int work = order[s][next[s]];
        const bool backward = work >= kBatches;
        const double input_s = backward && s == kStages - 1 ? free_s[s] : arrived[s][work];
        if (input_s < 0) continue;
        const double begin_s = std::max(free_s[s], input_s), waits_s = std::max(free_s[s], sending_s[s]);
        if (bubble_watts && begin_s > waits_s) add(s, kBubble, waits_s, begin_s - waits_s);
        free_s[s] = add(s, backward ? 1 : 0, begin_s, pace * job.about(key, backward ? 0.11 : 0.055, 0.06));
        const int to = backward ? s - 1 : s + 1;
        if (to >= 0 && to < kStages)
          sending_s[s] = arrived[to][work] = add(s, 2, free_s[s], pace * job.about(key, 0.035, 0.3));
        ++next[s];
        moved = true;
      }
    }
    double latest_s = step_s;
    for (int s = 0; s < kStages; ++s) {
      const double reduced_s = add(s, 3, free_s[s], pace * job.about(key, 0.12, 0.1));
      latest_s = std::max(latest_s, add(s, 4, reduced_s, pace * job.about(key, 0.08, 0.05)));
    }
    step_s = latest_s + job.about(key, 0.05, 0.3);
    job.step_ends_s.push_back(step_s);
  }
  job.end_s = step_s;
  std::stable_sort(job.intervals.begin(), job.intervals.end(),
                   [](const Interval& a, const Interval& b) { return a.start_s < b.start_s; });
  return job;
}

// Samples come slightly late, so that they are not in step with the updates.
struct SimulatedMeter {
  double lag_s = 0.05;
  double joules_per_tick = 1e-3;
  double noise = 0.02;    // relative standard deviation of the energy that one update adds
  double update_s = 0.1;  // from one update to the next, but for update_jitter_s
  double update_jitter_s = 0.0005;
  double sample_s = 0.00504, sample_jitter_s = 0.0003;
  std::uint64_t period = 0;  // ticks
  std::uint64_t first_ticks = 12345;
  std::vector<std::pair<double, double>> failing_s;  // samples in these times fail
  std::vector<double> restarts_s;                    // at these times the counter begins again at 0
};

// The energy of a job as a function of time.
class SimulatedEnergy {
 public:
  explicit SimulatedEnergy(const SimulatedJob& job) {
    std::map<double, double> steps{{0.0, job.base_watts}};
    for (const Interval& i : job.intervals) {
      steps[i.start_s] += job.watts[static_cast<std::size_t>(i.phase)];
      steps[i.end_s] -= job.watts[static_cast<std::size_t>(i.phase)];
    }
    double joules = 0, watts = 0, at_s = 0;
    for (const auto& [time_s, step] : steps) {
      joules += watts * (time_s - at_s);
      at_s = time_s;
      watts += step;
      knots_.push_back({time_s, joules, watts});
    }
  }
  // Times may only grow from call to call.
  double until(double time_s) {
    if (time_s <= 0) return knots_.front().watts * time_s;
    while (at_ + 1 < knots_.size() && knots_[at_ + 1].time_s <= time_s) ++at_;
    return knots_[at_].joules + knots_[at_].watts * (time_s - knots_[at_].time_s);
  }

 private:
  struct Knot {
    double time_s, joules, watts;
  };
  std::vector<Knot> knots_;
  std::size_t at_ = 0;
};

// The samples of a meter. It does not say that it restarted.
inline std::vector<Sample> samples_of(const SimulatedJob& job, const SimulatedMeter& meter, std::uint64_t seed) {
  SimulatedEnergy energy(job);
  const std::uint64_t key = stream_key(seed, "meter");
  std::vector<Sample> samples;
  double shown_j = 0, last_j = energy.until(-1.0), update_s = 0.0, restart_j = 0;
  std::uint64_t n = 0, updates = 0, first = meter.first_ticks;
  std::size_t restarts = 0;
  for (double t = 0.003; t < job.end_s; t = 0.003 + meter.sample_s * static_cast<double>(++n)) {
    const double sample_s = t + meter.sample_jitter_s * uniform_at(key, 3 * n);
    while (update_s <= sample_s) {
      const double now_j = energy.until(update_s - meter.lag_s);
      const double added_j = (now_j - last_j) * (1 + meter.noise * normal_at(key, 3 * updates + 1));
      last_j = now_j;
      shown_j += updates == 0 ? 0.0 : added_j;
      ++updates;
      update_s =
          meter.update_s * static_cast<double>(updates) + meter.update_jitter_s * normal_at(key, 3 * updates + 2);
    }
    while (restarts < meter.restarts_s.size() && meter.restarts_s[restarts] <= sample_s) {
      restart_j = shown_j, first = 0;
      ++restarts;
    }
    std::uint64_t ticks = first + static_cast<std::uint64_t>(std::floor((shown_j - restart_j) / meter.joules_per_tick));
    if (meter.period > 0) ticks %= meter.period;
    Sample sample{sample_s, ticks, false};
    for (const auto& [from_s, to_s] : meter.failing_s)
      if (sample_s >= from_s && sample_s < to_s) sample.ticks.reset();
    samples.push_back(sample);
  }
  return samples;
}

// The joules of each phase, then of the base, from begin_s to end_s.
inline std::vector<double> joules_of(const SimulatedJob& job, double begin_s, double end_s) {
  std::vector<double> joules(job.watts.size() + 1, 0.0);
  for (const Interval& i : job.intervals)
    joules[static_cast<std::size_t>(i.phase)] += job.watts[static_cast<std::size_t>(i.phase)] *
                                                 std::max(0.0, std::min(end_s, i.end_s) - std::max(begin_s, i.start_s));
  joules.back() = job.base_watts * (end_s - begin_s);
  return joules;
}

inline Counter counter_of(const SimulatedMeter& meter) {
  Counter counter;
  counter.joules_per_tick = meter.joules_per_tick;
  counter.period = meter.period;
  counter.update_s = meter.update_s + 4 * meter.update_jitter_s;
  counter.most_watts = 5000;
  return counter;
}

// The joules of each phase, then of the base, that a counter with this lag shows between updates which samples tell.
inline std::vector<double> joules_between_updates(const SimulatedJob& job, const std::vector<Sample>& samples,
                                                  const Counter& counter, double lag_s) {
  const auto middle_s = [](const Edge& edge) { return 0.5 * (edge.earliest_s + edge.latest_s); };
  CounterChanges changes(counter);
  std::vector<std::pair<double, double>> stretches;  // of changes that follow each other
  for (const Sample& sample : samples) {
    const auto change = changes.add(sample);
    if (!change || !change->from) continue;
    const double from_s = middle_s(*change->from) - lag_s, to_s = middle_s(change->to) - lag_s;
    if (!stretches.empty() && stretches.back().second == from_s)
      stretches.back().second = to_s;
    else
      stretches.emplace_back(from_s, to_s);
  }
  std::vector<double> joules(job.watts.size() + 1, 0.0);
  for (const auto& [from_s, to_s] : stretches) {
    const auto part = joules_of(job, from_s, to_s);
    for (std::size_t i = 0; i < part.size(); ++i) joules[i] += part[i];
  }
  return joules;
}

// Gives a ledger all phases and samples in the order in which a trainer would: samples as they come, phases at the end
// of each step.
inline void play(const SimulatedJob& job, const std::vector<Sample>& samples, ScopeLedger& ledger) {
  std::size_t sample = 0, interval = 0;
  for (const double end_s : job.step_ends_s) {
    for (; sample < samples.size() && samples[sample].time_s < end_s; ++sample) ledger.add_sample(samples[sample]);
    for (; interval < job.intervals.size() && job.intervals[interval].start_s < end_s; ++interval) {
      const Interval& i = job.intervals[interval];
      ledger.add_phase(i.rank, i.phase, i.start_s, i.end_s);
    }
    for (int rank = 0; rank < job.ranks; ++rank) ledger.complete_phases(rank, end_s);
  }
  for (; sample < samples.size(); ++sample) ledger.add_sample(samples[sample]);
  for (int rank = 0; rank < job.ranks; ++rank) ledger.complete_phases(rank, job.end_s + 0.1);
}

}  // namespace molen::ledger
