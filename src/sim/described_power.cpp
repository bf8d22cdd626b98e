#include "sim/described_power.h"

#include <vector>

#include "base/error.h"
#include "energy/power_calibration.h"
#include "sim/calibration.h"

namespace molen::sim {
namespace {

energy::Estimate watts_of(const cluster::Figure& figure) {
  return {figure.value, figure.value * (1.0 - figure.spread), figure.value * (1.0 + figure.spread)};
}

constexpr const char* kWouldGive =
    "`molen energy calibrate` measures figures on a machine of this kind whose meters can be read, and on GPUs the "
    "description of a cluster (--cluster) has some";

}  // namespace

energy::PowerFigures power_figures_of(const cluster::Cluster& c) {
  energy::PowerFigures figures;
  const cluster::Figure &host = c.node.host_power, &idle = c.device.idle_power, &peak = c.device.peak_power;
  figures.by_cpus.push_back({"host", energy::PowerCurve(std::vector<energy::PowerPoint>{{0.0, watts_of(host)}}),
                             fmt::format("{}: node.host_power ({}), whatever the processors do", c.name, host.source)});
  figures.of_each_gpu = energy::PartFigures{
      "gpu", energy::PowerCurve({{0.0, watts_of(idle)}, {1.0, watts_of(peak)}}),
      fmt::format("{}: device.idle_power ({}) and device.peak_power ({})", c.name, idle.source, peak.source)};
  figures.lacking = kWouldGive;
  return figures;
}

std::optional<energy::PowerFigures> power_figures(const std::string& model, const std::optional<std::string>& cluster,
                                                  const std::string& key) {
  if (model == "off") return std::nullopt;
  const bool described = cluster && !is_calibration(*cluster);
  if (model == "on" && !described)
    throw UsageError("{}: \"on\" takes the figures of a cluster's description, and {}; {}", key,
                     cluster ? fmt::format("--cluster names {}, a calibration of times without any power", *cluster)
                             : std::string("--cluster names none"),
                     kWouldGive);
  energy::PowerFigures figures;
  if (described) figures = power_figures_of(cluster::find(*cluster));
  figures.lacking = kWouldGive;
  if (model == "on") return figures;
  energy::PowerFigures measured;
  try {
    measured = energy::figures_of(energy::read_power_calibration(model), model);
  } catch (const Error& error) {
    throw UsageError("{}: {}; it may be \"off\", \"on\" or a file of `molen energy calibrate`", key, error.what());
  }
  measured.of_each_gpu = figures.of_each_gpu;
  measured.lacking = kWouldGive;
  return measured;
}

}  // namespace molen::sim
