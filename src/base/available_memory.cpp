#include "base/available_memory.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <vector>

#include "base/error.h"

namespace molen {
namespace {

// The files of a control group, by version (Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).
// memory.high counts as a limit although the kernel kills no process beyond it: it slows the process down, and one
// whose memory cannot be swapped makes no progress there.
struct Names {
  std::vector<const char*> limits;
  const char* usage;
  std::vector<std::string> caches;  // rows of memory.stat
};
const Names kVersion2{
    {"memory.max", "memory.high"}, "memory.current", {"active_file", "inactive_file", "slab_reclaimable"}};
const Names kVersion1{{"memory.limit_in_bytes"}, "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}};

fs::path below(const fs::path& root, const fs::path& path) {
  return root / path.relative_path();
}

std::vector<std::string> words_of(const std::string& line, char separator = ' ') {
  std::vector<std::string> words;
  std::istringstream in(line);
  for (std::string word; std::getline(in, word, separator);) words.push_back(word);
  return words;
}

std::int64_t number(const std::string& text, const fs::path& file) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || (stop != end && *stop != '\n') || value < 0)
    throw Error("{}: '{}' is no number of bytes", file.string(), text.substr(0, text.find('\n')));
  return value;
}

// Returns the sum of the named rows of memory.stat; missing rows count as 0.
std::int64_t caches_in(const fs::path& group, const std::vector<std::string>& rows) {
  const fs::path file = group / "memory.stat";
  if (!fs::exists(file)) return 0;
  std::int64_t sum = 0;
  for (const std::string& line : words_of(read_file(file), '\n'))
    if (const auto words = words_of(line);
        words.size() == 2 && std::find(rows.begin(), rows.end(), words[0]) != rows.end())
      sum += number(words[1], file);
  return sum;
}

// Lowers `least` to the memory that the group leaves. A group without limits, such as the outermost one, has none of
// these files.
void within_group(const fs::path& group, const Names& names, AvailableMemory& least) {
  std::optional<std::int64_t> used;
  for (const char* name : names.limits) {
    const fs::path file = group / name;
    if (!fs::exists(file) || !fs::exists(group / names.usage)) continue;
    const std::string limit = read_file(file);
    if (limit == "max" || limit == "max\n") continue;
    if (!used) {
      const std::int64_t all = number(read_file(group / names.usage), group / names.usage);
      used = std::max<std::int64_t>(0, all - caches_in(group, names.caches));
    }
    const Bytes left(std::max<std::int64_t>(0, number(limit, file) - *used));
    if (left < least.bytes) least = {left, file.string()};
  }
}

// Replaces octal escapes: mountinfo writes a space as "\040", and likewise other characters that would end a word.
std::string unescaped(const std::string& text) {
  std::string plain;
  const auto octal = [](char c) { return c >= '0' && c <= '7'; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 3 >= text.size() || !octal(text[i + 1]) || !octal(text[i + 2]) || !octal(text[i + 3])) {
      plain += text[i];
      continue;
    }
    plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return plain;
}

struct Mount {
  bool version2;
  fs::path root, at;  // the mounted group, and its mount point
};

// Finds the mounts of groups that limit memory (proc(5), mountinfo): "36 35 98:0 ROOT AT OPTIONS [FIELDS] - TYPE SOURCE
// OPTIONS".
std::vector<Mount> mounts_in(const std::string& mountinfo) {
  std::vector<Mount> mounts;
  for (const std::string& line : words_of(mountinfo, '\n')) {
    const auto words = words_of(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const bool version2 = dash[1] == "cgroup2";
    const auto options = words_of(dash[3], ',');
    if (version2 || (dash[1] == "cgroup" && std::find(options.begin(), options.end(), "memory") != options.end()))
      mounts.push_back({version2, unescaped(words[3]), unescaped(words[4])});
  }
  return mounts;
}

// Returns the process's group of a version, "" if it has none: lines "HIERARCHY:CONTROLLERS:PATH".
fs::path group_in(const std::string& cgroup, bool version2) {
  for (const std::string& line : words_of(cgroup, '\n')) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = words_of(line.substr(first + 1, second - first - 1), ',');
    if (version2 ? line.starts_with("0::")
                 : std::find(controllers.begin(), controllers.end(), "memory") != controllers.end())
      return line.substr(second + 1);
  }
  return {};
}

// Reads "KEY:    8192 kB" from a file in /proc.
Bytes kilobytes_of(const fs::path& file, const std::string& name) {
  const std::string text = read_file(file), key = name + ":";
  const auto at = text.find(key);
  const auto digits = at == std::string::npos ? at : text.find_first_not_of(" \t", at + key.size());
  if (digits == std::string::npos) throw Error("{}: no {}", file.string(), name);
  return Bytes(number(text.substr(digits, text.find(' ', digits) - digits), file) * 1024);
}

}  // namespace

Bytes peak_resident() {
  return kilobytes_of("/proc/self/status", "VmHWM");
}

AvailableMemory available_memory(const fs::path& root) {
  const fs::path info = below(root, "/proc/meminfo");
  AvailableMemory least{kilobytes_of(info, "MemAvailable"), info.string()};

  const fs::path self = below(root, "/proc/self/cgroup"), mountinfo = below(root, "/proc/self/mountinfo");
  if (!fs::exists(self) || !fs::exists(mountinfo)) return least;  // a kernel without control groups
  const std::string groups = read_file(self);
  for (const Mount& mount : mounts_in(read_file(mountinfo))) {
    const fs::path within = group_in(groups, mount.version2).lexically_relative(mount.root);
    // `within` is empty when the process is in no group of this version, and begins with ".." when the mounted group is
    // not around the process.
    if (within.empty() || *within.begin() == "..") continue;
    const Names& names = mount.version2 ? kVersion2 : kVersion1;
    fs::path here = below(root, mount.at);
    within_group(here, names, least);
    for (const fs::path& part : within)
      if (part != "." && !part.empty()) within_group(here /= part, names, least);
  }
  return least;
}

}  // namespace molen
