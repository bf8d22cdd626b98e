#include "daemon/meter_board.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace molen::daemon {
namespace {

constexpr double kLongestRestS = 10.0;

}  // namespace

MeterBoard::MeterBoard(energy::Meters meters, Seconds read_every, std::function<double()> clock)
    : meters_(std::move(meters)),
      read_every_s_(read_every.value),
      clock_(std::move(clock)),
      keep_every_s_(kLongestRestS),
      read_s_(-std::numeric_limits<double>::infinity()),
      kept_s_(read_s_) {
  // Twice in the time after which a meter loses energy, as one reading may be late.
  for (const auto& m : meters_.meters)
    if (m->info().read_every.value > 0) keep_every_s_ = std::min(keep_every_s_, 0.5 * m->info().read_every.value);
}

std::vector<MeterEntry> MeterBoard::meters() const {
  std::vector<MeterEntry> entries;
  for (const auto& m : meters_.meters) {
    const energy::MeterInfo& info = m->info();
    if (info.source == energy::Source::kNone) continue;
    // A reading that a peer sees changes no more often than the meters are read.
    entries.push_back({info.scope, info.name, info.detail, info.source, info.joules_per_tick,
                       std::max(info.changes_every.value, read_every_s_)});
  }
  return entries;
}

void MeterBoard::read_all(double now_s) {
  last_.clear();
  for (const auto& m : meters_.meters) {
    if (m->info().source == energy::Source::kNone) continue;
    const auto reading = m->read();
    last_.push_back({m->info().scope, reading ? std::optional(reading.value()) : std::nullopt, reading.reason()});
  }
  read_s_ = kept_s_ = now_s;
}

std::vector<ReadingEntry> MeterBoard::read() {
  const std::lock_guard lock(mutex_);
  const double now_s = clock_();
  if (!(now_s - read_s_ < read_every_s_)) read_all(now_s);
  std::vector<ReadingEntry> readings = last_;
  for (ReadingEntry& r : readings)
    if (r.reading) r.reading->age_s += now_s - read_s_;
  return readings;
}

void MeterBoard::keep() {
  const std::lock_guard lock(mutex_);
  // A reading for a peer within this time has done it; the factor leaves room for a late call.
  const double now_s = clock_();
  if (now_s - kept_s_ < 0.5 * keep_every_s_) return;
  kept_s_ = now_s;
  // Peers see nothing of these readings, which may come more often than those for them.
  for (const auto& m : meters_.meters)
    if (m->info().read_every.value > 0) (void)m->read().ok();
}

}  // namespace molen::daemon
