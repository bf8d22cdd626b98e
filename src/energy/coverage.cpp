#include "energy/coverage.h"

#include <algorithm>

#include "base/error.h"
#include "energy/json_members.h"

namespace molen::energy {
namespace {

constexpr const char* kParts[] = {"cpu", "dram", "gpu"};

bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

bool is_part(const std::string& name) {
  return std::find(std::begin(kParts), std::end(kParts), name) != std::end(kParts);
}

std::set<std::string> parts_of_all(const std::set<std::string>& scopes) {
  std::set<std::string> parts;
  for (const auto& scope : scopes) parts.merge(parts_of(scope));
  return parts;
}

// A GPU inside a processor (an APU) is metered with the package.
bool has_amd_gpu(const Machine& machine) {
  std::error_code error;
  for (fs::directory_iterator node(machine.sys / "class/kfd/kfd/topology/nodes", error), end; !error && node != end;
       node.increment(error)) {
    const auto id = read_count(node->path() / "gpu_id");
    const auto properties = read_small(node->path() / "properties");
    if (id && id.value() != 0 && properties && starts_with(properties.value(), "cpu_cores_count 0\n")) return true;
  }
  return false;
}

bool hides_all(const std::optional<std::string>& list) {
  return list && (list->empty() || starts_with(*list, "-"));
}

bool has_nvidia_gpu(const Machine& machine) {
  std::error_code error;
  return fs::directory_iterator(machine.proc / "driver/nvidia/gpus", error) != fs::directory_iterator() && !error;
}

}  // namespace

Coverage& Coverage::operator+=(const Coverage& other) {
  hosts += other.hosts;
  for (const auto& [scope, n] : other.scopes) scopes[scope] += n;
  summed.insert(other.summed.begin(), other.summed.end());
  for (const auto& [what, n] : other.missing) missing[what] += n;
  return *this;
}

std::string partial_text(const std::set<std::string>& summed, const std::map<std::string, std::int64_t>& missing,
                         std::int64_t hosts) {
  if (missing.empty()) return "";
  if (summed.empty()) return "nothing measured";
  const auto covered = parts_of_all(summed);
  bool whole_parts = !covered.empty();
  std::string without, only;
  for (const auto& [what, n] : missing) {
    const bool part = is_part(what);
    const bool some = part && (n < hosts || covered.contains(what));
    whole_parts = whole_parts && part && !some;
    without += fmt::format("{}{}{}", without.empty() ? "" : ", ", some ? "part of " : "", what);
  }
  if (!whole_parts) return "without " + without;
  for (const auto& part : covered) only += (only.empty() ? "" : "+") + part;
  return only + " only";
}

std::string Coverage::partial() const {
  return partial_text(summed, missing, hosts);
}

Coverage coverage_of(const Meters& meters, bool gpus) {
  Coverage c;
  c.hosts = 1;
  std::set<std::string> unread;
  for (const auto& m : meters.meters) {
    const MeterInfo& info = m->info();
    if (info.source == Source::kNone) {
      unread.insert(info.scope);
      continue;
    }
    c.scopes[info.scope] = 1;
    if (info.counted) c.summed.insert(info.scope);
  }
  for (const auto& u : meters.unavailable) unread.insert(u.scope);
  const auto covered = parts_of_all(c.summed);
  for (const std::string part : kParts) {
    const bool there = part != "gpu" || gpus || std::any_of(unread.begin(), unread.end(), [](const std::string& scope) {
                         return starts_with(scope, "gpu") && scope != "gpu";  // NVML lists it but cannot read it
                       });
    if (there && !covered.contains(part)) c.missing[part] = 1;
  }
  // Only numbered scopes count here: "cpu-package" without a number stands for all packages, which another meter may
  // read.
  for (const std::string& scope : unread) {
    const auto parts = parts_of(scope);
    const bool numbered = !scope.empty() && scope.back() >= '0' && scope.back() <= '9';
    const bool within =
        std::any_of(c.summed.begin(), c.summed.end(), [&](const std::string& outer) { return overlap(outer, scope); });
    if (!numbered || c.scopes.contains(scope) || within) continue;
    if (std::any_of(parts.begin(), parts.end(), [&](const std::string& part) { return covered.contains(part); }))
      c.missing[scope] = 1;
  }
  return c;
}

bool has_gpus(const Machine& machine, const VisibleGpus& visible) {
  return (!hides_all(visible.nvidia) && has_nvidia_gpu(machine)) || (!hides_all(visible.amd) && has_amd_gpu(machine));
}

Json to_json(const Coverage& c) {
  Json scopes = Json::object(), missing = Json::object();
  for (const auto& [scope, n] : c.scopes) scopes[scope] = n;
  for (const auto& [what, n] : c.missing) missing[what] = n;
  return {{"hosts", c.hosts}, {"scopes", scopes}, {"summed", c.summed}, {"missing", missing}, {"partial", c.partial()}};
}

Coverage coverage_from_json(const Json& json, const std::string& origin) {
  Coverage c;
  c.hosts = count_member(json, "hosts", origin);
  c.scopes = counts_member(json, "scopes", origin);
  c.missing = counts_member(json, "missing", origin);
  const Json& summed = json_member(json, "summed", origin);
  if (!summed.is_array()) throw UsageError("{}: summed is no list of scopes", origin);
  for (const Json& scope : summed) {
    if (!scope.is_string()) throw UsageError("{}: summed holds something that is no name", origin);
    c.summed.insert(scope.get<std::string>());
  }
  return c;
}

}  // namespace molen::energy
