// The permissions of the daemon's peers. Nothing here trusts the peer. Its user and groups are those that the kernel
// recorded when it connected. A folder that only root writes says which devices a user owns.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "actuate/actuator.h"
#include "base/filesystem.h"

namespace molen::daemon {

struct Peer {
  std::uint32_t uid = 0, gid = 0;
  std::vector<std::uint32_t> groups = {};  // the supplementary ones
  std::int64_t pid = 0;                    // 0: of a process namespace that this process does not see
  // Returns "process 12 of alice". It may ask another machine for the name, and so wait.
  std::string text() const;
  std::string numbers() const;  // "process 12 of user 1001"
};
// Returns the other end of a Unix socket, as the kernel recorded it.
Result<Peer> peer_of(int socket);

// Returns why a file or folder could be another user's work; "" where only root, or this process's user, writes it.
std::string not_ours(const struct stat& status, const fs::path& path);

// The users and groups that the daemon answers. Root is always one of them.
struct AllowList {
  std::set<std::uint32_t> users, groups;
  bool permits(const Peer& peer) const;
};
// Return the number of a user or group that is given by its name or number. Throw UsageError, which begins with `flag`,
// for one that this machine does not know.
std::uint32_t user_named(const std::string& name, const std::string& flag);
std::uint32_t group_named(const std::string& name, const std::string& flag);

// Throws UsageError, which begins with `flag`, for a name that is none of a power limit.
void require_power_limit(const std::string& name, const std::string& flag);

// Bounds that an administrator sets to settings, by the name of the actuator, such as "nvml-power". They are added to
// those of the device.
class Bounds {
 public:
  // Adds one, such as "nvml-power=300 W" or "cpufreq=1.2 GHz". Throws UsageError, which begins with `flag`, for any
  // other text, and where the greatest value is below the least.
  void add_least(const std::string& text, const std::string& flag);
  void add_most(const std::string& text, const std::string& flag);

  struct Range {
    std::int64_t least = 0, most = INT64_MAX;  // kHz or uW
  };
  // Returns what may be set: values that lie within the bounds, and that every part of the device can take. `most` is
  // a value that can be set; it is below `least` where there are none.
  Range range_of(const actuate::Actuator& actuator) const;

 private:
  std::map<std::string, Range> of_;
};

// Devices of a user.
struct Grant {
  std::uint32_t uid = 0;
  std::vector<std::string> devices;  // scopes, ids of settings, the parts of ids behind their colon, or "all"
  bool operator==(const Grant&) const = default;
};
// Parses a file of grants: lines "UID DEVICE...", empty lines, and lines that begin with "#". Throws UsageError that
// names `origin` and the line for anything else.
std::vector<Grant> parse_grants(std::string_view text, const std::string& origin);

// Which devices a user may set.
class Ownership {
 public:
  enum class Rule {
    kNobody,  // no settings are made; meters are read
    kAnyone,  // a node that runs one job at a time: whoever the daemon answers may set what nobody else has
    kGrants,  // those that the files of a folder grant
  };
  explicit Ownership(Rule rule = Rule::kNobody, fs::path folder = {}) : rule_(rule), folder_(std::move(folder)) {}

  // The devices of users at one time.
  class Now {
   public:
    // Returns why a user may not set a device; "" where it may. Root may set each one unless there are no settings.
    std::string why_not(const Peer& peer, const actuate::ActuatorInfo& info) const;
    // What was wrong with the folder or its files, which then grant nothing.
    const std::vector<std::string>& problems() const { return problems_; }

   private:
    friend class Ownership;
    Rule rule_ = Rule::kNobody;
    std::vector<Grant> grants_;
    std::vector<std::string> problems_;
  };
  Now now() const;

 private:
  Rule rule_;
  fs::path folder_;
};

}  // namespace molen::daemon
