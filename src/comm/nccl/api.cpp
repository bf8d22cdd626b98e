#include "comm/nccl/api.h"

#include <dlfcn.h>

#include "base/error.h"

namespace molen::comm::nccl {
namespace {

struct Library {
  void* handle = nullptr;
  std::string file;
};

Library open_first(const char* what, const std::vector<std::string>& files) {
  for (const std::string& file : files)
    if (void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return {handle, file};
  std::string tried;
  for (const std::string& file : files) {
    if (void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return {handle, file};
    const char* why = ::dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", why != nullptr ? why : file.c_str());
  }
  throw UsageError("nccl: no {}: {}; put its folder into LD_LIBRARY_PATH, or choose device.communicator = \"mpi\"",
                   what, tried.empty() ? "no file to look for" : tried);
}

template <class F>
void find(const Library& library, const char* symbol, F*& function, bool required = true) {
  function = reinterpret_cast<F*>(::dlsym(library.handle, symbol));
  if (function == nullptr && required)
    throw UsageError("nccl: {} lacks {}; NCCL {} on CUDA 12, or as much of RCCL on ROCm 6, or newer are needed",
                     library.file, symbol, version_text(kOldest));
}

void find_nccl(const Library& library, Api& api) {
  find(library, "ncclGetVersion", api.get_version);
  if (const int error = api.get_version(&api.version); error != kSuccess)
    throw UsageError("nccl: ncclGetVersion of {} fails with {}", library.file, error);
  if (api.version < kOldest || api.version >= 30000)
    throw UsageError("nccl: {} is version {}; {} or newer, and below 3, is needed", library.file,
                     version_text(api.version), version_text(kOldest));
  find(library, "ncclGetUniqueId", api.get_unique_id);
  find(library, "ncclCommInitRankConfig", api.init_rank);
  find(library, "ncclCommFinalize", api.finalize);
  find(library, "ncclCommDestroy", api.destroy);
  find(library, "ncclCommAbort", api.abort);
  find(library, "ncclCommGetAsyncError", api.async_error);
  find(library, "ncclCommCount", api.count);
  find(library, "ncclCommUserRank", api.user_rank);
  find(library, "ncclGetErrorString", api.error_string);
  find(library, "ncclGroupStart", api.group_start);
  find(library, "ncclGroupEnd", api.group_end);
  find(library, "ncclAllReduce", api.all_reduce);
  find(library, "ncclReduce", api.reduce);
  find(library, "ncclReduceScatter", api.reduce_scatter);
  find(library, "ncclAllGather", api.all_gather);
  find(library, "ncclBroadcast", api.broadcast);
  find(library, "ncclSend", api.send);
  find(library, "ncclRecv", api.recv);
  find(library, "ncclCommSplit", api.split, false);
  find(library, "ncclGetLastError", api.last_error, false);
}

// HIP has CUDA's functions under other names. Its memory types had other numbers before ROCm 6, so older versions are
// refused.
void find_runtime(const Library& library, Api& api) {
  api.hip = ::dlsym(library.handle, "hipGetDeviceCount") != nullptr;
  const auto function = [&](const char* name, auto& f) {
    find(library, fmt::format("{}{}", api.hip ? "hip" : "cuda", name).c_str(), f);
  };
  if (api.hip) {
    int (*get_version)(int*) = nullptr;
    function("RuntimeGetVersion", get_version);
    int version = 0;
    if (const int error = get_version(&version); error != 0)
      throw UsageError("nccl: hipRuntimeGetVersion of {} fails with {}", library.file, error);
    if (version < kOldestHip)
      throw UsageError("nccl: {} is HIP {}.{}; ROCm 6 or newer is needed", library.file, version / 10'000'000,
                       version / 100'000 % 100);
  }
  function("GetDeviceCount", api.device_count);
  function("SetDevice", api.set_device);
  function("StreamCreateWithFlags", api.stream_create);
  function("StreamDestroy", api.stream_destroy);
  function("StreamQuery", api.stream_query);
  function("Malloc", api.allocate);
  function("Free", api.free);
  function("MemcpyAsync", api.copy);
  function("MemsetAsync", api.fill);
  function("PointerGetAttributes", api.attributes);
  function("GetLastError", api.clear_error);
  function("GetErrorString", api.runtime_error);
}

}  // namespace

std::string version_text(int version) {
  // Up to 2.8 the code was 1000 * major + 100 * minor + patch.
  if (version < 10000) return fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::shared_ptr<const Api> load(const NcclOptions& options) {
  auto api = std::make_shared<Api>();
  const Library runtime = open_first("CUDA or HIP runtime library", options.runtime);
  api->runtime_file = runtime.file;
  find_runtime(runtime, *api);
  const Library nccl = api->hip ? open_first("RCCL library", options.rccl) : open_first("NCCL library", options.nccl);
  api->nccl_file = nccl.file;
  find_nccl(nccl, *api);
  return api;
}

}  // namespace molen::comm::nccl
