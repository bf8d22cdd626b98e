#include "data/verified.h"

#include <cstdlib>
#include <sstream>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"

namespace molen::data {
namespace {

constexpr std::string_view kHead = "molen-verified 1";
constexpr std::int64_t kTickNs = 2'000'000'000;  // resolution of times on the coarsest file systems

// One line per shard: state, stamp, name. Names hold no white space.
std::string line_of(const std::string& name, const std::string& stamp, Verified state) {
  return fmt::format("{}\t{}\t{}\n", state == Verified::kHashed ? "hashed" : "sampled", stamp, name);
}

}  // namespace

fs::path VerifiedShards::cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return fs::path(cache) / "molen" / "verified";
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? fs::path(home) / ".cache" / "molen" / "verified" : fs::path();
}

VerifiedShards::VerifiedShards(const fs::path& folder) : folder_(folder) {
  std::error_code error;
  const fs::path canonical = fs::canonical(folder, error);
  const fs::path cache = cache_folder();
  if (error || cache.empty()) return;
  file_ = cache / (sha256_hex(canonical.string()) + ".txt");
  std::string text;
  try {
    text = read_file(file_, std::int64_t{1} << 30);
  } catch (const Error&) {
    return;  // no shard of this folder was verified before
  }
  std::istringstream lines(text);
  std::string state, stamp, name;
  if (!std::getline(lines, name) || name != kHead) return;
  while (std::getline(lines, state, '\t') && std::getline(lines, stamp, '\t') && std::getline(lines, name))
    known_[name] = {stamp, state == "hashed" ? Verified::kHashed : Verified::kSampled};
}

std::string VerifiedShards::stamp(const ShardRecord& shard) const {
  const auto now = static_cast<std::int64_t>(wall_time() * 1e9);
  std::string text;
  for (const FileRecord* record : {&shard.bin, &shard.idx}) {
    FileStatus status;
    if (file_system().status(folder_ / record->path, status) < 0 || status.kind != FileStatus::Kind::kFile) return "";
    if (now - status.modified_ns < kTickNs) return "";
    text += fmt::format("{} {} {} {} ", status.size, status.modified_ns, status.inode, record->sha256);
  }
  return text;
}

Verified VerifiedShards::state(const ShardRecord& shard) const {
  const auto found = known_.find(shard.name);
  return found != known_.end() && found->second.first == stamp(shard) ? found->second.second : Verified::kNo;
}

void VerifiedShards::add(const ShardRecord& shard, const std::string& stamp, Verified state) {
  if (stamp.empty()) return;
  known_[shard.name] = {stamp, state};
  changed_ = true;
}

void VerifiedShards::save() const {
  if (!changed_ || file_.empty()) return;
  std::string text = std::string(kHead) + "\n";
  for (const auto& [name, entry] : known_) text += line_of(name, entry.first, entry.second);
  try {
    make_directories(file_.parent_path());
    write_file_atomic(file_, text);
  } catch (const Error&) {
    // The cache has no space or is not writable. That is no error: the next start verifies again.
  }
}

}  // namespace molen::data
