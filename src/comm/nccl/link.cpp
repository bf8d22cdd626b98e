#include "comm/nccl/link.h"

#include <time.h>

#include <exception>
#include <map>

#include "base/clock.h"
#include "base/error.h"

namespace molen::comm::nccl {
namespace {

constexpr double kGrace = 5;  // seconds before an orderly shutdown becomes an abort

// Short collectives take tens of microseconds, so the first polls follow each other without a pause. After that the
// thread sleeps between polls, because the thread that launches kernels may need its core.
class Patience {
 public:
  explicit Patience(double timeout) : timeout_(timeout) {}
  // Returns false when the timeout has passed.
  bool pause() {
    if (looks_++ < kSpins) return true;
    if (timeout_ > 0 && now().value - start_ > timeout_) return false;
    const timespec nap{0, kNap};
    nanosleep(&nap, nullptr);
    return true;
  }

 private:
  static constexpr int kSpins = 200;
  static constexpr long kNap = 10'000;  // ns
  double timeout_, start_ = now().value;
  int looks_ = 0;
};

}  // namespace

void Failure::set(const std::string& reason) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason.empty() ? "aborted" : reason;
  } catch (...) {  // no memory for the text: the flag alone reports the failure
  }
  set_.store(true, std::memory_order_release);
}
void Failure::check() const {
  if (!is_set()) return;
  const std::lock_guard lock(mutex_);
  throw Error("{}", reason_.empty() ? "aborted" : reason_);
}

std::shared_ptr<Failure> failure_of(const UniqueId& id) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Failure>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Failure>& entry = known[std::string(id.bytes, sizeof id.bytes)];
  std::shared_ptr<Failure> failure = entry.lock();
  if (!failure) entry = failure = std::make_shared<Failure>();
  return failure;
}

Device::Device(std::shared_ptr<const Api> a, int number, NcclOptions o)
    : api(std::move(a)), ordinal(number), options(std::move(o)) {
  int count = 0;
  check(api->device_count(&count), "GetDeviceCount");
  if (ordinal < 0 || ordinal >= count)
    throw UsageError("nccl: there is no {0} device {1}; there are {2} {0} devices, and their numbers begin with 0",
                     api->runtime(), ordinal, count);
  use();
  check(api->stream_create(&stream, kNonBlocking), "StreamCreateWithFlags");
}
Device::~Device() {
  api->set_device(ordinal);
  if (scratch_ != nullptr) api->free(scratch_);
  if (stream != nullptr) api->stream_destroy(stream);
}

void Device::use() const {
  check(api->set_device(ordinal), "SetDevice");
}

void* Device::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    if (scratch_ != nullptr) api->free(scratch_);
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    check(api->allocate(&scratch_, bytes), "Malloc");
    scratch_bytes_ = bytes;
    // Clears the buffer, because a barrier reduces its content: it must not read uninitialized memory.
    check(api->fill(scratch_, 0, bytes, stream), "MemsetAsync");
  }
  return scratch_;
}

void Device::check_memory(const void* data, std::int64_t bytes) const {
  if (bytes <= 0) return;
  PointerAttributes found;
  // HIP may return an error for plain host memory, as CUDA did before 11.
  if (const int error = api->attributes(&found, data); error == kInvalidValue) {
    api->clear_error();
    found.type = kUnregistered;
  } else {
    check(error, "PointerGetAttributes");
  }
  if (found.type == kUnregistered)
    throw Error("nccl: {} is plain host memory; NCCL moves device memory, host values go over mpi or threads", data);
  if (found.type == kDeviceMemory && found.device != ordinal)
    throw Error("nccl: {} is memory of {} device {}; this communicator is on device {}", data, api->runtime(),
                found.device, ordinal);
}

void Device::check(int error, const char* what) const {
  if (error == 0) return;
  api->clear_error();
  const char* text = api->runtime_error(error);
  throw Error("nccl: {}{} on {} device {}: {}", api->hip ? "hip" : "cuda", what, api->runtime(), ordinal,
              text != nullptr ? text : fmt::format("error {}", error));
}

std::string Call::text() const {
  std::string result = kind;
  if (count != kNone) result += fmt::format(" of {} x {}", count, name_of(dtype));
  if (peer >= 0) result += fmt::format(", rank {}", peer);
  return result;
}

Link::~Link() {
  if (comm_ == nullptr) return;
  const Api& api = *device_->api;
  api.set_device(device_->ordinal);
  bool orderly = !failure_->is_set() && std::uncaught_exceptions() == 0;
  if (orderly) {
    int state = api.finalize(comm_);
    Patience patience(kGrace);
    while (state == kInProgress && !failure_->is_set() && patience.pause())
      if (api.async_error(comm_, &state) != kSuccess) break;
    orderly = state == kSuccess;
  }
  if (orderly)
    api.destroy(comm_);
  else
    kill();
}

void Link::init(const UniqueId& id) {
  const Call call{"creating a communicator"};
  failure_->check();
  device_->use();
  Config config;
  check(device_->api->init_rank(&comm_, size_, id, rank_, &config), call);
  settle(call);
  verify();
}

void Link::split_from(Link& parent, int color, int key) {
  const Call call{"split"};
  device_->use();
  // `comm_` is set while the parent communicator is still in progress.
  parent.check(device_->api->split(parent.comm_, color, key, &comm_, nullptr), call);
  parent.settle(call);
  if (comm_ == nullptr) fail("NCCL made no communicator", call);
  settle(call);
  verify();
}

// Compares NCCL's rank and size with those of the bootstrap, which decide where blocks begin.
void Link::verify() {
  const Call call{"creating a communicator"};
  int rank = -1, size = -1;
  check(device_->api->user_rank(comm_, &rank), call);
  check(device_->api->count(comm_, &size), call);
  if (rank != rank_ || size != size_) fail(fmt::format("NCCL numbers it rank {} of {}", rank, size), call);
}

std::string Link::why(int code) const {
  const Api& api = *device_->api;
  const char* text = api.error_string(code);
  const char* last = api.last_error != nullptr ? api.last_error(comm_) : nullptr;
  return fmt::format("{}{}{}", text != nullptr ? text : fmt::format("error {}", code),
                     last != nullptr && *last ? ": " : "", last != nullptr ? last : "");
}

void Link::check(int code, const Call& call) {
  if (code != kSuccess && code != kInProgress) fail(why(code), call);
}

void Link::settle(const Call& call) {
  Patience patience(device_->options.timeout.value);
  for (;;) {
    check_failure();
    int state = kSuccess;
    check(device_->api->async_error(comm_, &state), call);
    if (state == kSuccess) return;
    check(state, call);
    if (!patience.pause()) fail(fmt::format("not done after {} s", device_->options.timeout.value), call);
  }
}

void Link::wait_stream(const Call& call) {
  const Api& api = *device_->api;
  Patience patience(device_->options.timeout.value);
  for (;;) {
    const int error = api.stream_query(device_->stream);
    // The runtime keeps any error (even "not ready") as the thread's last error, where libtorch's check after a launch
    // would find it.
    if (error != 0) api.clear_error();
    if (error != 0 && error != kNotReady) {
      const char* text = api.runtime_error(error);
      fail(fmt::format("{} device {}: {}", api.runtime(), device_->ordinal, text != nullptr ? text : "an error"), call);
    }
    check_failure();
    int state = kSuccess;
    check(api.async_error(comm_, &state), call);
    check(state, call);
    if (error == 0) return;
    if (!patience.pause()) fail(fmt::format("not done after {} s", device_->options.timeout.value), call);
  }
}

void Link::check_failure() {
  if (!failure_->is_set()) return;
  kill();
  failure_->check();
}

void Link::fail(const std::string& what, const Call& call) {
  failure_->set(fmt::format("nccl: {} on rank {} of {}: {}", call.text(), rank_, size_, what));
  kill();
  failure_->check();
  throw Error("nccl: failed");  // not reached
}

void Link::kill() noexcept {
  if (comm_ == nullptr) return;
  const Api& api = *device_->api;
  api.set_device(device_->ordinal);
  api.abort(comm_);
  comm_ = nullptr;
  // The caller frees its buffers when this throws, so waits until the kernels that use them have ended, unless the
  // device itself hangs.
  Patience patience(kGrace);
  while (api.stream_query(device_->stream) == kNotReady && patience.pause()) {
  }
  api.clear_error();
}

}  // namespace molen::comm::nccl
