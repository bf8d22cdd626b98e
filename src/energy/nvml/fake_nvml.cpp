// A library with NVML's functions and devices that the test sets, to exercise loading and reading without a GPU.
#include <cstdio>
#include <cstring>

namespace {
struct FakeGpu {
  unsigned long long millijoules = 0;
  unsigned milliwatts = 0;
  int energy_error = 0, power_error = 0;
};
FakeGpu gpus[8];
unsigned gpu_count = 2;
int init_error = 0, users = 0;
const char* model = "Fake GPU";
unsigned mig = 0;
}  // namespace

extern "C" {

// The test's controls.
void fake_nvml_set(unsigned index, unsigned long long millijoules, unsigned milliwatts, int energy_error,
                   int power_error) {
  gpus[index] = {millijoules, milliwatts, energy_error, power_error};
}
void fake_nvml_reset(unsigned count, int error) {
  for (FakeGpu& gpu : gpus) gpu = {};
  gpu_count = count;
  init_error = error;
  model = "Fake GPU";
  mig = 0;
}
void fake_nvml_model(const char* name) {
  model = name;
}
void fake_nvml_mig(unsigned mode) {
  mig = mode;
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
const char* nvmlErrorString(int error) {
  return error == 3   ? "Not Supported"
         : error == 4 ? "Insufficient Permissions"
         : error == 9 ? "Driver Not Loaded"
                      : "Unknown Error";
}

}  // extern "C"
