#include "energy/scope.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace molen::energy {
namespace {

// How much of a part (all processors, all memory, ...) a scope has: all of it, or what bears a number.
struct Share {
  bool all = false;
  std::string number;  // "0"; "0-die1" for one die of package 0
};
using Extent = std::map<std::string_view, Share>;  // by part

const Share kAll{true, ""};

// Returns the number behind `prefix`, such as "0" or "0-die1"; nothing where `scope` is of another kind.
std::optional<std::string> number_of(std::string_view scope, std::string_view prefix) {
  if (scope.substr(0, prefix.size()) != prefix) return std::nullopt;
  const std::string_view number = scope.substr(prefix.size());
  if (number.empty() || number[0] < '0' || number[0] > '9') return std::nullopt;
  return std::string(number);
}

Extent extent_of(const std::string& scope) {
  if (scope == "node")
    return {{"cpu", kAll}, {"dram", kAll}, {"sysio", kAll}, {"gpu", kAll}, {"accel", kAll}, {"rest", kAll}};
  if (scope == "host") return {{"cpu", kAll}, {"dram", kAll}, {"sysio", kAll}, {"rest", kAll}};
  if (scope == "rest") return {{"rest", kAll}};
  if (scope == "psys") return {{"cpu", kAll}, {"dram", kAll}};
  if (scope == "cpu" || scope == "cpu-package") return {{"cpu", kAll}};
  if (scope == "dram") return {{"dram", kAll}};
  if (scope == "gpu") return {{"gpu", kAll}};
  for (const char* socket : {"module", "grace"})
    if (const auto n = number_of(scope, socket))
      return {{"cpu", {false, *n}}, {"dram", {false, *n}}, {"sysio", {false, *n}}};
  for (const auto& [prefix, part] :
       {std::pair{"cpu-package", "cpu"}, {"dram", "dram"}, {"sysio", "sysio"}, {"gpu", "gpu"}, {"accel", "accel"}})
    if (const auto n = number_of(scope, prefix)) return {{part, {false, *n}}};
  return {};
}

bool has_number(const std::string& outer, const std::string& inner) {
  return outer == inner || inner.rfind(outer + "-", 0) == 0;  // a package has its dies
}

bool includes(const Share& outer, const Share& inner) {
  return outer.all || (!inner.all && has_number(outer.number, inner.number));
}

bool is_numbered(const std::string& scope, const char* prefix) {
  return number_of(scope, prefix).has_value();
}

// The order in which scopes are chosen for a sum; a later one that overlaps one before it is left out.
int order_of(const std::string& scope, bool packages) {
  if (scope == "node") return 0;
  if (is_numbered(scope, "superchip")) return 1;
  if (is_numbered(scope, "module")) return 2;
  if (is_numbered(scope, "grace")) return 3;
  if (scope == "psys") return packages ? 7 : 4;
  if (scope == "host") return 4;
  if (scope == "cpu" || scope == "dram" || is_numbered(scope, "accel")) return 5;
  return 6;
}

}  // namespace

std::vector<int> gpus_of(const std::string& scope) {
  for (const char* prefix : {"gpu", "superchip"})
    if (const auto number = number_of(scope, prefix)) {
      std::vector<int> gpus{std::atoi(number->c_str())};
      if (const auto plus = number->find('+'); plus != std::string::npos)
        gpus.push_back(std::atoi(number->c_str() + plus + 1));
      return gpus;
    }
  return {};
}

std::set<std::string> parts_of(const std::string& scope) {
  if (is_numbered(scope, "superchip")) return {"cpu", "dram", "gpu"};
  std::set<std::string> parts;
  for (const auto& [part, share] : extent_of(scope))
    if (part != "sysio" && part != "rest") parts.emplace(part == "accel" ? "gpu" : part);
  return parts;
}

bool overlap(const std::string& a, const std::string& b) {
  if (a == b) return false;
  if (a == "node" || b == "node") return true;
  for (const auto& [chip, other] : {std::pair{a, b}, {b, a}}) {
    // The number of a superchip does not tell its socket, so it may share joules with any scope. Two superchips share
    // none.
    if (is_numbered(chip, "superchip")) return !is_numbered(other, "superchip") && !extent_of(other).empty();
    if (is_numbered(chip, "accel") && extent_of(other).contains("gpu")) return true;
  }
  const Extent x = extent_of(a), y = extent_of(b);
  return std::any_of(x.begin(), x.end(), [&](const auto& part) {
    const auto other = y.find(part.first);
    return other != y.end() && (includes(part.second, other->second) || includes(other->second, part.second));
  });
}

bool contains(const std::string& outer, const std::string& inner) {
  if (outer == inner) return false;
  if (outer == "node") return true;
  if (is_numbered(outer, "module") && is_numbered(inner, "grace"))
    return number_of(outer, "module") == number_of(inner, "grace");
  if (is_numbered(outer, "grace") && is_numbered(inner, "module")) return false;
  const Extent x = extent_of(outer), y = extent_of(inner);
  return !y.empty() && std::all_of(y.begin(), y.end(), [&](const auto& part) {
    const auto whole = x.find(part.first);
    return whole != x.end() && includes(whole->second, part.second);
  });
}

std::set<std::string> counted_among(std::vector<std::string> scopes) {
  const bool packages = std::any_of(scopes.begin(), scopes.end(),
                                    [](const std::string& scope) { return scope.rfind("cpu-package", 0) == 0; });
  std::stable_sort(scopes.begin(), scopes.end(), [&](const std::string& a, const std::string& b) {
    const int x = order_of(a, packages), y = order_of(b, packages);
    return x != y ? x < y : a.size() < b.size();  // a package before its dies
  });
  std::set<std::string> counted;
  for (const std::string& scope : scopes)
    if (std::none_of(counted.begin(), counted.end(), [&](const std::string& other) { return overlap(other, scope); }))
      counted.insert(scope);
  return counted;
}

void choose_counted(Meters& meters) {
  std::vector<std::string> read;
  for (const auto& m : meters.meters)
    if (m->info().source != Source::kNone) read.push_back(m->info().scope);
  const auto counted = counted_among(std::move(read));
  for (const auto& m : meters.meters)
    m->set_counted(m->info().source != Source::kNone && counted.contains(m->info().scope));
}

}  // namespace molen::energy
