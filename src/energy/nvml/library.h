// NVIDIA's management library, which is loaded at run time, and the GPUs that the job may use. Meters read through it,
// and actuators set through it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace molen::energy {

// The part of NVML's C interface that molen uses. It is the same in nvml.h of every driver since 2017.
using NvmlDevice = void*;
inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlSmClock = 1;  // of the multiprocessors

struct NvmlUtilisation {  // nvmlUtilization_t, in percent
  unsigned gpu_percent, memory_percent;
};

struct NvmlPci {  // nvmlPciInfo_t
  char legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char id[32];
};

struct NvmlField {  // nvmlFieldValue_t
  unsigned id, scope;
  long long time_us, latency_us;
  unsigned type;  // of `value`; 1: unsigned
  int error;
  union {
    unsigned as_unsigned;
    unsigned long long whole;
  } value;
};
inline constexpr unsigned kNvmlPowerAverage = 185, kNvmlPowerInstant = 186;  // fields, in milliwatts

struct NvmlGpu {
  NvmlDevice device = nullptr;
  unsigned index = 0;               // as NVML counts
  std::string uuid, name, failure;  // failure: why this GPU cannot be used
  std::string address;              // on PCI, as Linux writes it: "0000:17:00.0"; empty: not known
};

class NvmlLibrary {
 public:
  // Loads and initialises the library; a failure says why there is none.
  static Result<std::shared_ptr<NvmlLibrary>> load(const std::string& file);
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  // Returns the GPUs that `visible` (indices or UUIDs, as in CUDA_VISIBLE_DEVICES; absent: all) names, in its order. A
  // word that names none gives a GPU with a failure. The result itself is a failure where no GPU is visible.
  Result<std::vector<NvmlGpu>> gpus(const std::optional<std::string>& visible) const;
  bool is_divided(const NvmlGpu& gpu) const;  // by MIG
  std::string why(int error) const;           // the library's own words
  // Returns the watts of a GPU alone, now (kNvmlPowerInstant) or over the last second (kNvmlPowerAverage: Ampere but
  // for the A100, and later); nothing where the driver or the GPU has no such field.
  std::optional<double> power_of(NvmlDevice device, unsigned field) const;

  // A function that this driver lacks is null.
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, NvmlDevice*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;  // milliwatts; the five up to here are always there
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*device_name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*mig_mode)(NvmlDevice, unsigned*, unsigned*) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*energy)(NvmlDevice, unsigned long long*) = nullptr;  // millijoules
  int (*utilisation)(NvmlDevice, NvmlUtilisation*) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;  // milliwatts
  int (*power_limit_default)(NvmlDevice, unsigned*) = nullptr;
  int (*power_limit_bounds)(NvmlDevice, unsigned*, unsigned*) = nullptr;
  int (*set_power_limit)(NvmlDevice, unsigned) = nullptr;
  int (*memory_clocks)(NvmlDevice, unsigned*, unsigned*) = nullptr;  // count and MHz
  int (*graphics_clocks)(NvmlDevice, unsigned, unsigned*, unsigned*) = nullptr;
  int (*lock_clocks)(NvmlDevice, unsigned, unsigned) = nullptr;  // MHz, lowest and highest
  int (*reset_clocks)(NvmlDevice) = nullptr;
  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;  // MHz of a kind of clock (kNvmlSmClock)
  int (*highest_clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*clock_reasons)(NvmlDevice, unsigned long long*) = nullptr;  // why it is not higher: bits of nvml.h
  int (*fields)(NvmlDevice, int, NvmlField*) = nullptr;
  const char* (*error_string)(int) = nullptr;

 private:
  explicit NvmlLibrary(void* handle) : handle_(handle) {}
  template <class F>
  bool get(const char* symbol, F*& function);
  std::vector<NvmlGpu> all_gpus(unsigned count) const;

  void* handle_;
  bool started_ = false;
};

}  // namespace molen::energy
