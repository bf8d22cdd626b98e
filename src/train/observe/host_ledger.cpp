#include "train/observe/host_ledger.h"

#include <algorithm>
#include <exception>

namespace molen::train {
namespace {

constexpr std::size_t kMostGaps = 100;  // that an account lists

ledger::Counter counter_of(const energy::MeterInfo& info, Seconds sample_every) {
  ledger::Counter counter;
  counter.joules_per_tick = info.joules_per_tick;
  counter.update_s = info.changes_every.value;
  counter.longest_silence_s = std::max(1.0, 10.0 * sample_every.value);
  return counter;
}

Json entry_json(const ledger::Entry& entry) {
  Json j{{"joules", entry.energy.value},
         {"ticks", entry.ticks},
         {"standard_error_j", entry.standard_error ? Json(entry.standard_error->value) : Json()},
         {"rank_seconds", entry.rank_seconds}};
  if (!entry.note.empty()) j["note"] = entry.note;
  return j;
}

Json gaps_json(const std::vector<ledger::Gap>& gaps, double joules_per_tick) {
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(gaps.size(), kMostGaps); ++i)
    list.push_back({{"start_s", gaps[i].start_s},
                    {"end_s", gaps[i].end_s},
                    {"joules", gaps[i].ticks ? Json(static_cast<double>(*gaps[i].ticks) * joules_per_tick) : Json()},
                    {"reason", gaps[i].reason}});
  return list;
}

Json account_json(const ledger::Account& account, double joules_per_tick) {
  Json entries = Json::object();
  for (const ledger::Entry& entry : account.entries) entries[entry.name] = entry_json(entry);
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

HostLedger::HostLedger(const energy::Meters& meters, int ranks, double opened_s, Seconds sample_every)
    : opened_s_(opened_s) {
  for (std::size_t i = 0; i < meters.meters.size(); ++i) {
    const energy::MeterInfo& info = meters.meters[i]->info();
    if (info.joules_per_tick > 0)
      scopes_.emplace(info.scope, Scope{i, info.joules_per_tick,
                                        ledger::ScopeLedger(counter_of(info, sample_every), energy_phases(), ranks)});
  }
  thread_ = std::thread([this] { work(); });
}

HostLedger::~HostLedger() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostLedger::add(Collected collected) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(collected));
  }
  changed_.notify_all();
}

void HostLedger::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const Collected next = std::move(waiting_.front());
    waiting_.pop_front();
    booking_ = true;
    lock.unlock();
    std::string failure;
    try {
      if (failure_.empty()) book(next);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    if (failure_.empty()) failure_ = std::move(failure);
    booking_ = false;
    changed_.notify_all();
  }
}

void HostLedger::book(const Collected& collected) {
  for (auto& [name, scope] : scopes_) {
    for (std::size_t r = 0; r < collected.ranks.size(); ++r) {
      const Collected::Rank& rank = collected.ranks[r];
      for (const PhaseTime& t : rank.times)
        scope.ledger.add_phase(static_cast<int>(r), static_cast<int>(t.phase), seconds(t.start_ns), seconds(t.end_ns));
      scope.ledger.complete_phases(static_cast<int>(r), seconds(rank.until_ns));
    }
    for (const energy::Sample& sample : collected.samples.at(scope.meter)) {
      ledger::Sample to{sample.time_s - opened_s_, std::nullopt, false};
      if (sample.reading) {
        to.ticks = static_cast<std::uint64_t>(sample.reading->ticks);
        to.restarted = scope.gaps >= 0 && scope.gaps != sample.reading->gaps;
        scope.gaps = sample.reading->gaps;
      }
      scope.ledger.add_sample(to);
    }
  }
}

Json HostLedger::accounts() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !booking_; });
  Json all = Json::object();
  for (auto& [name, scope] : scopes_) {
    Json account = account_json(scope.ledger.account(), scope.joules_per_tick);
    if (!failure_.empty()) account["not_attributed"] = "the account broke off: " + failure_;
    const std::vector<ledger::Gap> gaps = scope.ledger.take_gaps();
    account["gaps"] = gaps_json(gaps, scope.joules_per_tick);
    account["gaps_count"] = gaps.size();
    all[name] = std::move(account);
  }
  return all;
}

}  // namespace molen::train
