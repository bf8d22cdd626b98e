#include "energy/open.h"

#include <algorithm>
#include <cstdlib>

#include "base/host_name.h"
#include "base/suggest.h"
#include "energy/amd.h"
#include "energy/cray.h"
#include "energy/hwmon.h"
#include "energy/rapl_powercap.h"
#include "energy/replay.h"
#include "energy/scope.h"
#include "energy/visible.h"

namespace molen::energy {
namespace {

bool has_scope(const Meters& all, const std::string& scope) {
  return std::any_of(all.meters.begin(), all.meters.end(), [&](const auto& m) { return m->info().scope == scope; });
}

bool reads_processor(const Meters& all) {
  return std::any_of(all.meters.begin(), all.meters.end(), [](const auto& m) {
    return m->info().source != Source::kNone && parts_of(m->info().scope).contains("cpu");
  });
}

// A virtual machine may show a counter that always reads 0 (seen on Firecracker: energy-psys opens and never changes).
// Each counter must advance once within `settle_s`.
void drop_frozen(Meters& found, const OpenOptions& o) {
  std::vector<std::optional<double>> first(found.meters.size());  // first reading of each that succeeded

  std::vector<bool> alive(found.meters.size(), false);
  const double until = o.machine.clock() + o.settle_s;
  for (bool waiting = true; waiting;) {
    waiting = false;
    const bool late = o.machine.clock() >= until;
    for (std::size_t i = 0; i < found.meters.size(); ++i) {
      if (alive[i]) continue;
      const auto r = found.meters[i]->read();
      if (r && !first[i]) first[i] = r.value().total.value;
      // The rest of a node is a difference; its terms are tested themselves.
      alive[i] = r && (r.value().total.value > *first[i] || found.meters[i]->info().scope == "rest");

      waiting = waiting || !alive[i];
    }
    if (late) break;
    if (waiting) o.machine.sleep(0.01);
  }
  const std::string vm = is_virtual(o.machine) ? "; this is a virtual machine, whose host keeps the counters" : "";
  std::vector<std::unique_ptr<Meter>> kept;
  for (std::size_t i = 0; i < found.meters.size(); ++i) {
    const MeterInfo& info = found.meters[i]->info();
    if (alive[i])
      kept.push_back(std::move(found.meters[i]));
    else
      found.unavailable.push_back(
          {info.name, info.scope, fmt::format("{} did not change for {} s{}", info.detail, o.settle_s, vm)});
  }
  found.meters = std::move(kept);
}

void merge(Meters& all, Meters found) {
  for (auto& m : found.meters) {
    if (has_scope(all, m->info().scope))
      all.unavailable.push_back({m->info().name, m->info().scope, "read by another meter already"});
    else
      all.meters.push_back(std::move(m));
  }
  for (auto& u : found.unavailable) all.unavailable.push_back(std::move(u));
}

std::string reasons(const Meters& found, const std::string& scope_prefix) {
  std::string text;
  for (const auto& u : found.unavailable)
    if (u.scope.rfind(scope_prefix, 0) == 0)
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", u.meter, u.reason);
  return text;
}

Meters tested(Meters found, const OpenOptions& o) {
  drop_frozen(found, o);
  return found;
}

Meters open_rapl(const OpenOptions& o) {
  Meters all = tested(open_perf(o.machine, o.perf), o);
  merge(all, tested(open_powercap(o.machine), o));
  return all;
}

Meters open_one(const std::string& name, const OpenOptions& o) {
  if (name == "rapl") return open_rapl(o);
  if (name == "rapl-perf") return tested(open_perf(o.machine, o.perf), o);
  if (name == "rapl-powercap") return tested(open_powercap(o.machine), o);
  if (name == "nvml") return tested(open_nvml(o.machine, o.nvml), o);
  if (name == "amd") return tested(open_amd(o.machine, o.amd_visible), o);
  if (name == "dcmi") return tested(open_dcmi(o.machine, o.ipmi(o.machine)), o);
  if (name == "cray") return tested(open_cray(o.machine), o);
  if (name == "hwmon") return tested(open_hwmon(o.machine), o);
  if (name == "daemon") {
    Meters none;
    none.unavailable.push_back({"daemon", "node", "this command does not ask the energy daemon"});
    return o.daemon ? o.daemon() : std::move(none);
  }
  if (name.starts_with("redfish:")) {
    const RedfishUrl url = parse_redfish_url(name.substr(8), host_name());
    return tested(open_redfish(o.machine, url, o.redfish(url)), o);
  }
  if (name.starts_with("replay:")) return open_replay(o.machine, name.substr(7));
  if (name.starts_with("replay-clock:")) return open_replay(o.machine, name.substr(13), ReplayTime::kClock);
  throw UsageError("energy.meters: unknown meter '{}'{}; there are {}", name, did_you_mean(name, meter_names()),
                   fmt::join(meter_names(), ", "));
}

}  // namespace

OpenOptions options_of_process() {
  const VisibleGpus visible = visible_gpus(std::getenv);
  OpenOptions options;
  options.nvml.visible = visible.nvidia;
  options.amd_visible = visible.amd;
  return options;
}

const std::vector<std::string>& meter_names() {
  static const std::vector<std::string> names{
      "auto", "none",  "rapl", "rapl-perf",   "rapl-powercap", "nvml",        "amd",
      "cray", "hwmon", "dcmi", "redfish:URL", "daemon",        "replay:FILE", "replay-clock:FILE"};
  return names;
}

Meters open_meters(const std::vector<std::string>& names, const OpenOptions& options) {
  Meters all;
  bool automatic = false;
  for (const std::string& name : names) {
    if (name == "none") {
      if (names.size() > 1) throw UsageError("energy.meters: 'none' stands alone");
      return all;
    }
    if (name == "auto") {
      automatic = true;
      for (const char* kind : {"rapl", "nvml", "amd", "cray", "hwmon"}) merge(all, open_one(kind, options));
      if (options.daemon) merge(all, open_one("daemon", options));  // last: what the process reads itself is finer
      continue;
    }
    Meters found = open_one(name, options);
    if (found.meters.empty())
      throw UsageError("energy.meters asks for '{}', which has no reading here: {}", name, reasons(found, ""));
    merge(all, std::move(found));
  }
  if (automatic && !reads_processor(all))
    all.meters.push_back(std::make_unique<NullMeter>("cpu-package", reasons(all, "cpu-package")));
  // A GPU that exists but cannot be read gets a null meter with its reason: it must not be omitted from the totals
  // silently.
  for (const auto& u : all.unavailable)
    if ((u.meter == "nvml" || u.meter == "amd") && u.scope != "gpu" && !has_scope(all, u.scope))
      all.meters.push_back(std::make_unique<NullMeter>(u.scope, u.reason));
  choose_counted(all);
  return all;
}

}  // namespace molen::energy
