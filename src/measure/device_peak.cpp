#include "measure/device_peak.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <exception>
#include <initializer_list>
#include <limits>

#include "base/processor.h"
#include "measure/precision.h"
#include "measure/rates.h"

namespace molen::measure {
namespace {

// The machine is measured only once, so this is long enough to include a moment without other work.
constexpr double kMeasureSeconds = 1.0;

struct Published {
  std::string_view name;  // without "NVIDIA ", which older drivers leave out
  double fp32, half;      // TFLOP/s; half: bf16 and fp16, dense
  std::string_view sheet;
};
// From the vendors' data sheets. NVIDIA's sheets give the bf16 rates with sparsity: these are halved. fp32 is the rate
// of the CUDA cores; on AMD it is the rate of the matrix cores, which its libraries use for fp32 GEMMs. Names are
// exact: other parts of the same family (A100-SXM-64GB, H100 NVL) have other rates.
constexpr Published kTable[] = {
    {"A100-SXM4-40GB", 19.5, 312, "NVIDIA A100 data sheet, June 2021"},
    {"A100-SXM4-80GB", 19.5, 312, "NVIDIA A100 data sheet, June 2021"},
    {"A100-PCIE-40GB", 19.5, 312, "NVIDIA A100 data sheet, June 2021"},
    {"A100 80GB PCIe", 19.5, 312, "NVIDIA A100 data sheet, June 2021"},
    {"H100 80GB HBM3", 67, 989.5, "NVIDIA H100 data sheet, SXM"},
    {"H100 PCIe", 51, 756.5, "NVIDIA H100 data sheet, PCIe"},
    {"H200", 67, 989.5, "NVIDIA H200 data sheet, SXM"},
    {"GH200 120GB", 67, 989.5, "NVIDIA GH200 data sheet"},
    {"GH200 480GB", 67, 989.5, "NVIDIA GH200 data sheet"},
    {"B200", 80, 2250, "NVIDIA HGX B200 data sheet, by 8"},
    {"AMD Instinct MI250X", 47.85, 191.5, "AMD Instinct MI250X data sheet, one GCD of two"},
    {"AMD Instinct MI300X", 163.4, 1307.4, "AMD Instinct MI300X data sheet"},
};

// Returns what an earlier attempt measured under the same conditions; NaN otherwise. A file that cannot be read counts
// as none, because measuring again costs little.
double measured_before(const std::optional<std::filesystem::path>& environment, const std::string& conditions,
                       std::string& source) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (!environment || !std::filesystem::exists(*environment)) return kNone;
  try {
    const Json j = read_json(*environment);
    const Json& peak = j.at("device_peak");
    const auto text = peak.at("source").get<std::string>();
    if (j.at("cpu").get<std::string>() != cpu_model() || !text.ends_with(conditions)) return kNone;
    const double flops = peak.at("flops_per_s").get<double>();
    if (!(flops > 0) || std::isinf(flops)) return kNone;
    source = text;
    return flops;
  } catch (const std::exception&) {
    return kNone;
  }
}

DevicePeak measured_peak(const program::Setting& s, const plan::Machine& machine,
                         const std::optional<std::filesystem::path>& environment, comm::Communicator& world) {
  const std::string conditions = gemm_conditions(s, machine);
  DevicePeak peak;
  peak.conditions = conditions;
  double flops = std::numeric_limits<double>::quiet_NaN();
  const auto source = [&](const Rate& rate) {
    return fmt::format("measured on {}: {:.0f} GFLOP/s {}", rate.measured, rate.flops_per_s * 1e-9, conditions);
  };
  if (world.rank() == 0) {
    flops = measured_before(environment, conditions, peak.source);
    if (const auto kept = std::isnan(flops) ? stored_rate(conditions) : std::nullopt)
      flops = kept->flops_per_s, peak.source = source(*kept);
  }
  world.broadcast(&flops, 1, DType::kF64, 0);
  if (std::isnan(flops)) {
    world.barrier();  // all ranks of a host measure at once: they share its memory and its clock
    flops = measure_gemm(s.compute, s.threads, kMeasureSeconds) * 1e9;
    world.all_reduce(&flops, 1, DType::kF64, comm::Reduce::kSum);
    flops /= world.size();
    if (world.rank() == 0) peak.source = source(store_rate(conditions, flops));
  }
  peak.flops_per_s = flops;
  return peak;
}

// Returns the entry point `name` of the first of `libraries` that exists. The libraries are already loaded when
// libtorch uses them, and they stay loaded.
void* entry(std::initializer_list<const char*> libraries, const char* name) {
  for (const char* library : libraries)
    if (void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL))
      if (void* symbol = ::dlsym(handle, name)) return symbol;
  return nullptr;
}

}  // namespace

DevicePeak published_peak(std::string_view device_name, DType compute) {
  std::string_view name = device_name;
  if (name.starts_with("NVIDIA ")) name.remove_prefix(7);
  for (const Published& p : kTable) {
    if (p.name != name) continue;
    const bool half = compute == DType::kBF16 || compute == DType::kF16;
    if (!half && compute != DType::kF32)
      return {std::nullopt, fmt::format("no peak of {} in {} is in molen's table", device_name, name_of(compute))};
    const double tflops = half ? p.half : p.fp32;
    return {tflops * 1e12, fmt::format("published: {} TFLOP/s dense {} ({})", tflops, name_of(compute), p.sheet)};
  }
  return {std::nullopt, device_name.empty() ? "the driver gives no name of the device"
                                            : fmt::format("no peak of \"{}\" is in molen's table", device_name)};
}

std::string gpu_name(int index) {
  std::array<char, 257> text{};
  constexpr int kSize = 256;
  // CUDA's driver interface and HIP's: in both, 0 is success and the visible devices are numbered.
  const auto init = reinterpret_cast<int (*)(unsigned)>(entry({"libcuda.so.1"}, "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(entry({"libcuda.so.1"}, "cuDeviceGet"));
  const auto name = reinterpret_cast<int (*)(char*, int, int)>(entry({"libcuda.so.1"}, "cuDeviceGetName"));
  int device = 0;
  if (init && get && name && init(0) == 0 && get(&device, index) == 0 && name(text.data(), kSize, device) == 0)
    return text.data();
  const auto hip = reinterpret_cast<int (*)(char*, int, int)>(
      entry({"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"}, "hipDeviceGetName"));
  if (hip && hip(text.data(), kSize, index) == 0) return text.data();
  return "";
}

std::string gemm_conditions(const program::Setting& s, const plan::Machine& machine) {
  std::string text =
      fmt::format("{} GEMM {}, {} thread{}", name_of(s.compute), kMeasuredGemm, s.threads, s.threads == 1 ? "" : "s");
  if (s.compute == DType::kF32) text += fmt::format(", by {}", math::name_of(math::gemm_library()));
  if (machine.ranks > 1)
    text += fmt::format(", mean of {} ranks ({} of a host) at once", machine.ranks, machine.local_ranks);
  return text;
}

DevicePeak find_device_peak(const program::Setting& setting, const plan::Machine& machine,
                            const std::optional<std::filesystem::path>& environment, comm::Communicator& world) {
  if (setting.kernels == arch::Kernels::kReference)
    return {std::nullopt, fmt::format("the reference kernels ({}) are written to be checked, not to be fast",
                                      name_of(setting.compute))};
  if (machine.cuda) return published_peak(gpu_name(machine.device), setting.compute);
  if (setting.compute != DType::kF32 && setting.compute != DType::kBF16)
    return {std::nullopt, fmt::format("{} GEMMs are not measured on a CPU", name_of(setting.compute))};
  return measured_peak(setting, machine, environment, world);
}

Json to_json(const DevicePeak& peak) {
  return {{"flops_per_s", peak.flops_per_s ? Json(*peak.flops_per_s) : Json(nullptr)}, {"source", peak.source}};
}

}  // namespace molen::measure
