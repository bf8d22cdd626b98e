#include "energy/scope.h"

#include <algorithm>
#include <string_view>

namespace molen::energy {
namespace {

bool is_like(std::string_view scope, std::string_view prefix) {
  return scope.substr(0, prefix.size()) == prefix;
}

// Returns the number behind `prefix`: "0" of "cpu-package0-die1"; "" where `scope` is of another kind or has none.
std::string_view number_of(std::string_view scope, std::string_view prefix) {
  if (!is_like(scope, prefix)) return {};
  scope.remove_prefix(prefix.size());
  return scope.substr(0, scope.find_first_not_of("0123456789"));
}

bool is_numbered(std::string_view scope, std::string_view prefix) {
  return !number_of(scope, prefix).empty();
}

// Returns whether `inner` is a scope `prefix` of the same socket as `outer`, a scope `of`.
bool same_socket(std::string_view outer, std::string_view of, std::string_view inner, std::string_view prefix) {
  return is_numbered(outer, of) && number_of(outer, of) == number_of(inner, prefix);
}

}  // namespace

std::set<std::string> parts_of(const std::string& scope) {
  if (scope == "node" || is_numbered(scope, "module")) return {"cpu", "dram", "gpu"};
  if (scope == "psys" || is_numbered(scope, "grace")) return {"cpu", "dram"};
  if (scope == "cpu" || is_like(scope, "cpu-package")) return {"cpu"};
  if (is_like(scope, "dram")) return {"dram"};
  if (is_like(scope, "gpu") || is_numbered(scope, "accel")) return {"gpu"};
  return {};
}

bool contains(const std::string& outer, const std::string& inner) {
  if (outer == inner) return false;
  if (outer == "node") return true;
  if (outer == "psys") return inner == "cpu" || is_like(inner, "cpu-package") || is_like(inner, "dram");
  if (outer == "cpu") return is_like(inner, "cpu-package");
  if (outer == "dram") return is_numbered(inner, "dram");
  if (is_numbered(outer, "accel")) return is_like(inner, "gpu");
  for (const char* part : {"grace", "cpu-package", "dram", "sysio"})
    if (same_socket(outer, "module", inner, part) || same_socket(outer, "grace", inner, part)) return true;
  return is_numbered(outer, "module") && (is_like(inner, "gpu") || is_numbered(inner, "accel"));
}

void choose_counted(Meters& meters) {
  std::set<std::string> read;
  for (const auto& m : meters.meters)
    if (m->info().source != Source::kNone) read.insert(m->info().scope);
  const bool packages =
      std::any_of(read.begin(), read.end(), [](const std::string& s) { return is_like(s, "cpu-package"); });
  if (packages) read.erase("psys");
  for (const auto& m : meters.meters) {
    const std::string& scope = m->info().scope;
    const bool within =
        std::any_of(read.begin(), read.end(), [&](const std::string& outer) { return contains(outer, scope); });
    m->set_counted(m->info().source != Source::kNone && read.contains(scope) && !within);
  }
}

}  // namespace molen::energy
