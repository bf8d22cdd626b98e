// Ranks with one NVIDIA GPU each, over NCCL. Nothing of NVIDIA is needed to build: libnccl and libcudart are opened
// when a communicator is, and where they are missing that is a UsageError that names what was looked for.
//
// Memory: all buffers are device memory of the communicator's GPU (managed or pinned host memory is accepted, plain
// host memory is refused before anything is sent). Host values go over the bootstrap communicator.
//
// Order with other streams: a call enqueues on the communicator's own non-blocking stream and returns when that stream
// is done, so results may be used from any stream at once. What a call reads must be complete when it is made (the
// caller has synchronised the stream that wrote it), or `NcclOptions::before` makes the communicator's stream wait for
// it.
//
// Where it keeps the contract of communicator.h, and where NCCL decides:
//   - kMax and kMin of floats: NCCL may drop a NaN, so these gather all ranks' elements and combine them on the host in
//   rank
//     order. Exact, and slow: meant for flags and norms, not for gradients.
//   - kSum: added by NCCL, in an order that depends on its algorithm and topology. The same bits come back for the same
//   layout
//     on the same machine only as far as NCCL repeats its choice (NCCL_ALGO and NCCL_PROTO pin it). all_reduce and
//     reduce_scatter of the same data need not agree in the last bit. bf16 and fp16 sums may be rounded at every hop.
//   - counts that differ over ranks are not detected; `NcclOptions::timeout` turns the hang into an Error that names
//   the call.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "comm/communicator.h"

namespace molen::comm {

struct NcclOptions {
  // Tried in this order, after those that the process has loaded already (libtorch's own: two copies of NCCL are a
  // trap).
  std::vector<std::string> nccl = {"libnccl.so.2"};
  std::vector<std::string> cudart = {"libcudart.so.13", "libcudart.so.12"};
  Seconds timeout{0};  // of one call, creation included; 0: none
  // Called before each call's first operation with the communicator's cudaStream_t, e.g. to make it wait for an event.
  std::function<void(void* stream)> before;
};

// One communicator over all ranks of `bootstrap`, which moves host memory and is used for a moment only (a group split
// off it is kept: for split, and so that abort reaches all ranks). Collective over `bootstrap`: a rank that cannot open
// fails all of them. Each rank names its own CUDA device ordinal. Requires NCCL 2.14 (communicators that do not block
// the host). Throws UsageError where a library or the device is missing or too old, Error where NCCL fails.
//
// abort() may be called from any thread. Ranks of this process wake by themselves; other processes through bootstrap's
// abort. NCCL's own failure on one rank ends the communicators of this process; the caller reports it to others with
// abort().
std::unique_ptr<Communicator> open_nccl(Communicator& bootstrap, int device, NcclOptions options = {});

}  // namespace molen::comm
