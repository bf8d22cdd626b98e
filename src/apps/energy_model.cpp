#include "apps/energy_model.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/host_name.h"
#include "energy/coverage.h"
#include "energy/cpu_load.h"
#include "energy/open.h"
#include "energy/power_calibration.h"
#include "sim/described_power.h"

namespace molen::apps {
namespace {

constexpr const char* kKey = "--model";

bool gpus_here() {
  return energy::has_gpus(energy::Machine(), energy::visible_gpus(std::getenv));
}

struct CalibrateArguments {
  std::string output;
  std::vector<std::string> meters{"auto"};
  double seconds = 5.0, settle = 1.0;
  int rounds = 3;
};

int run_power_calibration(const CalibrateArguments& a) {
  const energy::Machine machine;
  energy::CpuLoad load;
  energy::CalibrationLoads loads{a.seconds, a.settle, a.rounds, [&](int threads) { load.run_on(threads); },
                                 [](const std::string& line) {
                                   fmt::print("{}\n", line);
                                   std::fflush(stdout);
                                 }};
  auto calibration =
      energy::calibrate_power(energy::open_meters(a.meters, energy::options_of_process()), machine, loads, gpus_here());
  calibration.host = host_name();
  write_file_atomic(a.output, energy::to_json(calibration).dump(2) + "\n");
  for (const auto& part : calibration.parts)
    fmt::print("{}: {:.4g} W idle ({:.4g} to {:.4g}), {:.4g} W busy ({:.4g} to {:.4g}), by {}\n", part.scope,
               part.points.front().watts.value, part.points.front().watts.least, part.points.front().watts.most,
               part.points.back().watts.value, part.points.back().watts.least, part.points.back().watts.most,
               part.meter);
  for (const std::string& left_out : calibration.left_out) fmt::print("left out: {}\n", left_out);
  fmt::print("wrote {}; machines of this kind estimate by it with energy.model = \"{}\"\n", a.output, a.output);
  return kOk;
}

}  // namespace

void add_model_options(CLI::App& verb, ModelArguments& arguments) {
  verb.add_option(kKey, arguments.model,
                  "what estimates parts that no meter reads, as energy.model: off, on (by --cluster), or a file of "
                  "`molen energy calibrate`")
      ->capture_default_str();
  verb.add_option("--cluster", arguments.cluster, "the description of a cluster whose figures --model takes");
}

std::unique_ptr<energy::PowerModel> open_model_here(const ModelArguments& arguments, const energy::Meters& measured) {
  const auto cluster = arguments.cluster.empty() ? std::nullopt : std::optional(arguments.cluster);
  if (cluster && arguments.model == "off")
    throw UsageError("--cluster: its figures are for estimates, and --model is off");
  const auto figures = sim::power_figures(arguments.model, cluster, kKey);
  if (!figures) return nullptr;
  energy::ModelOptions options;
  options.nvml = energy::options_of_process().nvml;
  options.read_every_s = energy::kModelWindowS;
  options.key = kKey;
  return energy::open_model(*figures, measured, gpus_here(), options);
}

void add_power_calibration_verb(CLI::App& energy, Chosen& chosen) {
  CLI::App* verb = energy.add_subcommand(
      "calibrate",
      "measures the power of this machine with none to all of its processors busy, into a file from which energy.model "
      "estimates the power of machines of this kind whose meters cannot be read; keep the machine free of other work");
  auto o = std::make_shared<CalibrateArguments>();
  verb->add_option("--output", o->output, "file to write (docs/formats/power.md)")->required();
  verb->add_option("--meters", o->meters, fmt::format("{}", fmt::join(energy::meter_names(), ", ")));
  verb->add_option("--seconds", o->seconds, "seconds of each measurement")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  verb->add_option("--settle", o->settle, "seconds to wait after each change of the load")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  verb->add_option("--rounds", o->rounds, "measurements of each load; they give the bounds of the estimates")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  verb->callback([&chosen, o] { chosen.action = [=] { return run_power_calibration(*o); }; });
}

}  // namespace molen::apps
