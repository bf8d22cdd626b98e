#include "measure/doctor.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include "actuate/open.h"
#include "base/units.h"
#include "comm/mpi/mpi.h"
#include "daemon/client.h"
#include "energy/commands.h"
#include "energy/coverage.h"
#include "energy/open.h"
#include "measure/machine.h"
#include "measure/precision.h"
#include "measure/rates.h"
#include "plan/resolve.h"

namespace molen::measure {

namespace {

constexpr double kDoctorSeconds = 0.1;

// Returns the meters of this machine, as `molen energy list` shows them, and the parts that none of them measures.
Json energy_here(const energy::Meters& meters) {
  Json j = energy::list_json(meters);
  const energy::Machine machine;
  j["partial"] = energy::coverage_of(meters, energy::has_gpus(machine, energy::visible_gpus(std::getenv))).partial();
  return j;
}

void print_energy(const energy::Meters& meters, const Json& described) {
  const auto partial = described.at("partial").get<std::string>();
  fmt::print("\nenergy of a step: {}\n{}", partial.empty() ? "all parts of this machine are measured" : partial,
             energy::list_text(meters));
}

}  // namespace

int doctor(bool json, bool measure) {
  if (measure) forget_rates();
  Json j = describe_machine();
  const int threads = plan::auto_threads(1);
  const bool cuda = at::hasCUDA() && at::accelerator::deviceCount() > 0;
  const auto rates = precision_rates(threads, cuda ? 0 : -1);
  j["threads"] = threads;
  j["gemm_gflops"] = {{"fp32", rates.fp32}, {"bf16", rates.bf16}};
  j["rates_file"] = cuda || rates_file().empty() ? Json(nullptr) : Json(rates_file().string());
  const bool bf16 = rates.bf16 > rates.fp32;
  if (!cuda)
    for (const auto library : {math::GemmLibrary::kAten, math::GemmLibrary::kOneDnn})
      if (math::gemm_library_available(library))
        j["gemm_gflops"][fmt::format("fp32_{}", math::name_of(library))] =
            measure_gemm(DType::kF32, threads, kDoctorSeconds, library);
  j["precision_auto"] = bf16 ? "bf16" : "fp32";
  j["precision_reason"] = fmt::format(
      "measured{}: a layer's GEMMs run at {:.0f} GFLOP/s in fp32 and {:.0f} in bf16 on {} here: bf16 is {:.2f}x",
      rates.measured.empty() ? "" : " on " + rates.measured, rates.fp32, rates.bf16,
      cuda ? "CUDA device 0" : fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"), rates.bf16 / rates.fp32);
  const auto launched = comm::launch_environment();
  j["launcher"] = launched.size > 0
                      ? Json(fmt::format("{}: rank {} of {}", launched.source, launched.rank, launched.size))
                      : Json(nullptr);
  energy::OpenOptions options = energy::options_of_process();
  options.daemon = daemon::open_meters_here;
  const energy::Meters meters = energy::open_meters({"auto"}, options);
  j["energy"] = energy_here(meters);
  const actuate::Actuators settings = daemon::open_actuators_here();
  j["settings"] = actuate::list_json(settings);
  if (json) {
    fmt::print("{}\n", j.dump(2));
    return 0;
  }
  for (const auto& [key, value] : j.items())
    if (key != "energy" && key != "settings")
      fmt::print("{:<18} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  fmt::print("\nprecision.compute = \"auto\" chooses {}: {}\n", j["precision_auto"].get<std::string>(),
             j["precision_reason"].get<std::string>());
  if (!comm::mpi_available())
    fmt::print("MPI is not built in: one rank, or --ranks N threads; install libopenmpi-dev and build again\n");
  if (!at::hasCUDA()) fmt::print("no CUDA in this libtorch: cpu devices only\n");
  print_energy(meters, j["energy"]);
  fmt::print("\nclocks and power limits:\n{}", actuate::list_text(settings));
  return 0;
}

}  // namespace molen::measure
