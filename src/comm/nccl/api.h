// The functions of NCCL and of the CUDA runtime that the communicator calls, loaded at run time. The declarations
// follow nccl.h of 2.14 to 2.32 (the values and layouts used here did not change between them) and cuda_runtime_api.h
// of CUDA 12 and 13. rccl.h and, with other names, hip_runtime_api.h of ROCm 6 and 7 have the same values and layouts.
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>

#include "comm/nccl/nccl.h"

namespace molen::comm::nccl {

using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t, hipStream_t

struct UniqueId {
  char bytes[128];
};

// ncclResult_t
inline constexpr int kSuccess = 0, kInProgress = 7;
// ncclDataType_t
inline constexpr int kUint8 = 1, kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9;
// ncclRedOp_t
inline constexpr int kSum = 0, kMax = 2, kMin = 3;
// cudaError_t, cudaMemcpyKind, cudaMemoryType, cudaStreamCreateWithFlags
inline constexpr int kInvalidValue = 1, kNotReady = 600, kCopyDefault = 4, kUnregistered = 0, kDeviceMemory = 2;
inline constexpr unsigned kNonBlocking = 1;

inline constexpr int kOldest = 21400;          // 2.14, encoded as in ncclGetVersion
inline constexpr int kOldestHip = 60'000'000;  // 6.0, encoded as in hipRuntimeGetVersion

// ncclConfig_t of 2.14; newer libraries use defaults for their later fields, according to `size` and `version`.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldest;
  int blocking = 0;
  int padding = INT_MIN;  // "undefined", because 2.17 has cgaClusterSize at this place
};
static_assert(sizeof(Config) == 24 && offsetof(Config, blocking) == 16);

// cudaPointerAttributes; the runtime writes 24 bytes (CUDA 12), 32 (HIP) or 88 (CUDA 13).
struct PointerAttributes {
  int type = 0, device = 0;
  void *device_pointer = nullptr, *host_pointer = nullptr;
  long reserved[28] = {};
};

struct Api {
  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*init_rank)(Comm*, int ranks, UniqueId, int rank, Config*) = nullptr;
  int (*finalize)(Comm) = nullptr;
  int (*destroy)(Comm) = nullptr;
  int (*abort)(Comm) = nullptr;
  int (*async_error)(Comm, int*) = nullptr;
  int (*count)(Comm, int*) = nullptr;
  int (*user_rank)(Comm, int*) = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int type, int op, Comm, Stream) = nullptr;
  int (*reduce)(const void*, void*, std::size_t, int type, int op, int root, Comm, Stream) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t received, int type, int op, Comm, Stream) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t sent, int type, Comm, Stream) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int type, int root, Comm, Stream) = nullptr;
  int (*send)(const void*, std::size_t, int type, int peer, Comm, Stream) = nullptr;
  int (*recv)(void*, std::size_t, int type, int peer, Comm, Stream) = nullptr;
  // Null when an older library lacks the function.
  int (*split)(Comm, int color, int key, Comm*, Config*) = nullptr;  // 2.18
  const char* (*last_error)(Comm) = nullptr;

  int (*device_count)(int*) = nullptr;
  int (*set_device)(int) = nullptr;
  int (*stream_create)(Stream*, unsigned flags) = nullptr;
  int (*stream_destroy)(Stream) = nullptr;
  int (*stream_query)(Stream) = nullptr;
  int (*allocate)(void**, std::size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*copy)(void* to, const void* from, std::size_t, int kind, Stream) = nullptr;
  int (*fill)(void*, int value, std::size_t, Stream) = nullptr;
  int (*attributes)(PointerAttributes*, const void*) = nullptr;
  int (*clear_error)() = nullptr;
  const char* (*runtime_error)(int) = nullptr;

  int version = 0;
  bool hip = false;
  std::string nccl_file, runtime_file;

  const char* runtime() const { return hip ? "HIP" : "CUDA"; }
};

// Opens both libraries and finds all functions; throws UsageError. The libraries stay open until the process ends,
// because they start their own threads.
std::shared_ptr<const Api> load(const NcclOptions& options);

// Returns "2.14.3" for 21403.
std::string version_text(int version);

}  // namespace molen::comm::nccl
