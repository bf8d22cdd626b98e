// MPI-3. All-reduce is the library's (the fastest of those measured on shared memory); reduce-scatter is a pairwise exchange of
// our own, more than twice as fast as Open MPI's. Both sum in an order that depends on the group's size only.
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "comm/mpi/mpi.h"
#include "comm/reduce.h"

namespace molen::comm {
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 18;   // elements of one exchange
constexpr std::int64_t kMany = std::int64_t{1} << 30;    // elements of one library call

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw Error("MPI: {} failed: {}", what, std::string(text, static_cast<std::size_t>(length)));
}

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return MPI_DOUBLE;
    case DType::kF32: return MPI_FLOAT;
    case DType::kI64: return MPI_INT64_T;
    case DType::kI32: return MPI_INT32_T;
    case DType::kU8: return MPI_UINT8_T;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16: return MPI_UINT16_T;   // moved as bits; reduced by our own code
    default: throw Error("MPI: elements of type {} are not sent", name_of(dtype));
  }
}

MPI_Op op_of(Reduce op) { return op == Reduce::kSum ? MPI_SUM : op == Reduce::kMax ? MPI_MAX : MPI_MIN; }
bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

class Mpi final : public Communicator {
 public:
  Mpi(MPI_Comm comm, bool owned) : comm_(comm), owned_(owned) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  ~Mpi() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (owned_ && !finalized) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "mpi"; }

  void all_reduce(void* data, std::int64_t count, DType dtype, Reduce op) override {
    note(count, dtype);
    if (is_half(dtype)) return all_reduce_half(data, count, dtype, op);
    for (std::int64_t at = 0; at < count; at += kMany) {
      const int n = static_cast<int>(std::min(kMany, count - at));
      check(MPI_Allreduce(MPI_IN_PLACE, byte(data, at, dtype), n, type_of(dtype), op_of(op), comm_), "MPI_Allreduce");
    }
  }

  void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype, Reduce op) override {
    note(sum(counts), dtype);
    const std::int64_t mine = counts[static_cast<std::size_t>(rank_)];
    // Chunk by chunk, so that what is received is added while it is still in cache. `receive` may be our block of `send`.
    std::vector<std::vector<char>> arrived(static_cast<std::size_t>(size_));
    const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
    for (std::int64_t at = 0; at < longest; at += kChunk) {
      const std::int64_t own = part(mine, at);
      std::vector<const void*> sources(static_cast<std::size_t>(size_));
      sources[static_cast<std::size_t>(rank_)] = byte(send, offset(counts, rank_) + at, dtype);
      for (int shift = 1; shift < size_; ++shift) {
        const int to = (rank_ + shift) % size_, from = (rank_ - shift + size_) % size_;
        auto& buffer = arrived[static_cast<std::size_t>(from)];
        buffer.resize(static_cast<std::size_t>(own * size_of(dtype)));
        const std::int64_t out = part(counts[static_cast<std::size_t>(to)], at);
        check(MPI_Sendrecv(byte(send, offset(counts, to) + at, dtype), static_cast<int>(out), type_of(dtype), to, kTag, buffer.data(),
                           static_cast<int>(own), type_of(dtype), from, kTag, comm_, MPI_STATUS_IGNORE),
              "MPI_Sendrecv");
        sources[static_cast<std::size_t>(from)] = buffer.data();
      }
      if (own > 0) combine(byte(receive, at, dtype), sources, own, dtype, op);
    }
  }

  void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype) override {
    const std::int64_t all = sum(counts);
    note(all, dtype);
    void* place = byte(receive, offset(counts, rank_), dtype);
    const std::int64_t mine = counts[static_cast<std::size_t>(rank_)];
    if (send != place && mine > 0) std::memmove(place, send, static_cast<std::size_t>(mine * size_of(dtype)));
    if (all <= INT_MAX) {
      std::vector<int> sizes(counts.begin(), counts.end()), starts;
      for (int r = 0; r < size_; ++r) starts.push_back(static_cast<int>(offset(counts, r)));
      check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, receive, sizes.data(), starts.data(), type_of(dtype), comm_), "MPI_Allgatherv");
      return;
    }
    for (int r = 0; r < size_; ++r) broadcast_run(byte(receive, offset(counts, r), dtype), counts[static_cast<std::size_t>(r)], dtype, r);
  }

  void all_to_all(const void* send, std::span<const std::int64_t> counts_send, void* receive, std::span<const std::int64_t> counts_receive,
                  DType dtype) override {
    sum(counts_receive);
    note(sum(counts_send), dtype);
    std::memmove(byte(receive, offset(counts_receive, rank_), dtype), byte(send, offset(counts_send, rank_), dtype),
                 static_cast<std::size_t>(counts_send[static_cast<std::size_t>(rank_)] * size_of(dtype)));
    for (int shift = 1; shift < size_; ++shift) {
      const int to = (rank_ + shift) % size_, from = (rank_ - shift + size_) % size_;
      exchange(byte(send, offset(counts_send, to), dtype), counts_send[static_cast<std::size_t>(to)], to,
               byte(receive, offset(counts_receive, from), dtype), counts_receive[static_cast<std::size_t>(from)], from, dtype);
    }
  }

  void broadcast(void* data, std::int64_t count, DType dtype, int root) override {
    note(count, dtype);
    broadcast_run(data, count, dtype, root);
  }

  void send(const void* data, std::int64_t count, DType dtype, int to) override {
    note(count, dtype);
    for (std::int64_t at = 0; at < std::max<std::int64_t>(count, 1); at += kMany)
      check(MPI_Send(byte(data, at, dtype), static_cast<int>(std::min(kMany, count - at)), type_of(dtype), to, kTag, comm_), "MPI_Send");
  }
  void recv(void* data, std::int64_t count, DType dtype, int from) override {
    note(count, dtype);
    for (std::int64_t at = 0; at < std::max<std::int64_t>(count, 1); at += kMany) {
      MPI_Status status;
      const int n = static_cast<int>(std::min(kMany, count - at));
      check(MPI_Recv(byte(data, at, dtype), n, type_of(dtype), from, kTag, comm_, &status), "MPI_Recv");
      int got = 0;
      check(MPI_Get_count(&status, type_of(dtype), &got), "MPI_Get_count");
      if (got != n) throw Error("rank {} sends {} elements where rank {} receives {}", from, got, rank_, n);
    }
  }
  void barrier() override { check(MPI_Barrier(comm_), "MPI_Barrier"); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm made;
    check(MPI_Comm_split(comm_, color, key, &made), "MPI_Comm_split");
    return std::make_unique<Mpi>(made, true);
  }

  void abort(const std::string&) noexcept override { MPI_Abort(comm_, 1); }
  Traffic traffic() const override { return traffic_; }

 private:
  static constexpr int kTag = 7;

  static char* byte(void* data, std::int64_t element, DType dtype) { return static_cast<char*>(data) + element * size_of(dtype); }
  static const char* byte(const void* data, std::int64_t element, DType dtype) { return static_cast<const char*>(data) + element * size_of(dtype); }
  static std::int64_t part(std::int64_t count, std::int64_t at) { return std::clamp<std::int64_t>(count - at, 0, kChunk); }
  static std::int64_t offset(std::span<const std::int64_t> counts, int rank) {
    std::int64_t total = 0;
    for (int r = 0; r < rank; ++r) total += counts[static_cast<std::size_t>(r)];
    return total;
  }
  std::int64_t sum(std::span<const std::int64_t> counts) const {
    if (static_cast<int>(counts.size()) != size_) throw Error("{} counts for {} ranks", counts.size(), size_);
    return offset(counts, size_);
  }
  void note(std::int64_t count, DType dtype) {
    ++traffic_.calls;
    traffic_.bytes += count * size_of(dtype);
  }

  void exchange(const void* out, std::int64_t count_out, int to, void* in, std::int64_t count_in, int from, DType dtype) {
    for (std::int64_t at = 0; at < std::max(count_out, count_in); at += kMany) {
      const auto n = [&](std::int64_t count) { return static_cast<int>(std::clamp<std::int64_t>(count - at, 0, kMany)); };
      check(MPI_Sendrecv(byte(out, at, dtype), n(count_out), type_of(dtype), to, kTag, byte(in, at, dtype), n(count_in), type_of(dtype), from, kTag,
                         comm_, MPI_STATUS_IGNORE),
            "MPI_Sendrecv");
    }
  }

  void broadcast_run(void* data, std::int64_t count, DType dtype, int root) {
    for (std::int64_t at = 0; at < count; at += kMany)
      check(MPI_Bcast(byte(data, at, dtype), static_cast<int>(std::min(kMany, count - at)), type_of(dtype), root, comm_), "MPI_Bcast");
  }

  // Everyone's bits to everyone, then the same sum in rank order everywhere.
  void all_reduce_half(void* data, std::int64_t count, DType dtype, Reduce op) {
    std::vector<char> all;
    for (std::int64_t at = 0; at < count; at += kChunk) {
      const std::int64_t n = std::min(kChunk, count - at), bytes = n * size_of(dtype);
      all.resize(static_cast<std::size_t>(bytes * size_));
      check(MPI_Allgather(byte(data, at, dtype), static_cast<int>(n), type_of(dtype), all.data(), static_cast<int>(n), type_of(dtype), comm_), "MPI_Allgather");
      std::vector<const void*> sources;
      for (int r = 0; r < size_; ++r) sources.push_back(all.data() + r * bytes);
      combine(byte(data, at, dtype), sources, n, dtype, op);
    }
  }

  MPI_Comm comm_;
  bool owned_;
  int rank_ = 0, size_ = 1;
  Traffic traffic_;
};

}  // namespace

bool mpi_available() { return true; }

std::unique_ptr<Communicator> mpi_world() {
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
  return std::make_unique<Mpi>(MPI_COMM_WORLD, false);
}

}  // namespace molen::comm
