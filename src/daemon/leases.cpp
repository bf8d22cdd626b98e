#include "daemon/leases.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "actuate/locks.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/suggest.h"

namespace molen::daemon {
namespace {

// Peers that want another device wait meanwhile.
constexpr Seconds kPatienceForLimits{5.0};
constexpr Seconds kPatienceForLeft{1.0};
constexpr std::chrono::milliseconds kLookAgainForEnd{20};

const actuate::Actuator* find_setting(const actuate::Actuators& here, const std::string& id) {
  const auto at =
      std::find_if(here.actuators.begin(), here.actuators.end(), [&](const auto& a) { return a->info().id == id; });
  return at == here.actuators.end() ? nullptr : at->get();
}

// Removes the folder of a lease, if nothing is left in it.
void remove_empty(const fs::path& folder) {
  file_system().remove(folder);
}

bool has_journal(const fs::path& folder) {
  const auto files = list_directory(folder);
  return std::any_of(files.begin(), files.end(),
                     [](const DirectoryEntry& file) { return actuate::is_journal_name(file.name); });
}

// Returns the entry of a setting, without what a lease knows of it.
SettingEntry entry_of(const actuate::Actuator& actuator, const Bounds::Range& range) {
  const actuate::ActuatorInfo& info = actuator.info();
  SettingEntry entry{info.id, info.name, info.scope, info.control, info.detail, info.kind, range.least, range.most};
  for (const std::int64_t value : info.values)
    if (value >= range.least && value <= range.most) entry.values.push_back(value);
  entry.step = std::max<std::int64_t>(info.step, 1);
  entry.readable = info.readable;
  if (const auto now = actuator.present()) entry.present = now.value();
  return entry;
}

}  // namespace

DeviceLease::~DeviceLease() {
  try {
    end();
  } catch (const std::exception&) {  // the guardian restores
    session_.reset();
  }
}

Result<std::optional<std::int64_t>> DeviceLease::set(const std::string& id, std::int64_t value) {
  for (std::size_t i = 0; session_ && i < session_->size(); ++i) {
    const actuate::Actuator& actuator = session_->actuator(i);
    if (actuator.info().id != id) continue;
    if (const std::string why = leases_.ownership().why_not(peer_, actuator.info()); !why.empty())
      return Failure{fmt::format("{}: {}", id, why)};
    const actuate::Kind kind = actuator.info().kind;
    // The power limits of its devices are held with them, and are not the peer's.
    if (std::find(ids_.begin(), ids_.end(), id) == ids_.end()) break;
    if (const auto limit = leases_.limit_of(id); limit && value > *limit)
      return Failure{fmt::format("{}: {} is above the limit of the site's manager, {}", id, quantity_text(kind, value),
                                 quantity_text(kind, *limit))};
    if (const Bounds::Range range = leases_.options_.bounds.range_of(actuator);
        value < range.least || value > range.most)
      return Failure{fmt::format("{}: {} is outside what may be set here, {} to {}", id, quantity_text(kind, value),
                                 quantity_text(kind, range.least), quantity_text(kind, range.most))};
    if (const auto done = session_->set(i, value); !done) return Failure{done.reason()};
    wishes_[id] = value;
    limited_.erase(id);
    const auto now = actuator.present();
    return now ? std::optional(now.value()) : std::nullopt;
  }
  return Failure{fmt::format("{} is not leased by this connection", id)};
}

std::string DeviceLease::holder() const {
  return own_ ? "the limits of the site's manager" : peer_.text();
}

std::int64_t DeviceLease::wish_of(const actuate::Actuator& actuator) const {
  const auto wish = wishes_.find(actuator.info().id);
  return wish == wishes_.end() ? actuator.most() : wish->second;
}

Result<actuate::Done> DeviceLease::obey_limits() {
  for (std::size_t i = 0; session_ && i < session_->size(); ++i) {
    const actuate::Actuator& actuator = session_->actuator(i);
    const std::string& id = actuator.info().id;
    const std::int64_t wish = wish_of(actuator);
    const auto limit = leases_.limit_of(id);
    const auto before = limited_.find(id);
    const std::int64_t set = before == limited_.end() ? wish : before->second;
    const std::int64_t value = std::min(wish, limit.value_or(wish));
    // Another program, or a reset of the device, may have raised it since.
    const auto present = limit ? actuator.present() : Result<std::int64_t>(value);
    const bool raised = limit && present && present.value() > *limit;
    if (value == set && !raised) continue;
    if (const auto done = session_->set(i, value); !done) return Failure{done.reason()};
    if (value == wish)
      limited_.erase(id);
    else
      limited_[id] = value;
  }
  return actuate::Done{};
}

std::string DeviceLease::why_end() {
  if (!session_) return "";
  if (own_) return session_->keep_guarded().reason();
  const Ownership::Now now = leases_.ownership();
  for (std::size_t i = 0; i < session_->size(); ++i) {
    const actuate::ActuatorInfo& info = session_->actuator(i).info();
    if (std::find(ids_.begin(), ids_.end(), info.id) == ids_.end()) continue;  // held for the limits
    if (std::string why = now.why_not(peer_, info); !why.empty()) return why;
  }
  return session_->keep_guarded().reason();
}

actuate::Restoration DeviceLease::end() {
  if (reserved_) leases_.begin_end(*this);
  actuate::Restoration done;
  if (session_) done = session_->end();  // its guardian tries again where something has failed
  session_.reset();
  if (std::exchange(reserved_, false)) leases_.release(*this);
  return done;
}

Leases::Leases(LeaseOptions options) : options_(std::move(options)) {
  actuate::make_own_folder(options_.journals);
  actuate::Actuators here = open_all();
  for (const DirectoryEntry& entry : list_directory(options_.journals)) {
    if (!entry.is_directory) continue;
    const fs::path folder = options_.journals / entry.name;
    // A journal also stays where its owner may live in another namespace of processes.
    (void)actuate::recover_journals(folder, here, options_.said, options_.patience);
    if (has_journal(folder))
      left_.push_back(folder);
    else
      remove_empty(folder);
  }
}

Leases::~Leases() = default;

actuate::Actuators Leases::open_all() {
  const std::lock_guard lock(opening_);
  return options_.open();
}

Ownership::Now Leases::ownership() {
  Ownership::Now now = options_.ownership.now();
  const std::lock_guard lock(mutex_);
  for (const std::string& problem : now.problems())
    if (std::find(problems_.begin(), problems_.end(), problem) == problems_.end())
      options_.said(fmt::format("{}; it grants nothing", problem));
  problems_ = now.problems();
  return now;
}

void Leases::list(const Peer& peer, const DeviceLease* own, Listing& listing) {
  const actuate::Actuators here = open_all();
  const Ownership::Now owners = ownership();
  for (const auto& actuator : here.actuators) {
    const actuate::ActuatorInfo& info = actuator->info();
    Bounds::Range range = options_.bounds.range_of(*actuator);
    std::string holder;
    {
      const std::lock_guard lock(mutex_);
      if (const auto held = held_.find(info.lock); held != held_.end()) {
        // The daemon's own lease gives way to a peer.
        if (held->second.lease != own && !held->second.lease->own_) holder = held->second.holder;
        // The present value is not the one that was found.
        if (const auto most = held->second.most.find(info.id); most != held->second.most.end())
          range.most = most->second;
      }
      if (const auto limit = limits_.find(info.id); limit != limits_.end())
        range.most = std::min(range.most, limit->second);
    }
    std::string why = owners.why_not(peer, info);
    if (why.empty() && range.most < range.least)
      why = fmt::format("the bounds of the administrator leave nothing to set ({} to {})",
                        quantity_text(info.kind, range.least), quantity_text(info.kind, range.most));
    if (why.empty()) {
      listing.settings.push_back(entry_of(*actuator, range));
      listing.settings.back().holder = holder;
    } else {
      listing.withheld.push_back({info.id, info.scope, why});
    }
  }
}

// Restores what ended leases have left. Fails where something of these settings is still not as it was found.
Result<actuate::Done> Leases::restore_left(const std::vector<std::string>& ids, Seconds patience) {
  const std::lock_guard lock(recovery_);
  std::set<std::string> news;
  // A device that stays broken is tried again and again, and nobody needs the same sentence each time.
  const auto said = [&](const std::string& text) {
    if (news.insert(text).second && !said_of_left_.contains(text)) options_.said(text);
  };
  if (left_.empty()) return actuate::Done{};
  actuate::Actuators here = open_all();
  bool complete = true;
  std::vector<fs::path> still;
  for (const fs::path& folder : left_) {
    // A journal that does not concern these settings does not count as left.
    complete = actuate::recover_journals(folder, here, said, patience, ids, true) && complete;
    if (has_journal(folder))
      still.push_back(folder);
    else
      remove_empty(folder);
  }
  left_ = std::move(still);
  said_of_left_ = std::move(news);
  if (complete) return actuate::Done{};
  return Failure{"an earlier job's settings of this device could not be restored; nothing is set on it until they are"};
}

void Leases::retry_left() {
  try {
    // A lock that cannot be had now is asked for again the next time.
    (void)restore_left({}, Seconds(0)).ok();
  } catch (const std::exception& error) {
    options_.said(error.what());
  }
}

// Returns the first of these settings whose device somebody has, and who; null where nobody has one. The mutex must be
// held.
std::pair<std::string, const Leases::Held*> Leases::holder_of(const actuate::Actuators& here,
                                                              const std::vector<std::string>& ids) {
  for (const std::string& id : ids)
    if (const auto held = held_.find(find_setting(here, id)->info().lock); held != held_.end())
      return {id, &held->second};
  return {"", nullptr};
}

Result<actuate::Done> Leases::reserve(DeviceLease& lease, const actuate::Actuators& here,
                                      const std::vector<std::string>& ids) {
  const Seconds until = now() + options_.patience;
  const std::string peer = lease.holder();  // it may ask another machine for the user's name
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      const auto [id_of, holder] = holder_of(here, ids);
      if (holder == nullptr) {
        for (const std::string& id : ids) {
          Held& held = held_[find_setting(here, id)->info().lock];
          held.lease = &lease;
          held.holder = peer;
          held.pid = lease.peer_.pid;
        }
        lease.reserved_ = true;
        return actuate::Done{};
      }
      // The end of a peer may not have been noticed yet.
      const bool ends = holder->ends || (holder->pid > 0 && !actuate::is_running(holder->pid));
      if (!ends || now() > until)
        return Failure{fmt::format("{} is set by {}, and only one job may; wait for it to end", id_of, holder->holder)};
    }
    std::this_thread::sleep_for(kLookAgainForEnd);
  }
}

void Leases::begin_end(const DeviceLease& lease) {
  const std::lock_guard lock(mutex_);
  for (auto& [device, held] : held_)
    if (held.lease == &lease) held.ends = true;
}

void Leases::release(const DeviceLease& lease) {
  try {
    const std::lock_guard lock(recovery_);
    if (path_exists(lease.folder_) && has_journal(lease.folder_))
      left_.push_back(lease.folder_);
    else
      remove_empty(lease.folder_);
  } catch (const Error& error) {
    options_.said(error.what());
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(held_, [&](const auto& entry) { return entry.second.lease == &lease; });
}

fs::path Leases::new_folder() {
  for (;;) {
    fs::path folder;
    {
      const std::lock_guard lock(mutex_);
      folder = options_.journals / fmt::format("lease-{}", next_++);
    }
    if (!path_exists(folder)) return folder;  // an earlier daemon may have left one
  }
}

Result<std::unique_ptr<DeviceLease>> Leases::take(const Peer& peer, const std::vector<std::string>& ids) {
  try {
    actuate::Actuators here = open_all();
    const Ownership::Now owners = ownership();
    std::vector<std::string> known;
    for (const auto& a : here.actuators) known.push_back(a->info().id);
    for (const std::string& id : ids) {
      const actuate::Actuator* actuator = find_setting(here, id);
      if (actuator == nullptr)
        return Failure{
            fmt::format("{}: this node has no such setting that can be made{}", id, did_you_mean(id, known))};
      if (const std::string why = owners.why_not(peer, actuator->info()); !why.empty())
        return Failure{fmt::format("{}: {}", id, why)};
    }
    std::set<fs::path> devices;
    for (const std::string& id : ids) devices.insert(find_setting(here, id)->info().lock);
    // A peer's lease also holds the power limits of its devices, which the site's manager may lower meanwhile.
    std::vector<std::string> held = ids;
    for (const auto& a : here.actuators)
      if (may_limit(a->info()) && devices.contains(a->info().lock) &&
          std::find(ids.begin(), ids.end(), a->info().id) == ids.end())
        held.push_back(a->info().id);
    const Wanted wanted(*this, devices);
    if (let_go_) let_go_(devices);
    if (!options_.limit_with.empty()) here = open_all();  // as it is without the limits
    std::unique_ptr<DeviceLease> lease(new DeviceLease(*this, peer, new_folder(), ids, false));
    auto opened = open_lease(std::move(lease), std::move(here), held, options_.patience);
    if (opened)
      if (const auto obeyed = opened.value()->obey_limits(); !obeyed) return Failure{obeyed.reason()};
    return opened;
  } catch (const Error& error) {
    return Failure{error.what()};
  }
}

Result<std::unique_ptr<DeviceLease>> Leases::take_for_limits(const std::vector<std::string>& ids) {
  try {
    std::unique_ptr<DeviceLease> lease(new DeviceLease(*this, Peer{}, new_folder(), ids, true));
    return open_lease(std::move(lease), open_all(), ids, kPatienceForLimits);
  } catch (const Error& error) {
    return Failure{error.what()};
  }
}

// Reserves the devices, and opens the session of a lease.
Result<std::unique_ptr<DeviceLease>> Leases::open_lease(std::unique_ptr<DeviceLease> lease, actuate::Actuators here,
                                                        const std::vector<std::string>& ids, Seconds patience) {
  for (const std::string& id : ids)
    if (find_setting(here, id) == nullptr) return Failure{fmt::format("{}: this node has it no more", id)};
  if (const auto reserved = reserve(*lease, here, ids); !reserved) return Failure{reserved.reason()};
  // Only now can no other lease of these devices end, whose lowered values would be taken for those that were found.
  if (const auto restored = restore_left(ids, kPatienceForLeft); !restored) return Failure{restored.reason()};
  auto session =
      actuate::Session::open(std::move(here), ids, {lease->folder_, options_.guardian, options_.said, patience});
  if (!session) return Failure{session.reason()};
  lease->session_ = std::move(session).value();
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < lease->session_->size(); ++i) {
    const actuate::Actuator& actuator = lease->session_->actuator(i);
    held_[actuator.info().lock].most[actuator.info().id] = options_.bounds.range_of(actuator).most;
  }
  return lease;
}

}  // namespace molen::daemon
