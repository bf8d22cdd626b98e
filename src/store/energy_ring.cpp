#include "store/energy_ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/units.h"
#include "base/utf8.h"
#include "store/record_check.h"

namespace molen::store {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian, as every host we know of");

constexpr char kRingMagic[8] = {'M', 'O', 'L', 'E', 'N', 'J', 'L', 'S'};
constexpr std::uint32_t kRingVersion = 1;
constexpr std::size_t kRingHeadBytes = 4096, kScopeNameBytes = 48;

// docs/formats/energy.md lists the offsets.
struct RingHead {
  char magic[8];  // written last, after the rest
  std::uint32_t version, scopes, readings, hosts;
  std::int64_t attempt, history;
  double spent_before_j, spent_before_s;  // joules over the counted scopes
  std::uint64_t check;                    // of the fields from `hosts` on, and of all that follow
  struct Scope {
    char name[kScopeNameBytes];
    double spent_before_j;
  } scope[EnergyRing::kMostScopes];
};
static_assert(sizeof(RingHead) <= kRingHeadBytes);

struct RingReading {
  std::uint64_t sequence;  // 0 while the rest is being written
  std::int64_t ended_at;
  double seconds, total_j;
  std::uint64_t check;  // of the fields above and of the joules, which follow
};

std::size_t checked_scopes(const fs::path& file, const EnergyRingHead& head) {
  const std::size_t scopes = head.scopes.size(), most = EnergyRing::kMostScopes;
  if (scopes > most) throw Error("{}: {} scopes; a file has {} at most", file.string(), scopes, most);
  for (const std::string& scope : head.scopes)
    if (scope.size() > EnergyRing::kLongestScope)
      throw Error("{}: the name of the scope '{}' has {} bytes; a file has {} at most", file.string(), scope,
                  scope.size(), EnergyRing::kLongestScope);
  return scopes;
}

constexpr std::string_view kRingPrefix = "attempt-";

bool is_ring(const DirectoryEntry& entry) {
  return entry.name.starts_with(kRingPrefix) && entry.name.ends_with(".bin");
}

std::size_t ring_stride(std::size_t scopes) {
  return (sizeof(RingReading) + scopes * sizeof(double) + 63) / 64 * 64;
}

std::uint64_t ring_check(std::uint64_t sequence, const RingReading& reading, std::span<const double> joules) {
  RecordCheck check;
  check.add(sequence).add(std::int64_t{reading.ended_at}).add(reading.seconds).add(reading.total_j);
  for (const double j : joules) check.add(j);
  return check.value();
}

std::uint64_t ring_check(const RingHead& head) {
  RecordCheck check;
  check.add(std::uint64_t{head.hosts}).add(std::int64_t{head.attempt}).add(std::int64_t{head.history});
  check.add(head.spent_before_j).add(head.spent_before_s);
  for (std::size_t i = 0; i < std::min<std::size_t>(head.scopes, EnergyRing::kMostScopes); ++i) {
    for (std::size_t at = 0; at < kScopeNameBytes; at += 8) {
      std::uint64_t part = 0;
      std::memcpy(&part, head.scope[i].name + at, sizeof part);
      check.add(part);
    }
    check.add(head.scope[i].spent_before_j);
  }
  return check.value();
}

}  // namespace

EnergyRing::EnergyRing(const fs::path& file, const EnergyRingHead& head)
    : scopes_(checked_scopes(file, head)),
      stride_(ring_stride(scopes_)),
      bytes_(kRingHeadBytes + stride_ * kReadings),
      file_(file, bytes_, "the readings of the meters") {
  auto* to = new (file_.data()) RingHead{};
  to->version = kRingVersion;
  to->scopes = static_cast<std::uint32_t>(scopes_);
  to->readings = kReadings;
  to->hosts = static_cast<std::uint32_t>(head.hosts);
  to->attempt = head.attempt;
  to->history = head.history;
  to->spent_before_j = head.spent_before.total;
  to->spent_before_s = head.spent_before.seconds;
  for (std::size_t i = 0; i < scopes_; ++i) {
    const std::string& name = head.scopes[i];
    std::memcpy(to->scope[i].name, name.data(), name.size());
    const auto spent = head.spent_before.by_scope.find(name);
    to->scope[i].spent_before_j = spent == head.spent_before.by_scope.end() ? 0.0 : spent->second;
  }
  to->check = ring_check(*to);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(to->magic, kRingMagic, sizeof kRingMagic);
  sync();
}

void EnergyRing::record(double seconds, std::span<const double> joules, double total, std::int64_t ended_at) noexcept {
  if (joules.size() != scopes_) return;
  const std::uint64_t sequence = ++sequence_;
  char* slot = static_cast<char*>(file_.data()) + kRingHeadBytes + (sequence - 1) % kReadings * stride_;
  auto& reading = *reinterpret_cast<RingReading*>(slot);
  const std::atomic_ref<std::uint64_t> written(reading.sequence);
  written.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  reading.ended_at = ended_at;
  reading.seconds = seconds;
  reading.total_j = total;
  reading.check = ring_check(sequence, reading, joules);
  if (!joules.empty()) std::memcpy(slot + sizeof reading, joules.data(), joules.size_bytes());
  written.store(sequence, std::memory_order_release);
}

namespace {

bool is_amount(double joules) {
  return joules >= 0.0 && std::isfinite(joules);
}

void read_ring_head(const RingHead& head, const std::function<UsageError(const std::string&)>& wrong,
                    EnergyRingHead& found) {
  found.attempt = head.attempt;
  found.history = head.history;
  found.hosts = static_cast<int>(std::min<std::uint32_t>(head.hosts, 1U << 24));
  found.spent_before.total = head.spent_before_j;
  found.spent_before.seconds = head.spent_before_s;
  if (!is_amount(head.spent_before_j) || !is_amount(head.spent_before_s))
    throw wrong(fmt::format("{} J were consumed in {} s before", head.spent_before_j, head.spent_before_s));
  for (std::size_t i = 0; i < head.scopes; ++i) {
    const std::string name(head.scope[i].name, ::strnlen(head.scope[i].name, kScopeNameBytes));
    if (!valid_utf8(name)) throw wrong("the name of a scope is no UTF-8");
    const double spent = head.scope[i].spent_before_j;
    if (!is_amount(spent)) throw wrong(fmt::format("{} J were consumed before", spent));
    found.scopes.push_back(name);
    if (spent > 0.0) found.spent_before.by_scope[name] = spent;
  }
}

}  // namespace

HostReadings parse_energy_ring(std::string_view bytes, std::string_view origin) {
  const auto wrong = [&](const std::string& why) {
    return UsageError("{}: no readings of meters by molen: {}", origin, why);
  };
  if (bytes.size() < kRingHeadBytes) throw wrong(fmt::format("{} bytes", bytes.size()));
  RingHead head;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::memcmp(head.magic, kRingMagic, sizeof kRingMagic) != 0) throw wrong("its first bytes are not MOLENJLS");
  if (head.version != kRingVersion)
    throw wrong(fmt::format("version {}; this molen reads {}", head.version, kRingVersion));
  if (head.scopes > EnergyRing::kMostScopes || head.readings != EnergyRing::kReadings)
    throw wrong(fmt::format("{} scopes and {} readings", head.scopes, head.readings));
  if (head.check != ring_check(head)) throw wrong("its head is damaged");
  const std::size_t scopes = head.scopes, stride = ring_stride(scopes);
  if (bytes.size() != kRingHeadBytes + stride * head.readings)
    throw wrong(fmt::format("{} bytes with {} scopes", bytes.size(), scopes));
  HostReadings found;
  read_ring_head(head, wrong, found.head);
  found.last_j.assign(scopes, std::numeric_limits<double>::quiet_NaN());
  std::uint64_t newest = 0;
  std::vector<double> joules(scopes);
  for (std::size_t i = 0; i < head.readings; ++i) {
    const char* slot = bytes.data() + kRingHeadBytes + i * stride;
    RingReading reading;
    std::memcpy(&reading, slot, sizeof reading);
    if (scopes > 0) std::memcpy(joules.data(), slot + sizeof reading, scopes * sizeof(double));
    if (reading.sequence <= newest || reading.check != ring_check(reading.sequence, reading, joules)) continue;
    if (!is_amount(reading.total_j) || !is_amount(reading.seconds)) continue;
    if (std::ranges::any_of(joules, [](double j) { return !std::isnan(j) && !is_amount(j); })) continue;
    newest = reading.sequence;
    found.any = true;
    found.last_j = joules;
    found.total_j = reading.total_j;
    found.seconds = reading.seconds;
    found.ended_at = reading.ended_at;
  }
  return found;
}

fs::path energy_ring_file(const fs::path& directory, std::int64_t attempt, int rank) {
  return directory / fmt::format("{}{:06}-host-{:05}.bin", kRingPrefix, attempt, rank);
}

void remove_earlier_rings(const fs::path& directory, std::int64_t attempt) {
  for (const DirectoryEntry& entry : list_directory(directory))
    if (is_ring(entry) && entry.name < energy_ring_file("", attempt, 0).string()) remove_file(directory / entry.name);
}

std::optional<Consumed> read_consumed(const fs::path& directory, std::vector<std::string>& problems) {
  constexpr std::int64_t kLimit = kRingHeadBytes + 1024 * EnergyRing::kReadings;
  std::error_code none;
  if (!fs::is_directory(directory, none)) return std::nullopt;
  std::vector<HostReadings> all;
  for (const DirectoryEntry& entry : list_directory(directory)) {
    if (!is_ring(entry)) continue;
    try {
      const std::string path = (directory / entry.name).string();
      all.push_back(parse_energy_ring(read_file(path, kLimit), path));
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  }
  if (all.empty()) return std::nullopt;
  Consumed consumed;
  for (const HostReadings& host : all) consumed.attempt = std::max(consumed.attempt, host.head.attempt);
  std::erase_if(all, [&](const HostReadings& host) { return host.head.attempt != consumed.attempt; });
  consumed.history = all.front().head.history;
  consumed.spent = all.front().head.spent_before;  // each host's file has the sums of the whole job
  consumed.ended_at = all.front().ended_at;
  if (all.size() < static_cast<std::size_t>(all.front().head.hosts))
    problems.push_back(fmt::format("{}: attempt {} has readings of {} of its {}", directory.string(), consumed.attempt,
                                   all.size(), counted(all.front().head.hosts, "host")));
  for (const HostReadings& host : all) {
    if (host.ended_at != consumed.ended_at) consumed.ended_at = -1;
    consumed.of_attempt.total += host.total_j;
    consumed.of_attempt.seconds = std::max(consumed.of_attempt.seconds, host.seconds);
    for (std::size_t i = 0; i < host.head.scopes.size(); ++i)
      if (host.last_j[i] > 0.0) consumed.of_attempt.by_scope[host.head.scopes[i]] += host.last_j[i];
  }
  consumed.spent.total += consumed.of_attempt.total;
  consumed.spent.seconds += consumed.of_attempt.seconds;
  for (const auto& [scope, joules] : consumed.of_attempt.by_scope) consumed.spent.by_scope[scope] += joules;
  return consumed;
}

}  // namespace molen::store
