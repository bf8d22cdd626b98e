// molen calibrate
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "apps/compute/functions.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/host_name.h"
#include "base/json.h"
#include "base/processor.h"
#include "base/suggest.h"
#include "comm/mpi/mpi.h"
#include "launch/world.h"
#include "math/gemm.h"
#include "measure/calibrate.h"
#include "plan/framework.h"
#include "plan/grid.h"
#include "plan/resolve.h"
#include "program/parts/part.h"
#include "sim/calibration.h"

namespace molen::apps {
namespace {

void print_calibrated(const sim::Calibration::Entry& entry) {
  fmt::print("calibrated {}: {} kinds of op on {} cores ({} physical: {}), calibration factor {:.3f}\n",
             entry.conditions.text(), entry.costs.fits().size(), entry.cores.logical, entry.cores.physical,
             entry.cores.affinity, entry.costs.calibration_factor());
  for (const auto& [kind, fit] : entry.costs.fits())
    fmt::print("  {:<28} {:>4} samples, typical {:>10}, spread {:>5.1f}%\n", kind, fit.samples,
               human(Seconds(fit.typical_s)), 100.0 * fit.residual);
}

// Reads the present content of `output`. Predictions transfer costs between its entries, so all must be of one machine.
sim::Calibration calibration_to_extend(const std::string& output, const std::string& cpu) {
  sim::Calibration all;
  if (fs::exists(output)) all = sim::read_calibration(output);
  if (!all.entries.empty() && all.cpu != cpu)
    throw UsageError("{}: holds measurements of another machine ({}, {}); this is {}: choose another --output", output,
                     all.host, all.cpu, cpu);
  const std::string gemm(math::name_of(math::gemm_library()));
  if (!all.entries.empty() && all.gemm != gemm)
    throw UsageError("{}: was measured while {} multiplied matrices; now {} does: choose another --output", output,
                     all.gemm, gemm);
  all.cpu = cpu;
  all.gemm = gemm;
  return all;
}

// Reads --compute. "auto" are no types yet.
std::vector<DType> types_of(const std::string& compute) {
  static const std::vector<std::string> known{"fp32", "bf16", "fp16", "fp64"};
  std::vector<DType> types;
  if (compute == "auto") return types;
  for (const std::string& name : plan::parts_of_list(compute)) {
    if (std::ranges::find(known, name) == known.end())
      throw UsageError("--compute: '{}' is no type to compute in; there are {}, a list such as fp32,fp64, and auto{}",
                       name, fmt::join(known, ", "), did_you_mean(name, known));
    const DType type = dtype_from_name(name);
    if (std::ranges::find(types, type) != types.end()) throw UsageError("--compute: {} is there twice", name);
    types.push_back(type);
  }
  return types;
}

// Takes from a configuration the conditions of its run, threads and type, and its width, beyond which nothing needs
// measuring.
void take_conditions(const ConfigOptions& options, measure::CalibrateOptions& o, std::string& compute, bool& flash) {
  if (!options.file && !options.model && options.sets.empty()) return;
  const config::Config c = load_config(options);
  if (c.device.kind == "cuda")
    throw UsageError("{}: `molen calibrate` measures processors; cuda devices cannot be measured yet",
                     c.where("device.kind"));
  plan::require_molen(c, "a calibration measures");
  if (o.threads == 0) o.threads = static_cast<int>(c.math.threads);
  if (compute == "auto") compute = c.precision.compute;
  flash = c.math.flash_attention;
  if (o.widest == 0 && (c.model.preset || c.model.family))
    o.widest = measure::calibrated_width(plan::resolve_architecture(c).hidden);
}

// Measures one entry after another within the time of the call, and writes the file after each.
class Calibrating {
 public:
  Calibrating(const CalibrateCall& call, bool flash)
      : call_(call),
        flash_(flash),
        until_(now().value + 60.0 * call.minutes),
        // Read before any measurement, so that errors are found at once.
        all_(calibration_to_extend(call.output, cpu_model())),
        progress_(make_progress("calibrate")) {}

  // Measures one entry; collective. The time that is left is divided evenly among this and the `later` entries.
  // `stage` is its name for the progress display.
  void measure(const launch::Launch& launch, comm::Communicator& world, const std::string& stage, DType type,
               int threads, std::size_t later) {
    measure::CalibrateOptions of = call_.options;
    of.threads = threads;
    of.compute = type;
    of.kernels = sim::calibrated_kernels(type);
    if (!flash_) of.other_kernels = program::without_flash(of.kernels, {.compute = type}).value();
    of.seconds = (until_ - now().value) / static_cast<double>(later + 1);
    std::set<std::string> measured;
    std::string last;
    auto entry = measure::calibrate(of, launch.communicator, world, [&](double share, const std::string& what) {
      progress_->at(stage, share, what);
      measured.insert(what);
      last = what;
    });
    if (world.rank() != 0) return;
    progress_->finish();
    progress_->note(
        fmt::format("{}: {} measurements, from {}, to {}", stage, measured.size(), *measured.begin(), last));
    keep(std::move(entry));
  }

  void finish() const {
    if (call_.format == "json") fmt::print("{}\n", added_.dump(2));
  }

 private:
  void keep(sim::Calibration::Entry entry) {
    all_.host = host_name();
    all_.created = utc_timestamp(wall_time());
    if (call_.format == "json")
      added_.push_back(sim::to_json(entry));
    else
      print_calibrated(entry);
    all_.replace(std::move(entry));
    sim::write_calibration(call_.output, all_);
  }

  const CalibrateCall& call_;
  bool flash_;
  double until_;
  sim::Calibration all_;
  std::unique_ptr<store::Progress> progress_;
  Json added_ = Json::array();
};

}  // namespace

int run_calibrate(const ConfigOptions& options, const CalibrateCall& given) {
  CalibrateCall call = given;
  bool flash = true;
  take_conditions(options, call.options, call.compute, flash);
  config::Config on_host;
  on_host.device.kind = "cpu";  // "auto" means the host here
  const bool launched = comm::launch_environment().size > 1;
  const bool configured = options.file || options.model || !options.sets.empty();
  const bool whole_machine = !launched && !configured && !options.ranks && call.options.threads == 0;
  const std::vector<measure::Team> teams =
      whole_machine ? measure::teams_of(plan::auto_threads(1))
                    : std::vector<measure::Team>{{options.ranks.value_or(1), call.options.threads}};
  std::vector<DType> types = types_of(call.compute);
  if (types.empty() && whole_machine) types = {DType::kF32, DType::kBF16};
  Calibrating calibrating(call, flash);
  for (std::size_t i = 0; i < teams.size(); ++i) {
    const auto launch =
        launch::resolve_launch(on_host, teams[i].ranks > 1 ? std::optional(teams[i].ranks) : options.ranks);
    const int threads = teams[i].threads > 0 ? teams[i].threads : plan::auto_threads(launch.machine.local_ranks);
    launch::run_ranks(launch, [&](comm::Communicator& world) {
      const std::vector<DType> here = types.empty() ? measure::likely_precisions(threads, world) : types;
      for (std::size_t k = 0; k < here.size(); ++k) {
        const std::string type(name_of(here[k]));
        const std::string stage = whole_machine ? fmt::format("{} x {} {}", teams[i].ranks, threads, type) : type;
        calibrating.measure(launch, world, stage, here[k], threads, (teams.size() - i) * here.size() - k - 1);
      }
    });
  }
  if (comm::launch_environment().rank == 0) calibrating.finish();
  return kOk;
}

}  // namespace molen::apps
