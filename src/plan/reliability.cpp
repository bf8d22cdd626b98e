#include "plan/reliability.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"

namespace molen::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Beyond so many standard deviations, a normal variable has a probability of 1e-19. That is negligible even for the
// maximum of the 1e9 devices that a description may have.
constexpr double kNormalReach = 9.0;
constexpr int kSimpsonIntervals = 1000;

// Returns the probability that a standard normal variable exceeds z.
double upper_tail(double z) {
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

// Returns the probability that the slowest device takes longer than x. `jitter` is above 0.
double slower_than(const StepVariation& v, double x) {
  const auto all_below = [&](double z) { return std::exp(v.devices_of_node * std::log1p(-upper_tail(z))); };
  const double usual = all_below((x - 1.0) / v.jitter), slow = all_below((x / v.slow_factor - 1.0) / v.jitter);
  const double node = (1.0 - v.slow_share) * usual + v.slow_share * slow;
  return -std::expm1(v.nodes * std::log(node));
}

double simpson(const StepVariation& v, double low, double high) {
  const double h = (high - low) / kSimpsonIntervals;
  double sum = slower_than(v, low) + slower_than(v, high);
  for (int i = 1; i < kSimpsonIntervals; ++i) sum += (i % 2 == 1 ? 4.0 : 2.0) * slower_than(v, low + i * h);
  return sum * h / 3.0;
}

// The first two moments of the time until a failure that comes within `within`, when failures come at the rate 1 / m.
struct Moments {
  double mean = 0.0, square = 0.0;
};
Moments until_failure(double within, double m) {
  const double x = within / m;
  // The exact terms cancel where failures are rare. Below the limit, the terms that the series leaves out are less than
  // x^2 / 100 of the result; above it, the cancellation costs no more.
  constexpr double kRare = 1e-3;
  if (x < kRare) return {m * x * (0.5 - x / 12.0), m * m * x * x * (1.0 / 3.0 - x / 12.0)};
  const double odds = 1.0 / std::expm1(x);
  return {m * (1.0 - x * odds), m * m * (2.0 - (x * x + 2.0 * x) * odds)};
}

// The number of failed attempts before the first of `within` seconds that no failure interrupts.
struct Attempts {
  double mean = 0.0, variance = 0.0;
};
Attempts failed_attempts(double within, double m) {
  const double odds = std::expm1(within / m);  // (1 - p) / p, with p = exp(-within / m)
  return {odds, odds * (1.0 + odds)};
}

// The variance of a sum of `n` independent terms, where the number is random too.
double variance_of_sum(const Attempts& n, double mean, double variance) {
  return n.mean * variance + n.variance * mean * mean;
}

cluster::Figure assumption(double value, double spread, std::string why) {
  return {value, spread, "assumption: " + std::move(why)};
}

}  // namespace

double slowest_factor(const StepVariation& v) {
  MOLEN_CHECK(v.jitter >= 0.0 && v.slow_share >= 0.0 && v.slow_share <= 1.0 && v.slow_factor >= 1.0 && v.nodes >= 1 &&
                  v.devices_of_node >= 1,
              "jitter {}, slow nodes {} x {}, {} nodes of {}", v.jitter, v.slow_share, v.slow_factor, v.nodes,
              v.devices_of_node);
  const double any_slow = v.slow_share < 1.0 ? -std::expm1(v.nodes * std::log1p(-v.slow_share)) : 1.0;
  if (v.jitter == 0.0) return 1.0 + any_slow * (v.slow_factor - 1.0);
  // The integrand falls near the times of usual nodes and near those of slow ones. Each of these ranges is integrated
  // by itself, since they may be narrow and far apart.
  const double reach = kNormalReach * v.jitter;
  std::array<double, 4> at{1.0 - reach, 1.0 + reach, v.slow_factor * (1.0 - reach), v.slow_factor * (1.0 + reach)};
  std::sort(at.begin(), at.end());
  double mean = at.front();
  for (std::size_t i = 0; i + 1 < at.size(); ++i)
    if (at[i] < at[i + 1]) mean += simpson(v, at[i], at[i + 1]);
  return mean;
}

StretchTime stretch_time(double work_s, double mtbf_s, double restart_s) {
  MOLEN_CHECK(work_s >= 0.0 && restart_s >= 0.0 && mtbf_s > 0.0, "{} s of work, an MTBF of {} s, restarts of {} s",
              work_s, mtbf_s, restart_s);
  if (work_s == 0.0 || std::isinf(mtbf_s)) return {work_s, 0.0, 0.0, 0.0, 0.0};
  const Attempts failed = failed_attempts(work_s, mtbf_s), again = failed_attempts(restart_s, mtbf_s);
  if (!std::isfinite(failed.variance) || !std::isfinite(again.variance))
    return {kInfinity, kInfinity, kInfinity, kInfinity, kInfinity};
  const Moments lost = until_failure(work_s, mtbf_s);
  const Moments in_restart = restart_s > 0.0 ? until_failure(restart_s, mtbf_s) : Moments{};
  const auto variance = [](const Moments& m) { return std::max(0.0, m.square - m.mean * m.mean); };
  const double restart_mean = restart_s + again.mean * in_restart.mean,
               restart_variance = variance_of_sum(again, in_restart.mean, variance(in_restart));
  StretchTime t;
  t.redone_s = failed.mean * lost.mean;
  t.restarts_s = failed.mean * restart_mean;
  t.seconds = work_s + t.redone_s + t.restarts_s;
  t.failures = failed.mean * (1.0 + again.mean);
  t.variance = variance_of_sum(failed, lost.mean + restart_mean, variance(lost) + restart_variance);
  return t;
}

double best_interval(double save_s, double mtbf_s) {
  MOLEN_CHECK(save_s >= 0.0 && mtbf_s > 0.0, "saves of {} s, an MTBF of {} s", save_s, mtbf_s);
  if (std::isinf(mtbf_s)) return kInfinity;
  if (save_s == 0.0) return 0.0;
  // The derivative of (exp((t + save) / M) - 1) / t is zero where -log(1 - x) - x = save / M, with x = t / M. The left
  // side rises from 0 to infinity on [0, 1), so bisection finds the only root.
  double low = 0.0, high = 1.0;
  for (int i = 0; i < std::numeric_limits<double>::digits; ++i) {
    const double x = 0.5 * (low + high);
    (-std::log1p(-x) - x < save_s / mtbf_s ? low : high) = x;
  }
  return 0.5 * (low + high) * mtbf_s;
}

double young_interval(double save_s, double mtbf_s) {
  MOLEN_CHECK(save_s >= 0.0 && mtbf_s > 0.0, "saves of {} s, an MTBF of {} s", save_s, mtbf_s);
  return std::sqrt(2.0 * save_s * mtbf_s);
}

RunFigures run_figures(const cluster::Cluster& c) {
  const cluster::Reliability& r = c.reliability;
  RunFigures f;
  f.step_jitter = r.step_jitter.value_or(assumption(
      0.015, 1.0,
      "Sinha et al. 2022 (arXiv 2208.11035) measured a variation of 8 % among the GPUs of five clusters, here "
      "read as the 5.4 standard deviations between the whiskers of a box plot"));
  f.slow_node_share =
      r.slow_node_share.value_or(assumption(0.005, 1.0,
                                            "about 0.5 % of the machines, after Jiang et al. 2024 (MegaScale, arXiv "
                                            "2402.15627); not checked against its text"));
  f.slow_node_factor =
      r.slow_node_factor.value_or(assumption(1.1, 0.1,
                                             "slow machines take about 10 % longer, after Jiang et al. 2024 "
                                             "(MegaScale, arXiv 2402.15627); not checked against its text"));
  // 419 failures on 16,384 devices in 54 days: 50,676 device-hours each.
  constexpr double kDeviceMtbf = 16384.0 * 54.0 * 86400.0 / 419.0;
  f.node_mtbf = r.node_mtbf.value_or(
      assumption(kDeviceMtbf / c.node.devices, 1.0,
                 "a device fails as often as in the training of Llama 3 405B (arXiv 2407.21783, section 3.3.4): 419 "
                 "unexpected interruptions of 16,384 H100 in 54 days"));
  f.restart = r.restart.value_or(
      assumption(600.0, 1.0, "Jiang et al. 2024 (MegaScale, arXiv 2402.15627): less than ten minutes to find a fault"));
  f.node_bandwidth = c.storage.node_bandwidth.value_or(
      assumption(1e9, 1.0,
                 "as the storage of Llama 3 405B (arXiv 2407.21783, section 3.3.1), which sustained 2 TB/s for 2,048 "
                 "nodes"));
  f.write_bandwidth = c.storage.write_bandwidth, f.read_bandwidth = c.storage.read_bandwidth;
  return f;
}

}  // namespace molen::plan
