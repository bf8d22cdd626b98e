#include "daemon/permission.h"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "base/utf8.h"
#include "config/values.h"

namespace molen::daemon {
namespace {

constexpr std::size_t kMostGroups = 65536;  // NGROUPS_MAX of Linux
constexpr std::size_t kMostGrantFiles = 4096, kMostGrantBytes = 64 * 1024, kMostGrants = 65536;

// All settings that molen makes, with their kinds.
const std::vector<std::pair<std::string, actuate::Kind>> kBounded{
    {"cpufreq", actuate::Kind::kClock},    {"uncore", actuate::Kind::kClock},
    {"powercap", actuate::Kind::kPower},   {"amdgpu-power", actuate::Kind::kPower},
    {"nvml-clock", actuate::Kind::kClock}, {"nvml-power", actuate::Kind::kPower}};

std::optional<std::uint32_t> as_number(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  // The last number stands for "no user" in the kernel's interfaces.
  if (error != std::errc() || end != text.data() + text.size() || number == UINT32_MAX) return std::nullopt;
  return number;
}

// Parses "1.2 GHz" to kHz.
std::optional<std::int64_t> as_khz(std::string_view text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number <= 0.0) return std::nullopt;
  const std::string_view unit = config::trimmed({end, static_cast<std::size_t>(text.data() + text.size() - end)});
  for (const auto& [name, khz] : {std::pair{"kHz", 1.0}, {"MHz", 1e3}, {"GHz", 1e6}})
    if (unit == name && number * khz >= 1.0 && number * khz < 1e12)
      return static_cast<std::int64_t>(std::llround(number * khz));
  return std::nullopt;
}

std::optional<std::int64_t> as_microwatts(std::string_view text) {
  const auto watts = config::parse_watts(text);
  if (!watts || watts.value().value * 1e6 < 1.0 || watts.value().value > 1e9) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(watts.value().value * 1e6));
}

struct NamedBound {
  std::string name;
  std::int64_t value = 0;
};

NamedBound parse_bound(const std::string& text, const std::string& flag) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  std::vector<std::string> names;
  for (const auto& [known, kind] : kBounded) names.push_back(known);
  const auto setting = std::find_if(kBounded.begin(), kBounded.end(), [&](const auto& k) { return k.first == name; });
  if (equals == std::string::npos || setting == kBounded.end())
    throw UsageError("{}: '{}' must be SETTING=VALUE with one of {}{}", flag, text,
                     fmt::format("{}", fmt::join(names, ", ")), did_you_mean(name, names));
  const std::string_view words = std::string_view(text).substr(equals + 1);
  const bool clock = setting->second == actuate::Kind::kClock;
  const auto value = clock ? as_khz(words) : as_microwatts(words);
  if (!value)
    throw UsageError("{}: '{}': the value must be a {} above zero such as \"{}\"", flag, text,
                     clock ? "clock" : "power", clock ? "1.2 GHz" : "300 W");
  return {name, *value};
}

std::string text_of_own(const fs::path& path) {
  const File file = File::open(path);
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) throw_read_error(path, -errno);
  if (const std::string why = not_ours(status, path); !why.empty()) throw UsageError("{}", why);
  std::string text(kMostGrantBytes + 1, '\0');
  text.resize(file.read_some(text.data(), text.size(), 0));
  if (text.size() > kMostGrantBytes) throw UsageError("{}: more than {} bytes", path.string(), kMostGrantBytes);
  return text;
}
// Returns the greatest value that a device can take and that is within a bound; 0, which is below all settings, where
// there is none. An empty list stands for all values.
std::int64_t greatest_within(const std::vector<std::int64_t>& values, std::int64_t bound) {
  if (values.empty()) return bound;
  const auto above = std::upper_bound(values.begin(), values.end(), bound);
  return above == values.begin() ? 0 : *std::prev(above);
}

bool names_device(const Grant& grant, const actuate::ActuatorInfo& info) {
  const std::string device = info.id.substr(info.id.find(':') + 1);  // a UUID, for NVIDIA GPUs
  return std::any_of(grant.devices.begin(), grant.devices.end(), [&](const std::string& word) {
    return word == "all" || word == info.scope || word == info.id || word == device;
  });
}

}  // namespace

std::string not_ours(const struct stat& status, const fs::path& path) {
  if (status.st_uid != 0 && status.st_uid != ::geteuid())
    return fmt::format("{}: belongs to user {}, and must be root's", path.string(), status.st_uid);
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return fmt::format("{}: others may write it (mode {:04o}): chmod go-w", path.string(), status.st_mode & 07777);
  return "";
}

std::string Peer::numbers() const {
  return pid > 0 ? fmt::format("process {} of user {}", pid, uid) : fmt::format("a process of user {}", uid);
}

std::string Peer::text() const {
  std::vector<char> buffer(1 << 14);
  passwd entry{}, *found = nullptr;
  ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  const std::string user = found != nullptr ? printable(found->pw_name) : fmt::format("user {}", uid);
  return pid > 0 ? fmt::format("process {} of {}", pid, user) : fmt::format("a process of {}", user);
}

Result<Peer> peer_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return Failure{fmt::format("the kernel does not tell who connected: {}", std::strerror(errno))};
  Peer peer{credentials.uid, credentials.gid, {}, credentials.pid};
  std::vector<gid_t> groups(64);
  for (;;) {
    size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) break;
    if (errno != ERANGE || groups.size() >= kMostGroups)
      return Failure{
          fmt::format("the kernel does not tell the groups of {}: {}", peer.numbers(), std::strerror(errno))};
    groups.resize(kMostGroups);
  }
  groups.resize(size / sizeof(gid_t));
  peer.groups.assign(groups.begin(), groups.end());
  return peer;
}

bool AllowList::permits(const Peer& peer) const {
  if (peer.uid == 0 || users.contains(peer.uid) || groups.contains(peer.gid)) return true;
  return std::any_of(peer.groups.begin(), peer.groups.end(), [&](std::uint32_t g) { return groups.contains(g); });
}

std::uint32_t user_named(const std::string& name, const std::string& flag) {
  if (const auto number = as_number(name)) return *number;
  std::vector<char> buffer(1 << 16);
  passwd entry{}, *found = nullptr;
  ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) throw UsageError("{}: this machine knows no user '{}'", flag, name);
  return found->pw_uid;
}

std::uint32_t group_named(const std::string& name, const std::string& flag) {
  if (const auto number = as_number(name)) return *number;
  std::vector<char> buffer(1 << 20);  // a group lists its members
  group entry{}, *found = nullptr;
  ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) throw UsageError("{}: this machine knows no group '{}'", flag, name);
  return found->gr_gid;
}

void require_power_limit(const std::string& name, const std::string& flag) {
  std::vector<std::string> names;
  for (const auto& [known, kind] : kBounded)
    if (kind == actuate::Kind::kPower) names.emplace_back(known);
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw UsageError("{}: '{}' must be one of {}{}", flag, name, fmt::format("{}", fmt::join(names, ", ")),
                     did_you_mean(name, names));
}

void Bounds::add_least(const std::string& text, const std::string& flag) {
  const NamedBound bound = parse_bound(text, flag);
  Range& range = of_[bound.name];
  range.least = bound.value;
  if (range.most < range.least) throw UsageError("{}: '{}' is above the greatest value that may be set", flag, text);
}

void Bounds::add_most(const std::string& text, const std::string& flag) {
  const NamedBound bound = parse_bound(text, flag);
  Range& range = of_[bound.name];
  range.most = bound.value;
  if (range.most < range.least) throw UsageError("{}: '{}' is below the least value that may be set", flag, text);
}

Bounds::Range Bounds::range_of(const actuate::Actuator& actuator) const {
  Range range{actuator.least(), actuator.most()};
  for (const actuate::Part& part : actuator.info().parts) range.least = std::max(range.least, part.least);
  if (const auto bound = of_.find(actuator.info().name); bound != of_.end()) {
    range.least = std::max(range.least, bound->second.least);
    if (bound->second.most < range.most) range.most = greatest_within(actuator.info().values, bound->second.most);
  }
  return range;
}

std::vector<Grant> parse_grants(std::string_view text, const std::string& origin) {
  std::vector<Grant> grants;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    std::vector<std::string_view> words;
    while (!line.empty()) {
      const std::size_t begin = line.find_first_not_of(" \t\r");
      if (begin == std::string_view::npos) break;
      const std::size_t stop = std::min(line.find_first_of(" \t\r", begin), line.size());
      words.push_back(line.substr(begin, stop - begin));
      line.remove_prefix(stop);
    }
    if (words.empty() || words.front().starts_with('#')) continue;
    const auto uid = as_number(words.front());
    if (!uid || words.size() < 2)
      throw UsageError("{}:{}: must be the number of a user and its devices: \"1001 gpu0 cpu-package1\"", origin,
                       number);
    if (grants.size() >= kMostGrants) throw UsageError("{}: more than {} lines", origin, kMostGrants);
    grants.push_back({*uid, {words.begin() + 1, words.end()}});
  }
  return grants;
}

Ownership::Now Ownership::now() const {
  Now now;
  now.rule_ = rule_;
  if (rule_ != Rule::kGrants) return now;
  try {
    struct stat status {};
    if (::stat(folder_.c_str(), &status) != 0) throw_read_error(folder_, -errno);
    if (const std::string why = not_ours(status, folder_); !why.empty()) throw UsageError("{}", why);
    const auto files = list_directory(folder_);
    if (files.size() > kMostGrantFiles) throw UsageError("{}: more than {} files", folder_.string(), kMostGrantFiles);
    for (const DirectoryEntry& file : files) {
      if (file.is_directory || file.name.starts_with('.'))
        continue;  // a prolog writes into a hidden file and renames it
      try {
        for (Grant& grant : parse_grants(text_of_own(folder_ / file.name), (folder_ / file.name).string()))
          now.grants_.push_back(std::move(grant));
      } catch (const MissingFileError&) {  // an epilog was faster
      } catch (const Error& error) {
        now.problems_.emplace_back(error.what());
      }
    }
  } catch (const Error& error) {
    now.problems_.emplace_back(error.what());
  }
  return now;
}

std::string Ownership::Now::why_not(const Peer& peer, const actuate::ActuatorInfo& info) const {
  if (rule_ == Rule::kNobody)
    return "this daemon reads meters only: it was started with neither --owners nor --exclusive";
  if (rule_ == Rule::kAnyone || peer.uid == 0) return "";
  for (const Grant& grant : grants_)
    if (grant.uid == peer.uid && names_device(grant, info)) return "";
  return fmt::format("{} belongs to no job of user {} on this node", info.scope, peer.uid);
}

}  // namespace molen::daemon
