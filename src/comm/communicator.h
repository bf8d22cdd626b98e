// Communicators: the interface of all communication between ranks (`self`, `threads`, `mpi`, `nccl`). One object
// represents one group of ranks. Calls are collective and blocking. Each rank calls an object from one thread at a
// time, in the same order on all ranks of the group (the program's launch order). Several threads of a rank may call
// different objects at once, unless `one_at_a_time`. The implementation decides whether buffers are host or device
// memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace molen::comm {

enum class Reduce { kSum, kMax, kMin };

// The calls that move data: all except barrier and split.
enum class CallKind { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kSend, kRecv };
inline constexpr std::array kAllCallKinds{CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather,
                                          CallKind::kAllToAll,  CallKind::kBroadcast,     CallKind::kSend,
                                          CallKind::kRecv};
std::string_view name_of(CallKind kind);  // the name of the member function: "all_reduce", ...

// Completed calls and their payload. The payload of a reduction or a gather is all elements of the buffer (the sum of
// counts). For all_to_all and send it is the elements sent, for recv those received, for broadcast those filled.
//
// Wire bytes are the bytes that these calls actually moved between this rank and other ranks, counted where they are
// copied or handed to the transport. Summed over a group's ranks, sent and received bytes are equal. They do not
// measure distance: a byte that a rank forwards is sent again. Absent when a library moves the data and does not report
// it.
struct Traffic {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  std::optional<std::int64_t> wire_bytes;  // sent
  std::optional<std::int64_t> wire_received;

  Traffic& operator+=(const Traffic& other);
  Traffic operator-(const Traffic& earlier) const;
  bool operator==(const Traffic&) const = default;
};

// The traffic of each kind of call. All counts start at zero.
class TrafficByCall {
 public:
  explicit TrafficByCall(Traffic none) { of_.fill(none); }
  Traffic& operator[](CallKind kind) { return of_[static_cast<std::size_t>(kind)]; }
  const Traffic& operator[](CallKind kind) const { return of_[static_cast<std::size_t>(kind)]; }

 private:
  std::array<Traffic, kAllCallKinds.size()> of_;
};

// The blocks of a buffer that all_to_all sends or receives: `counts[r]` elements for each rank r. Rank r's block begins
// at element `offsets[r]`. Without offsets, the blocks lie one after another in rank order.
struct Blocks {
  Blocks(std::span<const std::int64_t> counts, std::span<const std::int64_t> offsets = {})
      : counts(counts), offsets(offsets) {}
  Blocks(const std::vector<std::int64_t>& counts) : counts(counts) {}
  std::span<const std::int64_t> counts, offsets;
  std::int64_t count(int rank) const { return counts[static_cast<std::size_t>(rank)]; }
  std::int64_t offset(int rank) const;
  // Returns the number of elements from the start of the buffer to the end of the last block.
  std::int64_t extent() const;
  // Returns the sum of all counts. Throws Error unless there are `ranks` counts and as many offsets, or no offsets, and
  // none of them is negative.
  std::int64_t total(int ranks) const;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "self", "threads", "mpi", "nccl"

  // Reduces in place over `count` elements (fp64, fp32, bf16, fp16, i64, i32, u8). The order of summation depends on
  // the group's size only, so the same layout gives the same bits. bf16 and fp16 are summed in fp32 and rounded once. A
  // NaN of any rank stays NaN under kMax and kMin too. Throws Error for other element types.
  virtual void all_reduce(void* data, std::int64_t count, DType dtype, Reduce op) = 0;
  // Reduces rank r's block of `counts[r]` elements of `send` (which holds sum(counts)) into `receive`. Uneven counts
  // are allowed. `receive` may be this rank's block of `send`, but must not overlap the rest of `send`.
  virtual void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype,
                              Reduce op) = 0;
  // Concatenates every rank's `counts[rank]` elements in rank order into `receive`. `send` may be this rank's block of
  // `receive`.
  virtual void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype) = 0;
  // Sends rank r's block of `send` to each rank r, and receives a block from each. Elements of `receive` that lie
  // between its blocks keep their values.
  virtual void all_to_all(const void* send, const Blocks& sent, void* receive, const Blocks& received, DType dtype) = 0;
  virtual void broadcast(void* data, std::int64_t count, DType dtype, int root) = 0;
  virtual void send(const void* data, std::int64_t count, DType dtype, int to) = 0;
  virtual void recv(void* data, std::int64_t count, DType dtype, int from) = 0;
  virtual void barrier() = 0;

  // Makes a new group of the ranks that pass the same color (>= 0), ordered by key, then rank. Collective over this
  // group.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Returns whether a rank may be in only one call at a time, over all its communicators, with the calls in the same
  // order on all ranks.
  virtual bool one_at_a_time() const { return false; }
  // Adds to the number of threads that this rank may have in calls at once; at first it is 1. While it is 0, no thread
  // of the rank makes a call. A communicator that detects ranks that wait for each other needs this number.
  virtual void add_callers(int) noexcept {}

  // Makes every pending and later call on any rank of the world throw Error, so that the other ranks do not wait for a
  // rank that failed.
  virtual void abort(const std::string& reason) noexcept = 0;

  // Return the traffic so far of this communicator's calls of one kind, and of all kinds.
  virtual Traffic traffic_of(CallKind kind) const = 0;
  Traffic traffic() const;
};

}  // namespace molen::comm
