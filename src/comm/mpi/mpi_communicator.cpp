// The MPI-3 communicator. Reductions are our own: a pairwise exchange that adds in rank order. MPI's reductions may add
// in any order, drop a NaN in a maximum, and have no bf16; ours give the same bits as the threads communicator. A
// reduction around a ring would send as many bytes, but it would add each block in another order and round bf16 at
// every hop.
#include <mpi.h>

#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "comm/mpi/mpi.h"
#include "comm/mpi/routes.h"
#include "comm/reduce.h"

namespace molen::comm {
namespace {

constexpr std::int64_t kMany = std::int64_t{1} << 30;     // elements of one library call
constexpr std::int64_t kChunk = std::int64_t{1} << 18;    // elements of one exchange, at most
constexpr std::int64_t kScratch = std::int64_t{8} << 20;  // bytes received before they are added, about
constexpr std::int64_t kHop = std::int64_t{4} << 20;      // largest piece in bytes that goes around a ring
constexpr std::size_t kAhead = 4;                         // messages under way in each direction

// We ask for MPI_THREAD_SERIALIZED, which every MPI gives without loss of speed: only one thread at a time may be in
// the library. Threads of a rank that call different communicators take turns by this mutex. While a thread holds it,
// no call of the library waits for other ranks, except those that make or free communicators, between steps.
std::timed_mutex& library_mutex() {
  static std::timed_mutex mutex;
  return mutex;
}

// The caller must hold the mutex, because asking for the error's text is a call of the library.
void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw Error("MPI: {} failed: {}", what, std::string(text, static_cast<std::size_t>(length)));
}

template <class Call>
void in_library(const char* what, Call call) {
  const std::lock_guard lock(library_mutex());
  check(call(), what);
}

// MPI's own waits spin. When the ranks use all cores of a host, a communication thread that spins while it waits for a
// slower rank takes the core of its compute thread. So after a moment our wait sleeps between looks.
class Patience {
 public:
  void pause() {
    if (looks_++ < kSpins) return;
    const timespec nap{0, kNap.count()};
    nanosleep(&nap, nullptr);
  }

 private:
  static constexpr int kSpins = 200;  // looks before the first sleep: about 20 us
  static constexpr std::chrono::nanoseconds kNap{20'000};
  int looks_ = 0;
};

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kI64:
      return MPI_INT64_T;
    case DType::kI32:
      return MPI_INT32_T;
    case DType::kU8:
      return MPI_UINT8_T;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16:
      return MPI_UINT16_T;  // moved as bits; reduced by our own code
    default:
      throw Error("MPI: elements of type {} are not sent", name_of(dtype));
  }
}

class Mpi final : public Communicator {
 public:
  Mpi(MPI_Comm comm, bool owned, MpiCollectives wanted) : comm_(comm), owned_(owned), wanted_(wanted) {
    in_library("MPI_Comm_set_errhandler", [&] { return MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN); });
    in_library("MPI_Comm_rank", [&] { return MPI_Comm_rank(comm_, &rank_); });
    in_library("MPI_Comm_size", [&] { return MPI_Comm_size(comm_, &size_); });
    collectives_ = wanted != MpiCollectives::kAuto  ? wanted
                   : size_ <= kFew || on_one_host() ? MpiCollectives::kOwn
                                                    : MpiCollectives::kLibrary;
  }
  ~Mpi() override {
    const std::lock_guard lock(library_mutex());
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (owned_ && !finalized) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "mpi"; }

  void all_reduce(void* data, std::int64_t count, DType dtype, Reduce op) override {
    kind_ = CallKind::kAllReduce;
    check_reducible(dtype);
    if (size_ > 1 && count * size_of(dtype) <= kMpiShort) {
      reduce_small(data, count, dtype, op);
    } else if (size_ > 1) {
      std::vector<std::int64_t> counts;
      for (int r = 0; r < size_; ++r) counts.push_back(count / size_ + (r < count % size_));
      void* mine = byte(data, offset_of(counts, rank_), dtype);
      reduce_blocks(data, mine, counts, dtype, op);
      gather_blocks(data, counts, dtype);
    }
    note(count, dtype);
  }

  void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype,
                      Reduce op) override {
    kind_ = CallKind::kReduceScatter;
    check_reducible(dtype);
    const std::int64_t all = total_of(counts, size_);
    reduce_blocks(send, receive, counts, dtype, op);
    note(all, dtype);
  }

  void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype) override {
    kind_ = CallKind::kAllGather;
    const std::int64_t all = total_of(counts, size_);
    copy(byte(receive, offset_of(counts, rank_), dtype), send, counts[static_cast<std::size_t>(rank_)], dtype);
    gather_blocks(receive, counts, dtype);
    note(all, dtype);
  }

  void all_to_all(const void* send, const Blocks& sent, void* receive, const Blocks& received, DType dtype) override {
    kind_ = CallKind::kAllToAll;
    const std::int64_t all = sent.total(size_), own = sent.count(rank_);
    received.total(size_);
    if (own != received.count(rank_))
      throw Error("all_to_all: rank {} sends {} elements to rank {}, which expects {}", rank_, own, rank_,
                  received.count(rank_));
    copy(byte(receive, received.offset(rank_), dtype), byte(send, sent.offset(rank_), dtype), own, dtype);
    for (int shift = 1; shift < size_; ++shift) {
      const int to = (rank_ + shift) % size_, from = (rank_ - shift + size_) % size_;
      exchange(byte(send, sent.offset(to), dtype), sent.count(to), to, byte(receive, received.offset(from), dtype),
               received.count(from), from, dtype);
    }
    note(all, dtype);
  }

  void broadcast(void* data, std::int64_t count, DType dtype, int root) override {
    kind_ = CallKind::kBroadcast;
    if (root < 0 || root >= size_) throw Error("broadcast from rank {} of {}", root, size_);
    if (size_ > 1 && count > 0) {
      if (collectives_ == MpiCollectives::kLibrary)
        broadcast_run(data, count, dtype, root);
      else if (count * size_of(dtype) <= kHop)
        pass_down(data, count, dtype, root);
      else
        pass_around(data, only_of(count, root), dtype);
    }
    note(count, dtype);
  }

  void send(const void* data, std::int64_t count, DType dtype, int to) override {
    kind_ = CallKind::kSend;
    check_peer(to);
    for (std::int64_t at = 0; at < std::max<std::int64_t>(count, 1); at += kMany) {
      MPI_Request sent = start_send(byte(data, at, dtype), some(count, at), to, dtype, kMessageTag);
      wait([&] { return done(sent, "MPI_Isend"); });
    }
    note(count, dtype);
  }
  void recv(void* data, std::int64_t count, DType dtype, int from) override {
    kind_ = CallKind::kRecv;
    check_peer(from);
    for (std::int64_t at = 0; at < std::max<std::int64_t>(count, 1); at += kMany) {
      Arrival arrival = start_receive(byte(data, at, dtype), some(count, at), from, dtype, kMessageTag);
      wait([&] { return arrived(arrival); });
    }
    note(count, dtype);
  }
  void barrier() override {
    MPI_Request request;
    in_library("MPI_Ibarrier", [&] { return MPI_Ibarrier(comm_, &request); });
    wait([&] { return done(request, "MPI_Ibarrier"); });
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    if (color < 0) throw Error("split: color {} of rank {}; colors are not negative", color, rank_);
    MPI_Comm made;
    in_library("MPI_Comm_split", [&] { return MPI_Comm_split(comm_, color, key, &made); });
    return std::make_unique<Mpi>(made, true, wanted_);
  }

  void abort(const std::string&) noexcept override {
    // A thread that hangs in the library must not keep the job alive.
    const std::unique_lock lock(library_mutex(), std::chrono::seconds(1));
    MPI_Abort(comm_, 1);
  }
  Traffic traffic_of(CallKind kind) const override { return traffic_[kind]; }

 private:
  static constexpr int kMessageTag = 7, kCollectiveTag = 8;
  static constexpr int kFew = 8;  // ranks

  // Collective.
  bool on_one_host() const {
    MPI_Comm host;
    int here = 0;
    in_library("MPI_Comm_split_type",
               [&] { return MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host); });
    in_library("MPI_Comm_size", [&] { return MPI_Comm_size(host, &here); });
    in_library("MPI_Comm_free", [&] { return MPI_Comm_free(&host); });
    return here == size_;
  }

  static char* byte(void* data, std::int64_t element, DType dtype) {
    return static_cast<char*>(data) + element * size_of(dtype);
  }
  static const char* byte(const void* data, std::int64_t element, DType dtype) {
    return static_cast<const char*>(data) + element * size_of(dtype);
  }
  static int some(std::int64_t count, std::int64_t at) {
    return static_cast<int>(std::clamp<std::int64_t>(count - at, 0, kMany));
  }
  static void copy(void* to, const void* from, std::int64_t count, DType dtype) {
    if (to != from && count > 0) std::memcpy(to, from, static_cast<std::size_t>(count * size_of(dtype)));
  }
  void check_peer(int peer) const {
    if (peer < 0 || peer >= size_ || peer == rank_) throw Error("rank {} of {} talks to rank {}", rank_, size_, peer);
  }
  void note(std::int64_t count, DType dtype) {
    ++traffic_[kind_].calls;
    traffic_[kind_].bytes += count * size_of(dtype);
  }

  // A message that is under way. A peer of MPI_PROC_NULL sends and receives nothing, and nothing is counted.
  struct Arrival {
    MPI_Request request;
    int expected, from;
    DType dtype;
  };
  MPI_Request start_send(const void* data, int count, int to, DType dtype, int tag = kCollectiveTag) {
    MPI_Request request;
    in_library("MPI_Isend", [&] { return MPI_Isend(data, count, type_of(dtype), to, tag, comm_, &request); });
    if (auto& sent = traffic_[kind_].wire_bytes; sent && to != MPI_PROC_NULL) *sent += count * size_of(dtype);
    return request;
  }
  Arrival start_receive(void* data, int count, int from, DType dtype, int tag = kCollectiveTag) {
    Arrival arrival{MPI_REQUEST_NULL, count, from, dtype};
    in_library("MPI_Irecv", [&] { return MPI_Irecv(data, count, type_of(dtype), from, tag, comm_, &arrival.request); });
    return arrival;
  }
  static bool done(MPI_Request& request, const char* what) {
    int flag = 0;
    in_library(what, [&] { return MPI_Test(&request, &flag, MPI_STATUS_IGNORE); });
    return flag != 0;
  }
  // Returns true once the message has arrived. Checks its length: MPI itself fails on a message that is too long, but
  // not on one that is too short.
  bool arrived(Arrival& a) {
    int flag = 0, got = 0;
    MPI_Status status;
    in_library("MPI_Irecv", [&] { return MPI_Test(&a.request, &flag, &status); });
    if (!flag || a.from == MPI_PROC_NULL) return flag != 0;
    in_library("MPI_Get_count", [&] { return MPI_Get_count(&status, type_of(a.dtype), &got); });
    if (got != a.expected)
      throw Error("rank {} sends {} elements where rank {} receives {}", a.from, got, rank_, a.expected);
    if (auto& received = traffic_[kind_].wire_received) *received += got * size_of(a.dtype);
    return true;
  }
  template <class Done>
  static void wait(Done is_done) {
    for (Patience patience; !is_done();) patience.pause();
  }
  void send_receive(const void* out, int count_out, int to, void* in, int count_in, int from, DType dtype) {
    Arrival arrival = start_receive(in, count_in, from, dtype);
    MPI_Request sent = start_send(out, count_out, to, dtype);
    wait([&] { return arrived(arrival); });
    wait([&] { return done(sent, "MPI_Isend"); });
  }
  // Runs a collective of the library.
  template <class Start>
  void library(const char* what, Start start) {
    traffic_[kind_].wire_bytes = traffic_[kind_].wire_received = std::nullopt;
    MPI_Request request;
    in_library(what, [&] { return start(&request); });
    wait([&] { return done(request, what); });
  }

  void exchange(const void* out, std::int64_t count_out, int to, void* in, std::int64_t count_in, int from,
                DType dtype) {
    // The lengths sent and received are independent, so each direction takes as many rounds as its own message needs.
    std::int64_t at_out = 0, at_in = 0;
    do {
      const bool sends = at_out == 0 || at_out < count_out, receives = at_in == 0 || at_in < count_in;
      send_receive(byte(out, at_out, dtype), some(count_out, at_out), sends ? to : MPI_PROC_NULL,
                   byte(in, at_in, dtype), some(count_in, at_in), receives ? from : MPI_PROC_NULL, dtype);
      at_out += kMany;
      at_in += kMany;
    } while (at_out < count_out || at_in < count_in);
  }

  void broadcast_run(void* data, std::int64_t count, DType dtype, int root) {
    for (std::int64_t at = 0; at < count; at += kMany)
      library("MPI_Ibcast", [&](MPI_Request* r) {
        return MPI_Ibcast(byte(data, at, dtype), some(count, at), type_of(dtype), root, comm_, r);
      });
  }

  // Reduces our block of every rank's `send`, added in rank order. Works chunk by chunk, so that received data is added
  // while it is in cache. `receive` may be our block of `send`, because only the other blocks are sent.
  void reduce_blocks(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype, Reduce op) {
    const std::int64_t width = size_of(dtype),
                       chunk = std::clamp<std::int64_t>(kScratch / (width * size_), 4096, kChunk);
    const auto part = [&](int rank, std::int64_t at) {
      return std::clamp<std::int64_t>(counts[static_cast<std::size_t>(rank)] - at, 0, chunk);
    };
    const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
    const auto room = static_cast<std::size_t>(std::min(chunk, counts[static_cast<std::size_t>(rank_)]) * width);
    char* scratch = scratch_of(room * static_cast<std::size_t>(size_));
    std::vector<const void*> sources(static_cast<std::size_t>(size_));
    for (std::int64_t at = 0; at < longest; at += chunk) {
      const std::int64_t own = part(rank_, at);
      sources[static_cast<std::size_t>(rank_)] = byte(send, offset_of(counts, rank_) + at, dtype);
      for (int shift = 1; shift < size_; ++shift) {
        const int to = (rank_ + shift) % size_, from = (rank_ - shift + size_) % size_;
        char* buffer = scratch + static_cast<std::size_t>(from) * room;
        const std::int64_t out = part(to, at);
        if (out > 0 || own > 0)
          send_receive(byte(send, offset_of(counts, to) + at, dtype), static_cast<int>(out),
                       out > 0 ? to : MPI_PROC_NULL, buffer, static_cast<int>(own), own > 0 ? from : MPI_PROC_NULL,
                       dtype);
        sources[static_cast<std::size_t>(from)] = buffer;
      }
      if (own > 0) combine(byte(receive, at, dtype), sources, own, dtype, op);
    }
  }

  // Gathers all blocks on every rank. This rank's block must already be in its place in `data`.
  void gather_blocks(void* data, std::span<const std::int64_t> counts, DType dtype) {
    const std::int64_t all = offset_of(counts, size_);
    if (size_ == 1 || all == 0) return;
    if (collectives_ == MpiCollectives::kLibrary)
      gather_by_library(data, counts, dtype);
    else if (all * size_of(dtype) <= kMpiShort * size_)
      gather_short(data, counts, dtype);
    else if (*std::max_element(counts.begin(), counts.end()) * size_of(dtype) <= kHop)
      carry(data, mpi::pairs_of(counts, rank_), dtype);
    else
      pass_around(data, counts, dtype);
  }

  void gather_by_library(void* data, std::span<const std::int64_t> counts, DType dtype) {
    if (offset_of(counts, size_) > INT_MAX) {  // MPI counts in int
      for (int r = 0; r < size_; ++r)
        broadcast_run(byte(data, offset_of(counts, r), dtype), counts[static_cast<std::size_t>(r)], dtype, r);
      return;
    }
    std::vector<int> sizes(counts.begin(), counts.end()), starts;
    for (int r = 0; r < size_; ++r) starts.push_back(static_cast<int>(offset_of(counts, r)));
    library("MPI_Iallgatherv", [&](MPI_Request* r) {
      return MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, sizes.data(), starts.data(), type_of(dtype),
                             comm_, r);
    });
  }

  void gather_short(void* data, std::span<const std::int64_t> counts, DType dtype) {
    const char* from = gather_rotated(byte(data, offset_of(counts, rank_), dtype), counts, dtype);
    for (int back = 0; back < size_; ++back) {
      const int r = (rank_ + back) % size_;
      const std::int64_t n = counts[static_cast<std::size_t>(r)];
      if (r != rank_) copy(byte(data, offset_of(counts, r), dtype), from, n, dtype);
      from = byte(from, n, dtype);
    }
  }

  // Gathers all blocks: this rank's `own` first, then the next rank's, and so on around. The result is valid until the
  // next call.
  const char* gather_rotated(const void* own, std::span<const std::int64_t> counts, DType dtype) {
    char* all = scratch_of(static_cast<std::size_t>(offset_of(counts, size_) * size_of(dtype)));
    std::int64_t have = counts[static_cast<std::size_t>(rank_)];
    copy(all, own, have, dtype);
    for (const mpi::Round& round : mpi::rounds_of(counts, rank_)) {
      send_receive(all, static_cast<int>(round.out), round.out > 0 ? round.to : MPI_PROC_NULL, byte(all, have, dtype),
                   static_cast<int>(round.in), round.in > 0 ? round.from : MPI_PROC_NULL, dtype);
      have += round.in;
    }
    return all;
  }

  // Gathers all blocks around a ring. Shorter pieces than kHop would be slower when ranks share cores, because each
  // piece waits until its rank has a core. Two ranks forward nothing, so they do not cut their blocks.
  void pass_around(void* data, std::span<const std::int64_t> counts, DType dtype) {
    carry(data, mpi::ring_of(counts, rank_, size_ == 2 ? kMany : kHop / size_of(dtype)), dtype);
  }

  void carry(void* data, const mpi::Route& route, DType dtype) {
    std::array<MPI_Request, kAhead> sends;
    std::array<Arrival, kAhead> arrivals;
    std::size_t started = 0, sent = 0, expected = 0, here = 0;
    for (Patience patience; here < route.in.size() || sent < route.out.size();) {
      for (; expected < std::min(route.in.size(), here + kAhead); ++expected) {
        const mpi::Piece& p = route.in[expected];
        arrivals[expected % kAhead] =
            start_receive(byte(data, p.first, dtype), static_cast<int>(p.count), p.peer, dtype);
      }
      for (; started < std::min({route.out.size(), sent + kAhead, route.ready + here}); ++started) {
        const mpi::Piece& p = route.out[started];
        sends[started % kAhead] = start_send(byte(data, p.first, dtype), static_cast<int>(p.count), p.peer, dtype);
      }
      const bool in = here < expected && arrived(arrivals[here % kAhead]);
      const bool out = sent < started && done(sends[sent % kAhead], "MPI_Isend");
      here += in;
      sent += out;
      if (in || out)
        patience = {};
      else
        patience.pause();
    }
  }
  std::vector<std::int64_t> only_of(std::int64_t count, int rank) const {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(size_));
    counts[static_cast<std::size_t>(rank)] = count;
    return counts;
  }

  void pass_down(void* data, std::int64_t count, DType dtype, int root) {
    const mpi::Tree tree = mpi::tree_of(size_, rank_, root);
    if (tree.parent >= 0) {
      Arrival arrival = start_receive(data, static_cast<int>(count), tree.parent, dtype);
      wait([&] { return arrived(arrival); });
    }
    std::vector<MPI_Request> sends;
    for (const int child : tree.children) sends.push_back(start_send(data, static_cast<int>(count), child, dtype));
    for (MPI_Request& sent : sends) wait([&] { return done(sent, "MPI_Isend"); });
  }

  // Gathers every rank's elements on every rank; each rank then computes the same sum in rank order.
  void reduce_small(void* data, std::int64_t count, DType dtype, Reduce op) {
    if (count == 0) return;
    const std::int64_t bytes = count * size_of(dtype);
    std::vector<const void*> sources(static_cast<std::size_t>(size_));
    if (collectives_ == MpiCollectives::kLibrary) {
      char* all = scratch_of(static_cast<std::size_t>(bytes * size_));
      const int n = static_cast<int>(count);
      library("MPI_Iallgather", [&](MPI_Request* r) {
        return MPI_Iallgather(data, n, type_of(dtype), all, n, type_of(dtype), comm_, r);
      });
      for (int r = 0; r < size_; ++r) sources[static_cast<std::size_t>(r)] = all + r * bytes;
    } else {
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(size_), count);
      const char* all = gather_rotated(data, counts, dtype);
      for (int r = 0; r < size_; ++r) sources[static_cast<std::size_t>(r)] = all + (r - rank_ + size_) % size_ * bytes;
    }
    combine(data, sources, count, dtype, op);
  }

  char* scratch_of(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    return scratch_.data();
  }

  MPI_Comm comm_;
  bool owned_;
  MpiCollectives wanted_, collectives_{};
  int rank_ = 0, size_ = 1;
  std::vector<char> scratch_;  // received data before it is added or put in its place; grows to the largest
  CallKind kind_{};            // kind of the current call
  TrafficByCall traffic_{{0, 0, 0, 0}};
};

}  // namespace

bool mpi_available() {
  return true;
}

std::unique_ptr<Communicator> mpi_world(MpiCollectives collectives) {
  int initialized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  if (!initialized) {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED) throw Error("MPI: this library gives no thread support");
    std::atexit([] {
      int finalized = 0;
      MPI_Finalized(&finalized);
      if (!finalized) MPI_Finalize();
    });
  }
  return std::make_unique<Mpi>(MPI_COMM_WORLD, false, collectives);
}

}  // namespace molen::comm
