#include "ledger/scope_ledger.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "ledger/apportion.h"

namespace molen::ledger {

using Eigen::VectorXd;

namespace {

constexpr std::int64_t kSolveEvery =
    64;  // changes: residuals of scores are taken at coefficients that are as old at most

std::vector<bool> only_last(std::size_t size) {
  std::vector<bool> set(size, false);
  set.back() = true;
  return set;
}

double energy_of(const std::vector<int>& columns, const VectorXd& totals, const VectorXd& coefficients) {
  double joules = 0.0;
  for (const int c : columns) joules += totals[c] * coefficients[c];
  return joules;
}

}  // namespace

ScopeLedger::ScopeLedger(Counter counter, std::vector<std::string> phases, int ranks, LedgerOptions options)
    : changes_(counter),
      activity_(static_cast<int>(phases.size()), ranks),
      phases_(std::move(phases)),
      options_(options),
      next_try_(options.first_changes),
      moments_(static_cast<int>(phases_.size()) + 2),
      coefficients_(VectorXd::Zero(static_cast<Eigen::Index>(phases_.size()) + 2)),
      totals_(VectorXd::Zero(static_cast<Eigen::Index>(phases_.size()) + 2)) {
  std::set<std::string> names{kBase, kUnattributed};
  for (const std::string& phase : phases_)
    if (!names.insert(phase).second) throw Error("two entries would have the name \"{}\"", phase);
}

void ScopeLedger::complete_phases(int rank, double until_s) {
  activity_.complete(rank, until_s);
  take();
}

void ScopeLedger::add_sample(const Sample& sample) {
  const std::optional<Change> change = changes_.add(sample);
  // A change without an earlier update has no known seconds; its ticks stay unattributed.
  if (change && change->from && !given_up_) waiting_.push_back(*change);
  take();
}

void ScopeLedger::take() {
  const auto ready = [&](const Change& change) {
    return change.to.latest_s + kLagMargin <= activity_.complete_until_s();
  };
  if (!lag_) begin();
  if (!lag_ && !given_up_ && held() > options_.most_held) {
    refusal_ += fmt::format("{}the lag was not known when {} times of phases had to be held",
                            refusal_.empty() ? "" : "; ", options_.most_held);
    given_up_ = true;
    waiting_.clear();
  }
  while (lag_ && !waiting_.empty() && ready(waiting_.front())) {
    use(waiting_.front());
    waiting_.pop_front();
  }
  const double oldest_s = given_up_          ? activity_.complete_until_s()
                          : waiting_.empty() ? changes_.next_from_s()
                                             : waiting_.front().from->earliest_s;
  activity_.forget(oldest_s - kMostLag - kLagMargin);
}

// Estimates the lag if there are enough changes for a further try. The changes stay, so that they are used as well.
void ScopeLedger::begin() {
  const auto wanted = static_cast<std::size_t>(next_try_);
  if (given_up_ || waiting_.size() < wanted ||
      waiting_[wanted - 1].to.latest_s + kLagMargin > activity_.complete_until_s())
    return;
  const std::vector<Change> first(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(wanted));
  Result<Lag> lag = estimate_lag(first, activity_, changes_.counter().joules_per_tick);
  if (!lag) {
    refusal_ = lag.reason();
    next_try_ *= 2;
    given_up_ = next_try_ > options_.most_changes;
    if (given_up_) waiting_.clear();
    return;
  }
  refusal_.clear();
  lag_ = std::move(lag).value();
  double mean_span_s = 0.0;
  for (const Change& change : first) mean_span_s += span_of(change) / static_cast<double>(first.size());
  whitening_ = Whitening(lag_->noise_ratio, mean_span_s);
  coefficients_ << lag_->watts, 0.0;
}

void ScopeLedger::use(const Change& change) {
  if (!last_used_ || last_used_->latest_s != change.from->latest_s) whitening_.restart(), moments_.restart();
  last_used_ = change.to;
  used_ticks_ += change.ticks;
  const Row plain = phase_row(change, activity_, lag_->seconds, changes_.counter().joules_per_tick);
  totals_ += plain;
  const auto columns = plain.size() - 1;
  Row row(columns + 2);
  // The slope takes up what is left of the lag's error, so that the standard errors of the powers contain it.
  row << plain.head(columns), slope_by_lag(change, activity_, lag_->seconds, lag_->watts), plain[columns];
  whitening_.apply(row, span_of(change));
  moments_.add(row, coefficients_);
  if (static_cast<std::int64_t>(moments_.rows()) % kSolveEvery == 0) {
    const std::vector<bool> none(static_cast<std::size_t>(columns) + 1, false);
    coefficients_ =
        nonnegative_least_squares(moments_.products(), moments_.with_value(), only_last(none.size()), none).values;
  }
}

// The energies of the columns that are told apart.
struct ScopeLedger::Shares {
  std::vector<std::vector<int>> columns;  // of each entry
  std::vector<std::string> notes;
  std::vector<double> joules, errors;
  double lag_s = 0.0, lag_error_s = 0.0;
};

ScopeLedger::Shares ScopeLedger::shares() const {
  const int phases = static_cast<int>(phases_.size());
  std::vector<bool> excluded(static_cast<std::size_t>(phases) + 2, false);
  const auto sets_from = [&](int first) {
    const int n = phases + 1 - first;
    std::vector<std::vector<int>> sets = collinear_sets(moments_.products().block(first, first, n, n));
    for (auto& set : sets)
      for (int& column : set) column += first;
    return sets;
  };
  std::vector<std::vector<int>> sets = sets_from(0);
  std::vector<int> with_base;
  for (const auto& set : sets)
    if (set.front() == 0) with_base = set;
  if (!with_base.empty()) {
    excluded[0] = true;
    sets = sets_from(1);
  }
  Shares shares;
  std::set<int> placed;
  for (int c = 1; c <= phases; ++c) {
    if (placed.contains(c) || totals_[c] <= 0.0) continue;
    std::vector<int> columns{c};
    for (const auto& set : sets)
      if (std::find(set.begin(), set.end(), c) != set.end()) columns = set;
    placed.insert(columns.begin(), columns.end());
    std::string note;
    if (columns.size() > 1) note = "the times of these phases are too nearly in proportion to tell their powers apart";
    const bool has_base = std::any_of(columns.begin(), columns.end(), [&](int column) {
      return std::find(with_base.begin(), with_base.end(), column) != with_base.end();
    });
    if (has_base)
      note += std::string(note.empty() ? "" : "; ") +
              "these phases leave too little time to tell the base apart, which they contain";
    shares.columns.push_back(columns);
    shares.notes.push_back(note);
  }
  if (with_base.empty()) shares.columns.push_back({0}), shares.notes.emplace_back();

  const Coefficients fit =
      nonnegative_least_squares(moments_.products(), moments_.with_value(), only_last(excluded.size()), excluded);
  const Eigen::MatrixXd covariance = moments_.covariance(fit.used);
  for (const auto& columns : shares.columns) {
    VectorXd weights = VectorXd::Zero(phases + 2);
    for (const int c : columns) weights[c] = totals_[c];
    shares.joules.push_back(energy_of(columns, totals_, fit.values));
    shares.errors.push_back(std::sqrt(std::max(0.0, weights.dot(covariance * weights))));
  }
  shares.lag_s = lag_->seconds + fit.values[phases + 1];
  shares.lag_error_s = fit.used.back() ? std::sqrt(covariance(phases + 1, phases + 1)) : lag_->standard_error_s;
  return shares;
}

Account ScopeLedger::account() const {
  Account account;
  account.ticks = changes_.total_ticks();
  account.refusal = refusal_;
  const double joules_per_tick = changes_.counter().joules_per_tick;
  std::vector<double> ticks;
  const bool enough = lag_ && moments_.rows() > static_cast<double>(moments_.columns());
  if (enough) {
    const Shares shares = this->shares();
    account.changes = static_cast<std::int64_t>(moments_.rows());
    account.lag = Seconds(shares.lag_s), account.lag_error = Seconds(shares.lag_error_s);
    double explained = 0.0;
    for (const double joules : shares.joules) explained += joules / joules_per_tick;
    const auto counted = static_cast<double>(used_ticks_);
    if (explained > counted) account.scaled_by = counted / explained;
    for (std::size_t e = 0; e < shares.columns.size(); ++e) {
      Entry entry;
      for (const int c : shares.columns[e]) {
        entry.name += (entry.name.empty() ? "" : "+") + (c == 0 ? kBase : phases_[static_cast<std::size_t>(c - 1)]);
        entry.rank_seconds += totals_[c];
      }
      entry.standard_error = Joules(shares.errors[e]);
      entry.note = shares.notes[e];
      account.entries.push_back(entry);
      ticks.push_back(shares.joules[e] / joules_per_tick * account.scaled_by);
    }
  } else if (refusal_.empty()) {
    account.refusal =
        fmt::format("{} changes of the counter so far; the lag is estimated from {}", waiting_.size(), next_try_);
  }
  double rest = static_cast<double>(account.ticks);
  for (const double share : ticks) rest -= share;
  account.entries.push_back({kUnattributed, 0, {}, {}, 0.0, account.refusal});
  ticks.push_back(std::max(0.0, rest));
  const std::vector<std::int64_t> whole = apportion(account.ticks, ticks);
  for (std::size_t e = 0; e < whole.size(); ++e) {
    account.entries[e].ticks = whole[e];
    account.entries[e].energy = Joules(static_cast<double>(whole[e]) * joules_per_tick);
  }
  return account;
}

}  // namespace molen::ledger
