// A library with NVML's functions and devices that the test sets, to exercise loading and reading without a GPU. With
// FAKE_NVML_SETS_NOTHING it is that of a driver too old to set power limits and to lock clocks, which has the old name
// of the reasons for a clock.
#include <cstdio>
#include <cstring>

namespace {
struct FakeGpu {
  unsigned long long millijoules = 0;
  unsigned milliwatts = 0;
  int energy_error = 0, power_error = 0;
  unsigned limit = 700000;                   // mW
  unsigned lowest_mhz = 0, highest_mhz = 0;  // locked clocks; 0: not locked
  unsigned busy_percent = 0;
  unsigned sm_mhz = 0;  // 0: the GPU does not tell
  unsigned long long reasons = 0;
  unsigned instant = 0, average = 0;  // mW; 0: the GPU does not tell
};
FakeGpu gpus[8];
unsigned gpu_count = 2;
int init_error = 0, users = 0;
const char* model = "Fake GPU";
unsigned mig = 0;
int set_error = 0;
constexpr unsigned kLeastMilliwatts = 200000, kMostMilliwatts = 700000;
struct FakeField {
  unsigned id, scope;
  long long time_us, latency_us;
  unsigned type;
  int error;
  unsigned long long value;
};
struct FakePci {
  char legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char id[32];
};
}  // namespace

extern "C" {

// The test's controls.
void fake_nvml_set(unsigned index, unsigned long long millijoules, unsigned milliwatts, int energy_error,
                   int power_error) {
  FakeGpu& gpu = gpus[index];
  gpu.millijoules = millijoules, gpu.milliwatts = milliwatts;
  gpu.energy_error = energy_error, gpu.power_error = power_error;
}
void fake_nvml_reset(unsigned count, int error) {
  for (FakeGpu& gpu : gpus) gpu = {};
  gpu_count = count;
  init_error = error;
  model = "Fake GPU";
  mig = 0;
  set_error = 0;
}
void fake_nvml_set_error(int error) {
  set_error = error;
}
// The settings of a GPU: its limit in mW, and its locked clocks in MHz.
void fake_nvml_settings(unsigned index, unsigned* limit, unsigned* lowest, unsigned* highest) {
  *limit = gpus[index].limit, *lowest = gpus[index].lowest_mhz, *highest = gpus[index].highest_mhz;
}
void fake_nvml_model(const char* name) {
  model = name;
}
void fake_nvml_mig(unsigned mode) {
  mig = mode;
}
void fake_nvml_busy(unsigned index, unsigned percent) {
  gpus[index].busy_percent = percent;
}
void fake_nvml_clock(unsigned index, unsigned mhz, unsigned long long reasons) {
  gpus[index].sm_mhz = mhz, gpus[index].reasons = reasons;
}
void fake_nvml_power_now(unsigned index, unsigned instant, unsigned average) {
  gpus[index].instant = instant, gpus[index].average = average;
}
int fake_nvml_users() {
  return users;
}

int nvmlInit_v2() {
  return init_error != 0 ? init_error : (++users, 0);
}
int nvmlShutdown() {
  return --users, 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  return *count = gpu_count, 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= gpu_count) return 2;
  *device = &gpus[index];
  return 0;
}
// The text needs 96 bytes. For a shorter buffer this fails and writes nothing.
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned length) {
  if (length != 96) return 7;
  return std::snprintf(uuid, length, "GPU-%c0000000", "abcdefgh"[static_cast<FakeGpu*>(device) - gpus]), 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned length) {
  if (length != 96) return 7;
  return std::snprintf(name, length, "%s", model), 0;
}
int nvmlDeviceGetMigMode(void*, unsigned* now, unsigned* later) {
  return *now = mig, *later = 0, 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  const auto* gpu = static_cast<FakeGpu*>(device);
  *millijoules = gpu->millijoules;
  return gpu->energy_error;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  const auto* gpu = static_cast<FakeGpu*>(device);
  *milliwatts = gpu->milliwatts;
  return gpu->power_error;
}
// A percentage above 100 stands for a GPU that does not tell.
int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  rates[0] = static_cast<FakeGpu*>(device)->busy_percent, rates[1] = 0;
  return rates[0] > 100 ? 3 : 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, FakePci* pci) {
  *pci = {};
  pci->bus = 0x10 + static_cast<unsigned>(static_cast<FakeGpu*>(device) - gpus);
  return 0;
}
int nvmlDeviceGetPowerManagementLimit(void* device, unsigned* milliwatts) {
  return *milliwatts = static_cast<FakeGpu*>(device)->limit, 0;
}
int nvmlDeviceGetPowerManagementLimitConstraints(void*, unsigned* least, unsigned* most) {
  return *least = kLeastMilliwatts, *most = kMostMilliwatts, 0;
}
#ifndef FAKE_NVML_SETS_NOTHING
int nvmlDeviceSetPowerManagementLimit(void* device, unsigned milliwatts) {
  if (set_error != 0) return set_error;
  if (milliwatts < kLeastMilliwatts || milliwatts > kMostMilliwatts) return 2;
  return static_cast<FakeGpu*>(device)->limit = milliwatts, 0;
}
#endif
// Like the library, these two want to be told how long the list may be.
int nvmlDeviceGetSupportedMemoryClocks(void*, unsigned* count, unsigned* mhz) {
  if (*count < 2) return *count = 2, 7;
  mhz[0] = 2619, mhz[1] = 1593;
  return *count = 2, 0;
}
int nvmlDeviceGetSupportedGraphicsClocks(void*, unsigned memory_mhz, unsigned* count, unsigned* mhz) {
  if (memory_mhz != 2619) return 2;
  const unsigned clocks = (1980 - 345) / 15 + 1;
  if (*count < clocks) return *count = clocks, 7;
  for (unsigned i = 0; i < clocks; ++i) mhz[i] = 1980 - 15 * i;
  return *count = clocks, 0;
}
#ifndef FAKE_NVML_SETS_NOTHING
int nvmlDeviceSetGpuLockedClocks(void* device, unsigned lowest, unsigned highest) {
  if (set_error != 0) return set_error;
  auto* gpu = static_cast<FakeGpu*>(device);
  return gpu->lowest_mhz = lowest, gpu->highest_mhz = highest, 0;
}
int nvmlDeviceResetGpuLockedClocks(void* device) {
  if (set_error != 0) return set_error;
  auto* gpu = static_cast<FakeGpu*>(device);
  return gpu->lowest_mhz = gpu->highest_mhz = 0, 0;
}
#endif
// Kind 1 is the clock of the multiprocessors.
int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) {
  *mhz = static_cast<FakeGpu*>(device)->sm_mhz;
  return kind != 1 ? 2 : *mhz == 0 ? 3 : 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int kind, unsigned* mhz) {
  return *mhz = 1980, kind != 1 ? 2 : 0;
}
#ifdef FAKE_NVML_SETS_NOTHING
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
#endif
  return *reasons = static_cast<FakeGpu*>(device)->reasons, 0;
}
#ifndef FAKE_NVML_SETS_NOTHING
int nvmlDeviceGetFieldValues(void* device, int count, FakeField* fields) {
  const auto* gpu = static_cast<FakeGpu*>(device);
  for (int i = 0; i < count; ++i) {
    FakeField& field = fields[i];
    const unsigned power = field.id == 185 ? gpu->average : field.id == 186 ? gpu->instant : 0;
    field.error = field.scope != 0 ? 2 : power == 0 ? 3 : 0;
    field.type = 1,
    field.value = 0xdeadbeef00000000ULL | power;  // as the union of the library: its upper half is not set
  }
  return 0;
}
#endif
const char* nvmlErrorString(int error) {
  return error == 3   ? "Not Supported"
         : error == 4 ? "Insufficient Permissions"
         : error == 9 ? "Driver Not Loaded"
                      : "Unknown Error";
}

}  // extern "C"
