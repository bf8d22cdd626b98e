#include "energy/uncertainty.h"

namespace molen::energy {

std::optional<double> resolution_j(const MeterInfo& info, double joules, double seconds) {
  if (!(info.joules_per_tick > 0 && info.changes_every.value > 0 && seconds > 0)) return std::nullopt;
  return joules / seconds * info.changes_every.value + info.joules_per_tick;
}

const char* accuracy_of(const std::string& meter) {
  if (meter.rfind("rapl", 0) == 0)
    return "no maker states a figure; Intel's servers since Haswell-EP measure at the regulator, AMD's Zen 2 estimates "
           "(arXiv 2108.00808)";
  if (meter == "nvml")
    return "the maker states no figure; A100 and H100 sample power a quarter of the time (arXiv 2312.02741)";
  if (meter == "dcmi" || meter == "redfish") return "makers state no figure, nor the period of the averages";
  if (meter == "replay") return "that of the meter that was recorded";
  if (meter == "daemon") return "that of the meter that the daemon reads";
  return "the maker states no figure";
}

std::string uncertainty_text(const MeterInfo& info) {
  std::string text;
  if (info.joules_per_tick > 0 && info.changes_every.value > 0)
    text = fmt::format("+- {:.3g} J and {:.3g} s of power", info.joules_per_tick, info.changes_every.value);
  else if (info.joules_per_tick > 0)
    text = fmt::format("ticks of {:.3g} J at unknown times", info.joules_per_tick);
  else if (info.read_every.value > 0)
    text = fmt::format("power sampled every {:.3g} s", info.read_every.value);
  else
    text = "power sampled";
  return fmt::format("{}; accuracy unknown: {}", text, accuracy_of(info.name));
}

Json uncertainty_json(const MeterInfo& info) {
  const auto if_any = [](double value) { return value > 0 ? Json(value) : Json(); };
  return {{"tick_j", if_any(info.joules_per_tick)},
          {"changes_every_s", if_any(info.changes_every.value)},
          {"samples_every_s", if_any(info.joules_per_tick > 0 ? 0.0 : info.read_every.value)},
          {"accuracy", Json()},
          {"accuracy_note", accuracy_of(info.name)}};
}

}  // namespace molen::energy
