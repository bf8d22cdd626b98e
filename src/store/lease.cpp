#include "store/lease.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "base/clock.h"
#include "base/host_name.h"
#include "base/temporary.h"

namespace molen::store {
namespace {

constexpr std::string_view kPrefix = "lease-", kSuffix = ".json";
constexpr std::int64_t kMaxLeaseBytes = 1 << 16;

fs::path lease_file(const fs::path& directory, std::int64_t token) {
  return directory / fmt::format("{}{:09d}{}", kPrefix, token, kSuffix);
}

// Returns the token in the name of a lease file; 0 for any other name.
std::int64_t token_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return 0;
  name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  std::int64_t token = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
  return error == std::errc() && end == name.data() + name.size() && token > 0 ? token : 0;
}

// The file of a lease that a process was writing when it died, or that it still writes, too late.
bool is_unfinished(std::string_view name) {
  return name.starts_with(kPrefix) && is_temporary_name(name);
}

std::int64_t highest_token(const fs::path& directory) {
  std::int64_t highest = 0;
  for (const DirectoryEntry& entry : list_directory(directory)) highest = std::max(highest, token_of(entry.name));
  return highest;
}

// Returns the text of a lease; empty when the file is gone, as after its owner was overtaken.
std::string read_lease(const fs::path& directory, std::int64_t token) {
  try {
    return read_file(lease_file(directory, token), kMaxLeaseBytes);
  } catch (const MissingFileError&) {
    return "";
  }
}

struct Held {
  Owner owner;
  bool released = false, known = false;  // known: the file could be parsed
  double period_s = 0;                   // 0: not given
};

Held parse_lease(const std::string& text) {
  Held held;
  try {
    const Json j = parse_json(text, "lease");
    held.owner = {j.at("host").get<std::string>(),           j.at("boot").get<std::string>(),
                  j.at("pid_namespace").get<std::string>(),  j.at("pid").get<std::int64_t>(),
                  j.at("process_start").get<std::int64_t>(), j.at("job").get<std::string>()};
    held.released = j.at("released").get<bool>();
    held.period_s = j.value("period_s", 0.0);
    held.known = true;
  } catch (const UsageError&) {  // cut short by a crash: its owner counts as dead because it does not renew it
  } catch (const Json::exception&) {
  }
  return held;
}

std::string first_line(const char* file) {
  try {
    const std::string text = read_file(file, kMaxLeaseBytes);
    return text.substr(0, text.find('\n'));
  } catch (const Error&) {
    return "";
  }
}

// Returns the start time of a process of this machine, in clock ticks since boot; 0 when there is no such process.
std::int64_t start_of(std::int64_t pid) {
  const std::string stat = first_line(fmt::format("/proc/{}/stat", pid).c_str());
  // Field 22; the second field is the command in parentheses, which may contain any characters.
  const auto close = stat.rfind(')');
  if (close == std::string::npos) return 0;
  std::size_t at = close;
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoll(stat.c_str() + at + 1, nullptr, 10);
}

std::string holder_of(const Held& held) {
  return held.known ? held.owner.text() : "another process";
}

[[noreturn]] void refuse(const fs::path& directory, const Held& held, const std::string& advice) {
  throw LeaseHeld("{}: {} writes here, and only one may; wait for it to end, or {}", directory.string(),
                  holder_of(held), advice);
}

// Watches the newest lease until it is known whether its owner is alive; returns its token when it may be taken over.
class Watch {
 public:
  Watch(const fs::path& directory, const LeaseOptions& options) : directory_(directory), options_(options) {}

  // `outlived`: the dead owner, if known.
  std::int64_t wait_for_the_dead(std::optional<Owner>& outlived) {
    std::optional<std::string> seen;
    std::int64_t seen_token = 0;
    auto since = clock::now();
    while (true) {
      const std::int64_t highest = highest_token(directory_);
      outlived.reset();
      if (highest == 0) return 0;
      const std::string text = read_lease(directory_, highest);
      const Held held = parse_lease(text);
      if (held.released) return highest;
      if (held.known) outlived = held.owner;
      const Life life = !held.known                   ? Life::kUnknown
                        : options_.dead == held.owner ? Life::kDead
                                                      : life_of(held.owner, options_.owner);
      if (life == Life::kDead) return highest;
      if (life == Life::kAlive || (seen && (seen_token != highest || *seen != text)))
        refuse(directory_, held, options_.advice);
      // The owner chooses its own renewal period.
      const double period_s = held.period_s > 0 ? held.period_s : options_.period_s;
      if (!seen) {
        seen = text, seen_token = highest, since = clock::now();
        if (options_.waiting)
          options_.waiting(fmt::format("{}: {} was writing here; taking over if it shows no life for {:g} s",
                                       directory_.string(), holder_of(held), period_s));
      }
      if (std::chrono::duration<double>(clock::now() - since).count() >= period_s) return highest;
      std::this_thread::sleep_for(std::chrono::duration<double>(period_s / 20));
    }
  }

 private:
  using clock = std::chrono::steady_clock;
  const fs::path& directory_;
  const LeaseOptions& options_;
};

}  // namespace

Life life_of(const Owner& owner, const Owner& self) {
  if (owner.boot.empty() || owner.boot != self.boot || owner.host != self.host ||
      owner.pid_namespace != self.pid_namespace)
    return Life::kUnknown;
  const std::int64_t start = start_of(owner.pid);
  return start != 0 && start == owner.process_start ? Life::kAlive : Life::kDead;
}

Owner Owner::self() {
  Owner owner;
  owner.host = host_name();
  owner.boot = first_line("/proc/sys/kernel/random/boot_id");
  std::error_code ignored;
  owner.pid_namespace = fs::read_symlink("/proc/self/ns/pid", ignored).string();
  owner.pid = ::getpid();
  owner.process_start = start_of(owner.pid);
  if (const char* job = std::getenv("SLURM_JOB_ID")) owner.job = fmt::format("Slurm job {}", job);
  return owner;
}

std::string Owner::text() const {
  return fmt::format("process {} on {}{}", pid, host, job.empty() ? "" : " (" + job + ")");
}

Lease::Lease(fs::path directory, LeaseOptions options)
    : directory_(std::move(directory)), options_(std::move(options)), since_wall_s_(wall_time()) {
  make_directories(directory_);
  do token_ = Watch(directory_, options_).wait_for_the_dead(outlived_) + 1;
  while (!take());
  for (const DirectoryEntry& entry : list_directory(directory_)) {
    const std::int64_t token = token_of(entry.name);
    if ((token > 0 && token < token_) || is_unfinished(entry.name)) remove_file(directory_ / entry.name);
  }
  renewer_ = std::jthread([this](const std::stop_token& stop) { renew(stop); });
}

// Creates the file of the token, which only one process can do. A slow process that creates the file of an outdated
// token does not own the lease.
bool Lease::take() {
  const fs::path mine = lease_file(directory_, token_);
  {
    File file = File::temporary_beside(mine);
    file.write(content(false));
    int code = file_system().link(file.path(), mine);
    if (code == -EPERM || code == -EOPNOTSUPP || code == -ENOSYS) {  // a file system without hard links
      code = file_system().open(mine, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
      if (code >= 0) {
        file_system().close(code);
        write_file_unsynced(mine, content(false));
      }
    }
    // -ENOENT: another process took this token, and removed the file as one that was left behind.
    if (code == -EEXIST || code == -ENOENT) return false;
    if (code < 0) throw_write_error(mine, code);
  }
  if (highest_token(directory_) == token_) return true;
  remove_file(mine);
  return false;
}

Lease::~Lease() {
  renewer_.request_stop();
  renewer_.join();
  try {
    if (highest_token(directory_) == token_) write_file_unsynced(lease_file(directory_, token_), content(true));
  } catch (const Error&) {  // others then regard this owner as dead after its period
  }
}

std::string Lease::content(bool released) {
  const Owner& o = options_.owner;
  return Json{{"token", token_},
              {"host", o.host},
              {"boot", o.boot},
              {"pid_namespace", o.pid_namespace},
              {"pid", o.pid},
              {"process_start", o.process_start},
              {"job", o.job},
              {"period_s", options_.period_s},
              {"since_wall_s", since_wall_s_},
              {"renewals", renewals_++},
              {"released", released}}
             .dump() +
         "\n";
}

void Lease::renew(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, stop, std::chrono::duration<double>(options_.period_s / 4),
                         [&] { return stop.stop_requested(); })) {
    if (stop.stop_requested()) return;
    try {
      if (highest_token(directory_) > token_) return;
      write_file_unsynced(lease_file(directory_, token_), content(false));
    } catch (const Error&) {
      // The next renewal tries again. If all fail, another process takes over, and require() throws.
    }
  }
}

void Lease::require() const {
  const std::int64_t highest = highest_token(directory_);
  if (highest <= token_) return;
  const Held held = parse_lease(read_lease(directory_, highest));
  throw LeaseHeld("{}: {} has taken over, because this process showed no life for {:g} s; nothing more is written here",
                  directory_.string(), holder_of(held), options_.period_s);
}

std::string lease_owner(const fs::path& directory) {
  try {
    const std::int64_t highest = highest_token(directory);
    if (highest == 0) return "";
    const Held held = parse_lease(read_lease(directory, highest));
    if (!held.known || held.released || life_of(held.owner, Owner::self()) == Life::kDead) return "";
    return held.owner.text();
  } catch (const MissingFileError&) {
    return "";
  }
}

}  // namespace molen::store
