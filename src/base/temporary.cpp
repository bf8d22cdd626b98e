#include "base/temporary.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/filesystem.h"

namespace molen {
namespace {

constexpr std::string_view kPart = ".part-";
constexpr std::size_t kDigits = 16;

}  // namespace

std::string temporary_name(std::string_view name) {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits) throw IoError(errno, "the system returned no random bytes");
  return fmt::format("{}{}{:016x}", name, kPart, bits);
}

bool is_temporary_name(std::string_view name) {
  if (name.size() < kPart.size() + kDigits) return false;
  const std::string_view end = name.substr(name.size() - kPart.size() - kDigits);
  return end.starts_with(kPart) && end.find_first_not_of("0123456789abcdef", kPart.size()) == std::string_view::npos;
}

void remove_temporaries(const std::filesystem::path& folder) {
  if (!path_exists(folder)) return;
  for (const DirectoryEntry& entry : list_directory(folder))
    if (is_temporary_name(entry.name)) remove_tree(folder / entry.name);
}

}  // namespace molen
