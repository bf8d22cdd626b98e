#include "train/observe/phase_energy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace molen::train {
namespace {

constexpr double kCollectEvery = 10.0;        // seconds
constexpr std::size_t kMostTimes = 1U << 16;  // of a rank, before they are collected
constexpr std::size_t kMostGaps = 100;        // that an account lists

ledger::Counter counter_of(const energy::MeterInfo& info, Seconds sample_every) {
  ledger::Counter counter;
  counter.joules_per_tick = info.joules_per_tick;
  counter.update_s = info.changes_every.value;
  counter.longest_silence_s = std::max(1.0, 10.0 * sample_every.value);
  return counter;
}

Json to_json(const ledger::Entry& entry) {
  Json j{{"joules", entry.energy.value},
         {"ticks", entry.ticks},
         {"standard_error_j", entry.standard_error ? Json(entry.standard_error->value) : Json()},
         {"rank_seconds", entry.rank_seconds}};
  if (!entry.note.empty()) j["note"] = entry.note;
  return j;
}

Json to_json(const std::vector<ledger::Gap>& gaps, double joules_per_tick) {
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(gaps.size(), kMostGaps); ++i)
    list.push_back({{"start_s", gaps[i].start_s},
                    {"end_s", gaps[i].end_s},
                    {"joules", gaps[i].ticks ? Json(static_cast<double>(*gaps[i].ticks) * joules_per_tick) : Json()},
                    {"reason", gaps[i].reason}});
  return list;
}

Json to_json(const ledger::Account& account, double joules_per_tick) {
  Json entries = Json::object();
  for (const ledger::Entry& entry : account.entries) entries[entry.name] = to_json(entry);
  return {{"joules", static_cast<double>(account.ticks) * joules_per_tick},
          {"ticks", account.ticks},
          {"joules_per_tick", joules_per_tick},
          {"entries", entries},
          {"lag_s", account.lag ? Json(account.lag->value) : Json()},
          {"scaled_by", account.scaled_by},
          {"changes", account.changes},
          {"not_attributed", account.refusal}};
}

}  // namespace

PhaseEnergy::PhaseEnergy(comm::Communicator& host, energy::Accountant* accountant, double opened_s,
                         Seconds sample_every, std::function<std::int64_t()> clock)
    : host_(host),
      accountant_(accountant),
      opened_s_(opened_s),
      clock_(std::move(clock)),
      until_ns_(std::llround(opened_s * 1e9)) {
  if (!accountant_) return;
  const auto& meters = accountant_->meters().meters;
  for (std::size_t i = 0; i < meters.size(); ++i) {
    const energy::MeterInfo& info = meters[i]->info();
    if (info.joules_per_tick > 0)
      scopes_.emplace(info.scope,
                      Scope{i, info.joules_per_tick,
                            ledger::ScopeLedger(counter_of(info, sample_every), energy_phases(), host_.size())});
  }
}

void PhaseEnergy::add_step(const std::vector<program::Expanded>& ops, const program::Timeline& timeline) {
  add_phase_times(ops, timeline, times_);
}

void PhaseEnergy::add_outside(OutsideSteps what, std::int64_t start_ns, std::int64_t end_ns) {
  times_.push_back({energy_phase_of(what), start_ns, end_ns});
}

bool PhaseEnergy::due() const {
  return times_.size() >= kMostTimes || seconds(clock_()) - seconds(until_ns_) >= kCollectEvery;
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
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t end = at + static_cast<std::size_t>(sizes[rank]);
    const double until_s = seconds(all[at++]);
    for (auto& [name, scope] : scopes_) {
      for (std::size_t i = at; i < end; i += 3)
        if (all[i + 2] > all[i + 1])
          scope.ledger.add_phase(static_cast<int>(rank), static_cast<int>(all[i]), seconds(all[i + 1]),
                                 seconds(all[i + 2]));
      scope.ledger.complete_phases(static_cast<int>(rank), until_s);
    }
    at = end;
  }
  add_samples();
}

void PhaseEnergy::add_samples() {
  const auto samples = accountant_->take_samples();
  for (auto& [name, scope] : scopes_)
    for (const energy::Sample& sample : samples[scope.meter]) {
      ledger::Sample to{sample.time_s - opened_s_, std::nullopt, false};
      if (sample.reading) {
        to.ticks = static_cast<std::uint64_t>(sample.reading->ticks);
        to.restarted = scope.gaps >= 0 && scope.gaps != sample.reading->gaps;
        scope.gaps = sample.reading->gaps;
      }
      scope.ledger.add_sample(to);
    }
}

Json PhaseEnergy::accounts() {
  Json all = Json::object();
  for (auto& [name, scope] : scopes_) {
    Json account = to_json(scope.ledger.account(), scope.joules_per_tick);
    const std::vector<ledger::Gap> gaps = scope.ledger.take_gaps();
    account["gaps"] = to_json(gaps, scope.joules_per_tick);
    account["gaps_count"] = gaps.size();
    all[name] = std::move(account);
  }
  return all;
}

namespace {

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
}

}  // namespace

Json sum_of_accounts(const std::map<std::string, Json>& by_host) {
  Json sum = Json::object();
  for (const auto& [host, scopes] : by_host)
    for (const auto& [name, account] : scopes.items()) {
      Json& scope = sum[name];
      if (scope.is_null())
        scope = {{"joules", 0.0},
                 {"ticks", 0},
                 {"joules_per_tick", account["joules_per_tick"]},
                 {"hosts", 0},
                 {"entries", Json::object()},
                 {"changes", 0},
                 {"by_host", Json::object()},
                 {"gaps", Json::array()}};
      scope["joules"] = scope["joules"].get<double>() + account["joules"].get<double>();
      for (const char* key : {"ticks", "changes"})
        scope[key] = scope[key].get<std::int64_t>() + account[key].get<std::int64_t>();
      scope["hosts"] = scope["hosts"].get<std::int64_t>() + 1;
      if (scope["joules_per_tick"] != account["joules_per_tick"]) scope["joules_per_tick"] = nullptr;
      for (const auto& [entry, values] : account["entries"].items()) add_entry(scope["entries"][entry], values);
      scope["by_host"][host] = {{"lag_s", account["lag_s"]},
                                {"scaled_by", account["scaled_by"]},
                                {"not_attributed", account["not_attributed"]},
                                {"gaps", account["gaps_count"]}};
      for (Json gap : account["gaps"]) {
        gap["host"] = host;
        scope["gaps"].push_back(std::move(gap));
      }
    }
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
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [entry, j] : joules)
    if (entry != ledger::kUnattributed) order.emplace_back(-j, entry);
  std::sort(order.begin(), order.end());
  std::string text;
  for (const auto& [j, entry] : order) text += fmt::format("{} {:.1f}%, ", entry, -100.0 * j / total);
  return fmt::format("{}{} {:.1f}% of {:.4g} J", text, ledger::kUnattributed,
                     100.0 * joules[ledger::kUnattributed] / total, total);
}

}  // namespace molen::train
