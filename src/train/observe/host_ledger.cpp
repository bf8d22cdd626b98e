#include "train/observe/host_ledger.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "energy/scope.h"

namespace molen::train {
namespace {

constexpr std::size_t kMostGaps = 100;  // that an account lists

ledger::Counter counter_of(const energy::MeterInfo& info, double joules_per_tick, Seconds sample_every) {
  ledger::Counter counter;
  counter.joules_per_tick = joules_per_tick;
  counter.update_s = info.changes_every.value;
  counter.longest_silence_s = std::max(counter.longest_silence_s, 10.0 * sample_every.value);
  counter.longest_still_s = std::max(counter.longest_still_s, 100.0 * sample_every.value);
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

// The counter of RAPL has ticks of 2^-32 J, of which 2^62 are 298 kWh. In ticks of a microjoule at least, no account of
// a host overflows.
int shift_of(double joules_per_tick) {
  int shift = 0;
  while (joules_per_tick * std::exp2(shift) < 1e-6) ++shift;
  return shift;
}

// The ranks whose phases a scope counts.
std::vector<int> ranks_of(const std::string& scope, const std::vector<int>& device_of) {
  std::vector<int> ranks;
  const std::vector<int> gpus = energy::gpus_of(scope);
  for (std::size_t r = 0; r < device_of.size(); ++r)
    if (gpus.empty() || std::ranges::find(gpus, device_of[r]) != gpus.end()) ranks.push_back(static_cast<int>(r));
  return ranks;
}

}  // namespace

HostLedger::HostLedger(const energy::Meters& meters, const std::vector<int>& device_of, double opened_s,
                       Seconds sample_every)
    : opened_s_(opened_s) {
  for (std::size_t i = 0; i < meters.meters.size(); ++i) {
    const energy::MeterInfo& info = meters.meters[i]->info();
    if (!(info.joules_per_tick > 0)) continue;
    const int shift = shift_of(info.joules_per_tick);
    const double joules_per_tick = info.joules_per_tick * std::exp2(shift);
    std::vector<int> ranks = ranks_of(info.scope, device_of);
    if (ranks.empty()) continue;  // a GPU that no rank uses has no phases
    ledger::ScopeLedger ledger(counter_of(info, joules_per_tick, sample_every), energy_phases(),
                               static_cast<int>(ranks.size()));
    scopes_.emplace(info.scope, Scope{i, shift, joules_per_tick, std::move(ranks), std::move(ledger)});
  }
  try {
    thread_ = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "ledger");  // as `top -H` shows it
      work();
    });
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

HostLedger::~HostLedger() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HostLedger::add(Collected collected) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
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
      book(next);
      publish();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    booking_ = false;
    if (!failure.empty()) {
      failure_ = std::move(failure);
      waiting_.clear();
    }
    changed_.notify_all();
  }
}

void HostLedger::book(const Collected& collected) {
  for (auto& [name, scope] : scopes_) {
    for (std::size_t r = 0; r < scope.ranks.size(); ++r) {
      const Collected::Rank& rank = collected.ranks.at(static_cast<std::size_t>(scope.ranks[r]));
      for (const PhaseTime& t : rank.times)
        scope.ledger.add_phase(static_cast<int>(r), static_cast<int>(t.phase), seconds(t.start_ns), seconds(t.end_ns));
      scope.ledger.complete_phases(static_cast<int>(r), seconds(rank.until_ns));
    }
    for (const energy::Sample& sample : collected.samples.at(scope.meter)) {
      ledger::Sample to{sample.time_s - opened_s_, std::nullopt, false};
      if (sample.reading) {
        to.ticks = static_cast<std::uint64_t>(sample.reading->ticks) >> scope.shift;
        to.restarted = scope.gaps >= 0 && scope.gaps != sample.reading->gaps;
        scope.gaps = sample.reading->gaps;
      }
      scope.ledger.add_sample(to);
    }
  }
}

void HostLedger::publish() {
  Json all = Json::object();
  std::map<std::string, std::vector<ledger::Gap>> gaps;
  for (auto& [name, scope] : scopes_) {
    all[name] = account_json(scope.ledger.account(), scope.joules_per_tick);
    gaps[name] = scope.ledger.take_gaps();
  }
  const std::lock_guard lock(mutex_);
  published_ = std::move(all);
  for (auto& [name, list] : gaps) gaps_[name].insert(gaps_[name].end(), list.begin(), list.end());
}

Json HostLedger::accounts() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kMostWait, [this] { return waiting_.empty() && !booking_; });
  Json all = published_;
  for (auto& [name, account] : all.items()) {
    if (!failure_.empty()) account["not_attributed"] = "the account broke off: " + failure_;
    const std::vector<ledger::Gap> gaps = std::exchange(gaps_[name], {});
    account["gaps"] = gaps_json(gaps, account["joules_per_tick"].get<double>());
    account["gaps_count"] = gaps.size();
  }
  return all;
}

}  // namespace molen::train
