// Communicators: what ranks say to each other, behind one interface (`self`, `threads`, `mpi`, `nccl`). One object
// stands for one group of ranks. Calls are collective and blocking, and are made from one thread per rank, in the same
// order on all ranks of the group (the program's launch order). Buffers are host or device memory as the implementation
// says.
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

// The calls that move data: all but barrier and split.
enum class CallKind { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kSend, kRecv };
inline constexpr std::array kAllCallKinds{CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather,
                                          CallKind::kAllToAll,  CallKind::kBroadcast,     CallKind::kSend,
                                          CallKind::kRecv};
std::string_view name_of(CallKind kind);  // as the functions below: "all_reduce", ...

// Calls that came back, and their payload: all elements of the reduced or gathered buffer (sum of counts), of what
// all_to_all and send send, recv receives, broadcast fills.
//
// The wire bytes are those that these calls really carried from this rank to other ranks, and from others to it,
// counted where they are copied or handed to the transport: over a group's ranks both add up to the same. They do not
// say how far: a byte that a rank passes on is sent again. Absent where a library moves the data and cannot be asked.
struct Traffic {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  std::optional<std::int64_t> wire_bytes;  // sent
  std::optional<std::int64_t> wire_received;

  Traffic& operator+=(const Traffic& other);
  Traffic operator-(const Traffic& earlier) const;
  bool operator==(const Traffic&) const = default;
};

// By kind of call, from nothing.
class TrafficByCall {
 public:
  explicit TrafficByCall(Traffic none) { of_.fill(none); }
  Traffic& operator[](CallKind kind) { return of_[static_cast<std::size_t>(kind)]; }
  const Traffic& operator[](CallKind kind) const { return of_[static_cast<std::size_t>(kind)]; }

 private:
  std::array<Traffic, kAllCallKinds.size()> of_;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "self", "threads", "mpi", "nccl"

  // In place over `count` elements (fp64, fp32, bf16, fp16, i64, i32, u8). The order of summation depends on the
  // group's size only, so the same layout gives the same bits. bf16 and fp16 are summed in fp32 and rounded once. A NaN
  // of any rank stays NaN under kMax and kMin too. Other element types throw Error.
  virtual void all_reduce(void* data, std::int64_t count, DType dtype, Reduce op) = 0;
  // Rank r's `counts[r]` elements of `send` (which holds sum(counts)) reduced into `receive`. Uneven counts are
  // allowed. `receive` may be this rank's block of `send`, and overlaps it nowhere else.
  virtual void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype,
                              Reduce op) = 0;
  // Everyone's `counts[rank]` elements, concatenated in rank order into `receive`. `send` may lie in its place in
  // `receive`.
  virtual void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype) = 0;
  // Block r of `counts_send[r]` elements goes to rank r.
  virtual void all_to_all(const void* send, std::span<const std::int64_t> counts_send, void* receive,
                          std::span<const std::int64_t> counts_receive, DType dtype) = 0;
  virtual void broadcast(void* data, std::int64_t count, DType dtype, int root) = 0;
  virtual void send(const void* data, std::int64_t count, DType dtype, int to) = 0;
  virtual void recv(void* data, std::int64_t count, DType dtype, int from) = 0;
  virtual void barrier() = 0;

  // A new group of the ranks that pass the same color (>= 0), ordered by key, then rank. Collective over this group.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Makes every pending and later call on any rank of the world throw Error, so that a rank that failed does not leave
  // the others waiting.
  virtual void abort(const std::string& reason) noexcept = 0;

  // What this communicator's calls of a kind have moved so far, and those of all kinds.
  virtual Traffic traffic_of(CallKind kind) const = 0;
  Traffic traffic() const;
};

}  // namespace molen::comm
