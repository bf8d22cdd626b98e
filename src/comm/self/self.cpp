#include "comm/self/self.h"

#include <cstring>

#include "base/error.h"

namespace molen::comm {
namespace {

class Self final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "self"; }

  void all_reduce(void*, std::int64_t count, DType dtype, Reduce) override { note(count, dtype); }
  void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype, Reduce) override {
    copy(send, receive, counts, dtype);
  }
  void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype) override {
    copy(send, receive, counts, dtype);
  }
  void all_to_all(const void* send, std::span<const std::int64_t> counts_send, void* receive, std::span<const std::int64_t> counts_receive,
                  DType dtype) override {
    if (counts_receive.size() != 1 || counts_receive[0] != counts_send[0]) throw Error("all_to_all: sends {} and receives another count", counts_send[0]);
    copy(send, receive, counts_send, dtype);
  }
  void broadcast(void*, std::int64_t count, DType dtype, int root) override {
    if (root != 0) throw Error("broadcast from rank {} of 1", root);
    note(count, dtype);
  }
  void send(const void*, std::int64_t, DType, int to) override { throw Error("send to rank {} of 1", to); }
  void recv(void*, std::int64_t, DType, int from) override { throw Error("receive from rank {} of 1", from); }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int) override { return make_self(); }
  void abort(const std::string&) noexcept override {}
  Traffic traffic() const override { return traffic_; }

 private:
  void note(std::int64_t count, DType dtype) {
    ++traffic_.calls;
    traffic_.bytes += count * size_of(dtype);
  }
  void copy(const void* from, void* to, std::span<const std::int64_t> counts, DType dtype) {
    if (counts.size() != 1) throw Error("{} counts for 1 rank", counts.size());
    note(counts[0], dtype);
    if (from != to && counts[0] > 0) std::memmove(to, from, static_cast<std::size_t>(counts[0] * size_of(dtype)));
  }
  Traffic traffic_;
};

}  // namespace

std::unique_ptr<Communicator> make_self() { return std::make_unique<Self>(); }

}  // namespace molen::comm
