#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "comm/nccl/link.h"
#include "comm/nccl/nccl.h"
#include "comm/reduce.h"

namespace molen::comm {
namespace {

using nccl::Call;
using nccl::Comm;
using nccl::Device;
using nccl::Failure;
using nccl::Link;
using nccl::UniqueId;

constexpr std::int64_t kHostBytes = std::int64_t{4} << 20;  // gathered at a time for a reduction on the host

int type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return nccl::kFloat64;
    case DType::kF32:
      return nccl::kFloat32;
    case DType::kBF16:
      return nccl::kBfloat16;
    case DType::kF16:
      return nccl::kFloat16;
    case DType::kI64:
      return nccl::kInt64;
    case DType::kI32:
      return nccl::kInt32;
    case DType::kU8:
      return nccl::kUint8;
    default:
      throw Error("nccl: elements of type {} are not reduced", name_of(dtype));
  }
}
int op_of(Reduce op) {
  return op == Reduce::kSum ? nccl::kSum : op == Reduce::kMax ? nccl::kMax : nccl::kMin;
}

bool is_float(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}
// Returns whether a reduction runs on the host, because NCCL's maximum and minimum of floats may drop a NaN.
bool by_host(DType dtype, Reduce op) {
  return op != Reduce::kSum && is_float(dtype);
}

char* byte(void* data, std::int64_t element, DType dtype) {
  return static_cast<char*>(data) + element * size_of(dtype);
}
const char* byte(const void* data, std::int64_t element, DType dtype) {
  return static_cast<const char*>(data) + element * size_of(dtype);
}
std::size_t unsign(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

bool all_equal(std::span<const std::int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::int64_t n) { return n == counts[0]; });
}

class Nccl final : public Communicator {
 public:
  Nccl(std::shared_ptr<Device> device, std::shared_ptr<Failure> failure, std::unique_ptr<Communicator> bootstrap,
       std::unique_ptr<Link> link)
      : device_(std::move(device)),
        failure_(std::move(failure)),
        bootstrap_(std::move(bootstrap)),
        link_(std::move(link)) {}

  int rank() const override { return bootstrap_->rank(); }
  int size() const override { return bootstrap_->size(); }
  std::string name() const override { return "nccl"; }
  // NCCL does not promise that operations of two communicators proceed at once on one device: their kernels wait for
  // other ranks while they hold cores that both need. So all communicators of a rank share one stream.
  bool one_at_a_time() const override { return true; }

  void all_reduce(void* data, std::int64_t count, DType dtype, Reduce op) override {
    check_reducible(dtype);
    const Call call{"all_reduce", count, dtype};
    begin(call, {{data, count * size_of(dtype)}});
    if (by_host(dtype, op)) {
      combine_on_host(call, data, data, 0, count, op);
    } else if (count > 0) {
      launch(call, [&](Comm c) {
        return api().all_reduce(data, data, unsign(count), type_of(dtype), op_of(op), c, device_->stream);
      });
      link_->wait_stream(call);
    }
    note(CallKind::kAllReduce, count, dtype);
  }

  void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype,
                      Reduce op) override {
    check_reducible(dtype);
    const std::int64_t all = total_of(counts, size()), own = counts[unsign(rank())], first = offset_of(counts, rank());
    const Call call{"reduce_scatter", all, dtype};
    begin(call, {{send, all * size_of(dtype)}, {receive, own * size_of(dtype)}});
    if (by_host(dtype, op)) {
      combine_on_host(call, send, receive, first, own, op);
    } else if (all > 0) {
      scatter_sum(call, send, receive, counts, op);
      link_->wait_stream(call);
    }
    note(CallKind::kReduceScatter, all, dtype);
  }

  void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype) override {
    const std::int64_t all = total_of(counts, size()), own = counts[unsign(rank())], width = size_of(dtype);
    const Call call{"all_gather", all, dtype};
    begin(call, {{send, own * width}, {receive, all * width}});
    if (all > 0 && all_equal(counts)) {
      launch(call, [&](Comm c) {
        return api().all_gather(send, receive, unsign(own * width), nccl::kUint8, c, device_->stream);
      });
      link_->wait_stream(call);
    } else if (all > 0) {
      group(call, [&](Comm c, auto add) {
        for (int r = 0; r < size(); ++r) {
          char* block = byte(receive, offset_of(counts, r), dtype);
          const std::int64_t bytes = counts[unsign(r)] * width;
          if (bytes > 0)
            add(api().broadcast(r == rank() ? send : block, block, unsign(bytes), nccl::kUint8, r, c, device_->stream));
        }
      });
      link_->wait_stream(call);
    }
    note(CallKind::kAllGather, all, dtype);
  }

  void all_to_all(const void* send, const Blocks& sent, void* receive, const Blocks& received, DType dtype) override {
    const std::int64_t all = sent.total(size()), width = size_of(dtype), own = sent.count(rank());
    received.total(size());
    if (own != received.count(rank()))
      throw Error("all_to_all: rank {} sends {} elements to rank {}, which expects {}", rank(), own, rank(),
                  received.count(rank()));
    const Call call{"all_to_all", all, dtype};
    begin(call, {{send, sent.extent() * width}, {receive, received.extent() * width}});
    if (own > 0)
      copy(byte(receive, received.offset(rank()), dtype), byte(send, sent.offset(rank()), dtype), own * width);
    group(call, [&](Comm c, auto add) {
      for (int shift = 1; shift < size(); ++shift) {
        const int to = (rank() + shift) % size(), from = (rank() - shift + size()) % size();
        if (const std::int64_t n = sent.count(to) * width; n > 0)
          add(api().send(byte(send, sent.offset(to), dtype), unsign(n), nccl::kUint8, to, c, device_->stream));
        if (const std::int64_t n = received.count(from) * width; n > 0)
          add(api().recv(byte(receive, received.offset(from), dtype), unsign(n), nccl::kUint8, from, c,
                         device_->stream));
      }
    });
    link_->wait_stream(call);
    note(CallKind::kAllToAll, all, dtype);
  }

  void broadcast(void* data, std::int64_t count, DType dtype, int root) override {
    if (root < 0 || root >= size()) throw Error("broadcast from rank {} of {}", root, size());
    const Call call{"broadcast", count, dtype, root};
    begin(call, {{data, count * size_of(dtype)}});
    if (count > 0) {
      launch(call, [&](Comm c) {
        return api().broadcast(data, data, unsign(count * size_of(dtype)), nccl::kUint8, root, c, device_->stream);
      });
      link_->wait_stream(call);
    }
    note(CallKind::kBroadcast, count, dtype);
  }

  void send(const void* data, std::int64_t count, DType dtype, int to) override {
    check_peer(to);
    const Call call{"send", count, dtype, to};
    begin(call, {{data, count * size_of(dtype)}});
    if (count > 0) {
      launch(call, [&](Comm c) {
        return api().send(data, unsign(count * size_of(dtype)), nccl::kUint8, to, c, device_->stream);
      });
      link_->wait_stream(call);
    }
    note(CallKind::kSend, count, dtype);
  }
  void recv(void* data, std::int64_t count, DType dtype, int from) override {
    check_peer(from);
    const Call call{"recv", count, dtype, from};
    begin(call, {{data, count * size_of(dtype)}});
    if (count > 0) {
      launch(call, [&](Comm c) {
        return api().recv(data, unsign(count * size_of(dtype)), nccl::kUint8, from, c, device_->stream);
      });
      link_->wait_stream(call);
    }
    note(CallKind::kRecv, count, dtype);
  }

  void barrier() override {
    const Call call{"barrier"};
    begin(call, {});
    void* one = device_->scratch(256);
    launch(call, [&](Comm c) { return api().all_reduce(one, one, 1, nccl::kUint8, nccl::kMax, c, device_->stream); });
    link_->wait_stream(call);
    link_->check_failure();
  }

  std::unique_ptr<Communicator> split(int color, int key) override;

  void abort(const std::string& reason) noexcept override {
    failure_->set(reason);
    bootstrap_->abort(reason);
  }
  Traffic traffic_of(CallKind kind) const override { return traffic_[kind]; }

 private:
  struct Memory {
    const void* data;
    std::int64_t bytes;
  };

  const nccl::Api& api() const { return *device_->api; }
  void check_peer(int peer) const {
    if (peer < 0 || peer >= size() || peer == rank())
      throw Error("rank {} of {} talks to rank {}", rank(), size(), peer);
  }
  void note(CallKind kind, std::int64_t count, DType dtype) {
    link_->check_failure();
    ++traffic_[kind].calls;
    traffic_[kind].bytes += count * size_of(dtype);
  }

  void begin(const Call& call, std::initializer_list<Memory> memory) {
    if (call.count < 0 && call.count != nccl::kNone) throw Error("nccl: {}: a negative count", call.text());
    link_->check_failure();
    device_->use();
    for (const Memory& m : memory) device_->check_memory(m.data, m.bytes);
    if (device_->options.before) device_->options.before(device_->stream);
  }

  template <class Enqueue>
  void launch(const Call& call, Enqueue enqueue) {
    link_->check(enqueue(link_->comm()), call);
    link_->settle(call);
  }

  // Puts all operations of `enqueue` into a group, which NCCL starts together. After an error it closes the group
  // before it ends the communicator.
  template <class Enqueue>
  void group(const Call& call, Enqueue enqueue) {
    link_->check(api().group_start(), call);
    int first = nccl::kSuccess;
    enqueue(link_->comm(), [&](int code) {
      if (first == nccl::kSuccess && code != nccl::kInProgress) first = code;
    });
    const int end = api().group_end();
    link_->check(first != nccl::kSuccess ? first : end, call);
    link_->settle(call);
  }

  void copy(void* to, const void* from, std::int64_t bytes) {
    if (to == from || bytes <= 0) return;
    device_->check(api().copy(to, from, unsign(bytes), nccl::kCopyDefault, device_->stream), "MemcpyAsync");
  }

  void scatter_sum(const Call& call, const void* send, void* receive, std::span<const std::int64_t> counts, Reduce op) {
    if (all_equal(counts))
      return launch(call, [&](Comm c) {
        return api().reduce_scatter(send, receive, unsign(counts[0]), type_of(call.dtype), op_of(op), c,
                                    device_->stream);
      });
    group(call, [&](Comm c, auto add) {
      for (int r = 0; r < size(); ++r) {
        if (counts[unsign(r)] == 0) continue;
        // A receive buffer is used only on the root. NCCL allows null elsewhere, but older libraries check it, so it is
        // set everywhere.
        const char* block = byte(send, offset_of(counts, r), call.dtype);
        void* into = r == rank() ? receive : const_cast<char*>(block);
        add(api().reduce(block, into, unsign(counts[unsign(r)]), type_of(call.dtype), op_of(op), r, c,
                         device_->stream));
      }
    });
  }

  // Combines elements [first, first + own) of all ranks' `send` in rank order into `receive`, chunk by chunk. A chunk
  // is written after all ranks have gathered it, so `receive` may be part of `send`.
  void combine_on_host(const Call& call, const void* send, void* receive, std::int64_t first, std::int64_t own,
                       Reduce op) {
    const std::int64_t width = size_of(call.dtype), chunk = std::max<std::int64_t>(1, kHostBytes / (width * size()));
    for (std::int64_t at = 0; at < call.count; at += chunk) {
      const std::int64_t n = std::min(chunk, call.count - at), from = std::max(at, first),
                         until = std::min(at + n, first + own);
      char* all = static_cast<char*>(device_->scratch(unsign(n * width * size())));
      launch(call, [&](Comm c) {
        return api().all_gather(byte(send, at, call.dtype), all, unsign(n * width), nccl::kUint8, c, device_->stream);
      });
      link_->wait_stream(call);
      if (from >= until) continue;
      host_.resize(unsign(n * width * size()));
      copy(host_.data(), all, n * width * size());
      link_->wait_stream(call);
      std::vector<const void*> sources;
      for (int r = 0; r < size(); ++r) sources.push_back(host_.data() + (r * n + from - at) * width);
      char* result = host_.data() + (from - at) * width;
      combine(result, sources, until - from, call.dtype, op);
      copy(byte(receive, from - first, call.dtype), result, (until - from) * width);
      link_->wait_stream(call);
    }
  }

  std::shared_ptr<Device> device_;
  std::shared_ptr<Failure> failure_;
  std::unique_ptr<Communicator> bootstrap_;
  std::unique_ptr<Link> link_;  // destroyed before the device
  std::vector<char> host_;
  TrafficByCall traffic_{Traffic{}};  // NCCL does not report its wire bytes
};

// Distributes the id that rank 0 of `bootstrap` makes to all its ranks.
UniqueId exchange_id(Communicator& bootstrap, const nccl::Api& api) {
  struct {
    std::int32_t error = 0;
    UniqueId id{};
  } message;
  if (bootstrap.rank() == 0) message.error = api.get_unique_id(&message.id);
  bootstrap.broadcast(&message, sizeof message, DType::kU8, 0);
  if (message.error != nccl::kSuccess) {
    const char* text = api.error_string(message.error);
    throw Error("nccl: ncclGetUniqueId on rank 0: {}", text != nullptr ? text : fmt::format("error {}", message.error));
  }
  return message.id;
}

std::unique_ptr<Communicator> Nccl::split(int color, int key) {
  if (color < 0) throw Error("split: color {} of rank {}; colors are not negative", color, rank());
  link_->check_failure();
  auto bootstrap = bootstrap_->split(color, key);
  auto link = std::make_unique<Link>(device_, failure_, bootstrap->rank(), bootstrap->size());
  if (api().split != nullptr)
    link->split_from(*link_, color, key);
  else
    link->init(exchange_id(*bootstrap, api()));
  return std::make_unique<Nccl>(device_, failure_, std::move(bootstrap), std::move(link));
}

// All ranks exchange the version of the library that they opened (negative for RCCL, 0 for none), so that all fail when
// one did.
void agree(Communicator& bootstrap, const Device* gpu, const std::exception_ptr& error) {
  std::vector<std::int32_t> versions(unsign(bootstrap.size()));
  const std::vector<std::int64_t> one(versions.size(), 1);
  const std::int32_t mine = gpu == nullptr ? 0 : gpu->api->hip ? -gpu->api->version : gpu->api->version;
  const auto text = [](std::int32_t version) {
    return fmt::format("{} {}", version < 0 ? "RCCL" : "NCCL", nccl::version_text(std::abs(version)));
  };
  bootstrap.all_gather(&mine, versions.data(), one, DType::kI32);
  if (error) std::rethrow_exception(error);
  for (std::size_t r = 0; r < versions.size(); ++r) {
    if (versions[r] == 0) throw Error("nccl: rank {} cannot open NCCL or its device; its own message says why", r);
    if (versions[r] != versions[0])
      throw Error("nccl: rank 0 has {}, rank {} has {}; one version is needed", text(versions[0]), r,
                  text(versions[r]));
  }
}

}  // namespace

std::unique_ptr<Communicator> open_nccl(Communicator& bootstrap, int device, NcclOptions options) {
  std::shared_ptr<Device> gpu;
  std::exception_ptr error;
  try {
    auto api = nccl::load(options);
    gpu = std::make_shared<Device>(std::move(api), device, std::move(options));
  } catch (...) {
    error = std::current_exception();
  }
  agree(bootstrap, gpu.get(), error);
  auto own = bootstrap.split(0, bootstrap.rank());
  const UniqueId id = exchange_id(*own, *gpu->api);
  auto failure = nccl::failure_of(id);
  own->barrier();  // all ranks hold `failure` first, so that a rank that fails at once and leaves does not destroy it
  auto link = std::make_unique<Link>(gpu, failure, own->rank(), own->size());
  link->init(id);
  return std::make_unique<Nccl>(std::move(gpu), std::move(failure), std::move(own), std::move(link));
}

}  // namespace molen::comm
