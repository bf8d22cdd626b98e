// Ranks with one GPU each, over NCCL on NVIDIA GPUs and over RCCL, which has the same functions, on AMD GPUs. Neither
// is needed to build, because the libraries are loaded when a communicator is opened. If they are missing, open_nccl
// throws a UsageError that names those it tried. These comments name NCCL and CUDA; the same holds for RCCL and HIP.
//
// Memory: all buffers are device memory of the communicator's GPU (managed or pinned host memory is accepted, plain
// host memory is refused before anything is sent). Host values go over the bootstrap communicator.
//
// Order with other streams: a call enqueues on the communicator's own non-blocking stream and returns when that stream
// is done, so any stream may use the results at once. A call's inputs must be complete when it is made: either the
// caller has synchronised the stream that wrote them, or `NcclOptions::before` makes the communicator's stream wait for
// that stream.
//
// Differences from the contract of communicator.h:
//   - kMax and kMin of floats: NCCL may drop a NaN, so these gather all ranks' elements and combine them on the host in
//     rank order. Exact, and slow: meant for flags and norms, not for gradients.
//   - kSum: added by NCCL, in an order that depends on its algorithm and topology. The same layout on the same machine
//     gives the same bits only while NCCL repeats its choice (NCCL_ALGO and NCCL_PROTO pin it). all_reduce and
//     reduce_scatter of the same data need not agree in the last bit. bf16 and fp16 sums may be rounded at every hop.
//   - counts that differ over ranks are not detected; `NcclOptions::timeout` turns the hang into an Error that names
//     the call.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "comm/communicator.h"

namespace molen::comm {

struct NcclOptions {
  // Library names, tried in this order after those that the process has already loaded (libtorch's own: two copies
  // would conflict). The runtime that is found decides whether NCCL or RCCL is opened.
  std::vector<std::string> runtime = {"libcudart.so.13", "libcudart.so.12", "libamdhip64.so.7", "libamdhip64.so.6",
                                      "libamdhip64.so"};
  std::vector<std::string> nccl = {"libnccl.so.2"};
  std::vector<std::string> rccl = {"librccl.so.1", "librccl.so"};
  Seconds timeout{0};  // of one call, creation included; 0: none
  // Called before each call's first operation with the communicator's cudaStream_t, e.g. to make it wait for an event.
  std::function<void(void* stream)> before;
};

// Opens one communicator over all ranks of `bootstrap`, which moves host memory. It uses `bootstrap` itself only while
// opening; it keeps a group split off `bootstrap`, for split and so that abort reaches all ranks. Collective over
// `bootstrap`: a rank that cannot open fails all of them. Each rank names its own CUDA device ordinal. Requires NCCL
// 2.14 (communicators that do not block the host) on CUDA 12, or RCCL of that version on ROCm 6. Throws UsageError when
// a library or the device is missing or too old, Error when NCCL fails.
//
// Any thread may call abort(). It wakes ranks of this process directly, and other processes through bootstrap's abort.
// NCCL's own failure on one rank ends the communicators of this process; the caller reports it to other processes with
// abort().
std::unique_ptr<Communicator> open_nccl(Communicator& bootstrap, int device, NcclOptions options = {});

}  // namespace molen::comm
