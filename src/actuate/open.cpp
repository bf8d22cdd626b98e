#include "actuate/open.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "actuate/nvml.h"
#include "actuate/sysfs.h"
#include "energy/visible.h"

namespace molen::actuate {
namespace {

void append(Actuators& all, Actuators found) {
  for (auto& a : found.actuators) all.actuators.push_back(std::move(a));
  for (auto& u : found.unavailable) all.unavailable.push_back(std::move(u));
}

std::string present_text(const Actuator& actuator) {
  const auto now = actuator.present();
  return now ? quantity_text(actuator.info().kind, now.value()) : "unknown";
}

}  // namespace

OpenOptions options_here() {
  OpenOptions options;
  options.nvml.visible = energy::visible_gpus(std::getenv).nvidia;
  options.amd_visible = std::getenv("ROCR_VISIBLE_DEVICES") != nullptr || std::getenv("HIP_VISIBLE_DEVICES") != nullptr;
  return options;
}

Actuators open_actuators(const OpenOptions& options) {
  Actuators all = open_cpufreq(options.machine);
  append(all, open_uncore(options.machine));
  append(all, open_powercap_limits(options.machine));
  append(all, open_nvml_settings(options.machine, options.nvml));
  append(all, open_amdgpu(options.machine, options.amd_visible));
  std::stable_sort(all.actuators.begin(), all.actuators.end(),
                   [](const auto& a, const auto& b) { return a->info().scope < b->info().scope; });
  return all;
}

std::string list_text(const Actuators& actuators) {
  std::string text;
  for (const auto& a : actuators.actuators) {
    const ActuatorInfo& info = a->info();
    text += fmt::format("{:<16} {:<14} {} to {}, now {}: {} ({}{})\n", info.scope, info.name,
                        quantity_text(info.kind, a->least()), quantity_text(info.kind, a->most()), present_text(*a),
                        info.control, info.detail, info.through.empty() ? "" : "; through the " + info.through);
  }
  if (text.empty()) text = "no clock or power limit of this machine can be set\n";
  if (!actuators.unavailable.empty()) text += "\ncannot be set:\n";
  for (const auto& u : actuators.unavailable) text += fmt::format("{:<16} {:<14} {}\n", u.scope, u.meter, u.reason);
  return text;
}

Json list_json(const Actuators& actuators) {
  Json available = Json::array(), unavailable = Json::array();
  for (const auto& a : actuators.actuators) {
    const ActuatorInfo& info = a->info();
    const auto now = a->present();
    available.push_back({{"id", info.id},
                         {"scope", info.scope},
                         {"actuator", info.name},
                         {"control", info.control},
                         {"kind", name_of(info.kind)},
                         {"unit", unit_of(info.kind)},
                         {"least", a->least()},
                         {"most", a->most()},
                         {"step", info.step},
                         {"values", info.values},
                         {"present", now ? Json(now.value()) : Json(nullptr)},
                         {"files", info.detail},
                         {"through", info.through.empty() ? Json(nullptr) : Json(info.through)}});
  }
  for (const auto& u : actuators.unavailable)
    unavailable.push_back({{"scope", u.scope}, {"actuator", u.meter}, {"reason", u.reason}});
  return {{"available", available}, {"unavailable", unavailable}};
}

}  // namespace molen::actuate
