// Who may set which device of the node now. A lease is a session of src/actuate with a folder of its own for its
// journal and a guardian of its own, so the settings come back however the peer or the daemon ends.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actuate/session.h"
#include "daemon/permission.h"
#include "daemon/wire.h"

namespace molen::daemon {

struct LeaseOptions {
  std::function<actuate::Actuators()> open;  // what this node can set
  fs::path journals;                         // a folder of this user on this host, one folder in it for each lease
  std::vector<std::string> guardian;         // as SessionOptions::guardian
  Seconds patience{30.0};
  Bounds bounds;
  Ownership ownership;
  std::set<std::string> limit_with;  // names of the power limits that the site's manager may set; empty: none
  std::function<void(const std::string&)> said;  // a sentence each; called by any thread
};

class Leases;

// The settings of one peer. Not thread-safe; the destructor restores them.
class DeviceLease {
 public:
  ~DeviceLease();
  DeviceLease(const DeviceLease&) = delete;
  DeviceLease& operator=(const DeviceLease&) = delete;

  // Sets one of the leased settings, within the bounds. Returns what is set now; absent where the device does not tell.
  Result<std::optional<std::int64_t>> set(const std::string& id, std::int64_t value);
  // Returns why the lease must end: a device is no longer the peer's, or nobody would restore it. "" where it may go
  // on.
  std::string why_end();
  // Sets the power limits of the leased devices to what the site's manager allows now, or back to what the peer has set
  // where it allows more.
  Result<actuate::Done> obey_limits();
  // Restores what was found. A second call does nothing.
  actuate::Restoration end();

 private:
  friend class Leases;
  DeviceLease(Leases& leases, Peer peer, fs::path folder, std::vector<std::string> ids, bool own)
      : leases_(leases), peer_(std::move(peer)), folder_(std::move(folder)), ids_(std::move(ids)), own_(own) {}
  std::string holder() const;
  std::int64_t wish_of(const actuate::Actuator& actuator) const;

  Leases& leases_;
  const Peer peer_;
  const fs::path folder_;
  const std::vector<std::string> ids_;           // that the peer may set; the power limits of its devices are held too
  const bool own_;                               // the daemon's, for the limits of the site's manager
  std::map<std::string, std::int64_t> wishes_;   // what the peer has set, by setting
  std::map<std::string, std::int64_t> limited_;  // what `obey_limits` has set below that
  bool reserved_ = false;                        // it stands in the table of leases
  std::unique_ptr<actuate::Session> session_;
};

// A power limit that the site's manager may set.
struct LimitableDevice {
  LimitableSetting setting;
  std::vector<std::int64_t> values;  // as ActuatorInfo
  std::int64_t step = 1;
  fs::path lock;
  // Returns the greatest value that can be set and is at most `value`; the least one where there is none.
  std::int64_t at_most(std::int64_t value) const;
};

// Thread-safe.
class Leases {
 public:
  // Restores what an earlier daemon has left in the folder of journals. Throws Error if the folder cannot be used.
  explicit Leases(LeaseOptions options);
  ~Leases();
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  // Adds the settings that a peer may make, and those that are withheld from it. `own`: the lease of the peer's
  // connection, or null.
  void list(const Peer& peer, const DeviceLease* own, Listing& listing);
  // Takes the devices of these settings for a peer. A failure names the setting and the reason, or who has it.
  Result<std::unique_ptr<DeviceLease>> take(const Peer& peer, const std::vector<std::string>& ids);
  // Tries again to restore what could not be restored when its lease ended. It may wait for a driver.
  void retry_left();

  // For the limits of the site's manager (PowerLimits). The settings that it may limit:
  std::vector<LimitableDevice> limitable();
  // Replaces the limits, which every lease obeys. They lie within the bounds.
  void set_limits(std::map<std::string, std::int64_t> limits);
  // Takes devices for the daemon itself, whoever owns them.
  Result<std::unique_ptr<DeviceLease>> take_for_limits(const std::vector<std::string>& ids);
  // Returns whether a peer has the device, or waits for it.
  bool is_taken(const fs::path& device);
  // `let_go` is called before a peer takes devices, by its thread. To be set while there is no peer.
  void on_wanted(std::function<void(const std::set<fs::path>&)> let_go) { let_go_ = std::move(let_go); }

 private:
  friend class DeviceLease;
  // Says that devices are about to be taken, as long as it lives.
  class Wanted {
   public:
    Wanted(Leases& leases, const std::set<fs::path>& devices);
    ~Wanted();
    Wanted(const Wanted&) = delete;
    Wanted& operator=(const Wanted&) = delete;

   private:
    Leases& leases_;
    const std::set<fs::path>& devices_;
  };
  struct Held {
    const DeviceLease* lease = nullptr;
    std::string holder;
    std::int64_t pid = 0;                      // of the peer
    bool ends = false;                         // it is being restored
    std::map<std::string, std::int64_t> most;  // by setting: what was found
  };
  actuate::Actuators open_all();
  Ownership::Now ownership();
  bool may_limit(const actuate::ActuatorInfo& info) const;
  std::optional<std::int64_t> limit_of(const std::string& id);
  Result<std::unique_ptr<DeviceLease>> open_lease(std::unique_ptr<DeviceLease> lease, actuate::Actuators here,
                                                  const std::vector<std::string>& ids, Seconds patience);
  Result<actuate::Done> restore_left(const std::vector<std::string>& ids, Seconds patience);
  // Waits for a lease whose peer has ended, at most for the patience.
  Result<actuate::Done> reserve(DeviceLease& lease, const actuate::Actuators& here,
                                const std::vector<std::string>& ids);
  std::pair<std::string, const Held*> holder_of(const actuate::Actuators& here, const std::vector<std::string>& ids);
  void begin_end(const DeviceLease& lease);
  void release(const DeviceLease& lease);
  fs::path new_folder();

  const LeaseOptions options_;
  std::mutex opening_;                          // one opens devices at a time
  std::mutex recovery_;                         // guards left_ and said_of_left_, and is held while it is restored
  std::vector<fs::path> left_;                  // folders of ended leases of which something could not be restored
  std::set<std::string> said_of_left_;          // at the last try
  std::mutex mutex_;                            // guards the members below; nothing waits while it is held
  std::map<fs::path, Held> held_;               // by the device's lock
  std::map<std::string, std::int64_t> limits_;  // by setting
  std::multiset<fs::path> wanted_;              // devices that peers are about to take
  std::function<void(const std::set<fs::path>&)> let_go_;
  std::vector<std::string> problems_;
  std::uint64_t next_ = 0;
};

}  // namespace molen::daemon
