#include "train/observe/phase_energy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "launch/gather_texts.h"

namespace molen::train {
namespace {

constexpr double kCollectEvery = 10.0;        // seconds
constexpr std::size_t kMostTimes = 1U << 16;  // of a rank, before they are collected

}  // namespace

PhaseEnergy::PhaseEnergy(comm::Communicator& host, const std::vector<int>& device_of, energy::Accountant* accountant,
                         double opened_s, Seconds sample_every, std::function<std::int64_t()> clock)
    : host_(host), accountant_(accountant), clock_(std::move(clock)), until_ns_(std::llround(opened_s * 1e9)) {
  if (accountant_) ledger_ = std::make_unique<HostLedger>(accountant_->meters(), device_of, opened_s, sample_every);
}

void PhaseEnergy::add_step(const program::Program& program, const std::vector<program::Expanded>& ops,
                           const program::Timeline& timeline, const std::vector<data::LoaderWait>& waits) {
  const std::size_t before = times_.size();
  parts_.add_step(program, ops, add_phase_times(ops, timeline, waits, times_));
  for (std::size_t i = before; i < times_.size(); ++i) parts_.add(times_[i]);
}

void PhaseEnergy::add_outside(OutsideSteps what, std::int64_t start_ns, std::int64_t end_ns) {
  const PhaseTime time{energy_phase_of(what), std::max(start_ns, until_ns_), end_ns};
  if (time.end_ns <= time.start_ns) return;
  times_.push_back(time);
  parts_.add(time);
}

bool PhaseEnergy::due() const {
  return times_.size() >= kMostTimes || seconds_since(until_ns_) >= kCollectEvery;
}

void PhaseEnergy::collect() {
  const std::int64_t until_ns = clock_();
  std::vector<std::int64_t> own{until_ns};
  for (const PhaseTime& t : times_) own.insert(own.end(), {t.phase, std::max(t.start_ns, until_ns_), t.end_ns});
  times_.clear();
  until_ns_ = until_ns;
  const auto ranks = static_cast<std::size_t>(host_.size());
  const auto size = static_cast<std::int64_t>(own.size());
  std::vector<std::int64_t> sizes(ranks);
  host_.all_gather(&size, sizes.data(), std::vector<std::int64_t>(ranks, 1), DType::kI64);
  std::vector<std::int64_t> all(static_cast<std::size_t>(std::reduce(sizes.begin(), sizes.end())));
  host_.all_gather(own.data(), all.data(), sizes, DType::kI64);
  if (!accountant_) return;
  Collected collected;
  auto at = all.begin();
  for (const std::int64_t values : sizes) {
    Collected::Rank& rank = collected.ranks.emplace_back();
    const auto end = at + values;
    rank.until_ns = *at++;
    for (; at != end; at += 3)
      if (at[2] > at[1]) rank.times.push_back({at[0], at[1], at[2]});
  }
  collected.samples = accountant_->take_samples();
  ledger_->add(std::move(collected));
}

Json PhaseEnergy::accounts() {
  const std::vector<std::string> parts = launch::texts_at_root(host_, parts_.to_json().dump());
  if (!ledger_) return Json::object();
  std::vector<Json> of_host;
  for (const std::string& text : parts) of_host.push_back(Json::parse(text));
  Json all = ledger_->accounts();
  for (auto& [scope, account] : all.items()) {
    std::vector<Json> ranks;
    for (const int rank : ledger_->counted_ranks(scope)) ranks.push_back(of_host.at(static_cast<std::size_t>(rank)));
    divide_phases(account, ranks);
  }
  return all;
}

namespace {

constexpr std::size_t kMostNamed = 100;  // gaps and hosts that a sum lists for a scope

// Adds the joules of parts, such as those of the ops of an entry.
void add_parts(Json& sum, const Json& more, const char* key) {
  if (!more.contains(key)) return;
  Json& parts = sum[key];
  if (parts.is_null()) parts = Json::object();
  for (const auto& [name, joules] : more[key].items()) parts[name] = parts.value(name, 0.0) + joules.get<double>();
}

void add_entry(Json& sum, const Json& entry) {
  if (sum.is_null()) {
    sum = entry;
    return;
  }
  for (const char* key : {"joules", "rank_seconds"}) sum[key] = sum[key].get<double>() + entry[key].get<double>();
  sum["ticks"] = sum["ticks"].get<std::int64_t>() + entry["ticks"].get<std::int64_t>();
  Json& error = sum["standard_error_j"];
  const Json& other = entry["standard_error_j"];
  if (!error.is_null() && !other.is_null())  // the errors of two hosts are independent
    error = std::hypot(error.get<double>(), other.get<double>());
  add_parts(sum, entry, "ops");
  const std::string note = sum.value("note", ""), more = entry.value("note", "");
  if (more != note) sum["note"] = note.empty() || more.empty() ? note + more + " (some hosts)" : note + "; or " + more;
}

void add_account(Json& sum, const std::string& host, const Json& account) {
  if (sum.is_null())
    sum = {{"joules", 0.0},   {"ticks", 0},           {"joules_per_tick", account["joules_per_tick"]},
           {"hosts", 0},      {"changes", 0},         {"entries", Json::object()},
           {"lag_s", Json()}, {"scaled_by", 1.0},     {"not_attributed", Json::object()},
           {"gaps_count", 0}, {"gaps", Json::array()}};
  sum["joules"] = sum["joules"].get<double>() + account["joules"].get<double>();
  for (const char* key : {"ticks", "changes", "gaps_count"})
    sum[key] = sum[key].get<std::int64_t>() + account[key].get<std::int64_t>();
  sum["hosts"] = sum["hosts"].get<std::int64_t>() + 1;
  if (sum["joules_per_tick"] != account["joules_per_tick"]) sum["joules_per_tick"] = nullptr;
  sum["scaled_by"] = std::min(sum["scaled_by"].get<double>(), account["scaled_by"].get<double>());
  if (const Json& lag = account["lag_s"]; !lag.is_null()) {
    const double s = lag.get<double>();
    Json& range = sum["lag_s"];
    if (range.is_null()) range = {s, s};
    range = {std::min(range[0].get<double>(), s), std::max(range[1].get<double>(), s)};
  }
  for (const auto& [entry, values] : account["entries"].items()) add_entry(sum["entries"][entry], values);
  for (const char* parts : {"layers", "stages"}) add_parts(sum, account, parts);
  if (const auto why = account["not_attributed"].get<std::string>();
      !why.empty() && sum["not_attributed"].size() < kMostNamed)
    sum["not_attributed"][host] = why;
  for (Json gap : account["gaps"]) {
    if (sum["gaps"].size() >= kMostNamed) break;
    gap["host"] = host;
    sum["gaps"].push_back(std::move(gap));
  }
}

}  // namespace

Json sum_of_accounts(const std::map<std::string, Json>& by_host) {
  Json sum = Json::object();
  for (const auto& [host, scopes] : by_host)
    for (const auto& [name, account] : scopes.items()) add_account(sum[name], host, account);
  return sum;
}

std::string phase_line(const Json& accounts, const std::set<std::string>& summed) {
  std::map<std::string, double> joules;
  double total = 0.0;
  for (const auto& [name, account] : accounts.items()) {
    if (!summed.contains(name)) continue;
    total += account["joules"].get<double>();
    for (const auto& [entry, values] : account["entries"].items()) joules[entry] += values["joules"].get<double>();
  }
  if (!(total > 0)) return "";
  std::vector<std::pair<std::string, double>> order;
  for (const auto& [entry, j] : joules)
    if (entry != ledger::kUnattributed) order.emplace_back(entry, j);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [entry, j] : order) text += fmt::format("{} {:.1f}%, ", entry, 100.0 * j / total);
  return fmt::format("{}{} {:.1f}% of {:.4g} J", text, ledger::kUnattributed,
                     100.0 * joules[ledger::kUnattributed] / total, total);
}

}  // namespace molen::train
