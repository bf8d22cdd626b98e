// A library with the CUDA runtime's functions, or HIP's with FAKE_HIP, on host memory. Streams are threads, so an
// operation is not done until a test waits for it.
#include "comm/nccl/fake/fake.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#ifdef FAKE_HIP
#define RUNTIME(name) hip##name
#else
#define RUNTIME(name) cuda##name
#endif

namespace {

struct FakeStream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false, stop = false;
  std::thread thread;

  FakeStream() : thread([this] { run(); }) {}
  ~FakeStream() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
      changed.notify_all();
    }
    thread.join();
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stop || !work.empty(); });
      if (work.empty()) return;
      const auto task = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      task();
      lock.lock();
      busy = false;
    }
  }
  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex);
    work.push_back(std::move(task));
    changed.notify_all();
  }
};

std::mutex mutex;
FakeRuntime state;
bool strict = false;
std::map<const char*, std::size_t> allocated;
const void* host_pointer = nullptr;
const void* foreign_pointer = nullptr;
thread_local int last_error = 0, current_device = 0;

// Requires the mutex.
bool is_host(const void* data) {
  if (!strict) return data == host_pointer;
  const auto* p = static_cast<const char*>(data);
  const auto after = allocated.upper_bound(p);
  return after == allocated.begin() || std::prev(after)->first + std::prev(after)->second <= p;
}

int failed(int error) {
  return last_error = error;
}

}  // namespace

extern "C" {

void fake_runtime_reset(int devices) {
  const std::lock_guard lock(mutex);
  state.devices = devices;
  state.stream_error = 0;
  state.version = FakeRuntime{}.version;
  strict = false;
  host_pointer = foreign_pointer = nullptr;
}
FakeRuntime fake_runtime_state() {
  const std::lock_guard lock(mutex);
  return state;
}
void fake_runtime_stream_error(int error) {
  const std::lock_guard lock(mutex);
  state.stream_error = error;
}
void fake_runtime_version(int version) {
  const std::lock_guard lock(mutex);
  state.version = version;
}
void fake_runtime_strict() {
  const std::lock_guard lock(mutex);
  strict = true;
}
void fake_runtime_pointers(const void* host, const void* foreign) {
  const std::lock_guard lock(mutex);
  host_pointer = host;
  foreign_pointer = foreign;
}
int fake_runtime_device() {
  return current_device;
}
void fake_runtime_enqueue(void* stream, void (*run)(void*), void* argument) {
  static_cast<FakeStream*>(stream)->add([=] { run(argument); });
}

int RUNTIME(GetDeviceCount)(int* count) {
  const std::lock_guard lock(mutex);
  *count = state.devices;
  return state.devices > 0 ? 0 : failed(100);
}
int RUNTIME(SetDevice)(int device) {
  current_device = device;
  return 0;
}
int RUNTIME(StreamCreateWithFlags)(void** stream, unsigned flags) {
  if (flags != 1) return failed(1);
  *stream = new FakeStream;
  const std::lock_guard lock(mutex);
  ++state.alive;
  return 0;
}
int RUNTIME(StreamDestroy)(void* stream) {
  delete static_cast<FakeStream*>(stream);
  const std::lock_guard lock(mutex);
  --state.alive;
  return 0;
}
int RUNTIME(StreamQuery)(void* stream) {
  {
    const std::lock_guard lock(mutex);
    if (state.stream_error != 0) return failed(state.stream_error);
  }
  auto& s = *static_cast<FakeStream*>(stream);
  const std::lock_guard lock(s.mutex);
  return s.busy || !s.work.empty() ? failed(600) : 0;
}
int RUNTIME(Malloc)(void** data, std::size_t bytes) {
  *data = std::malloc(bytes);
  const std::lock_guard lock(mutex);
  allocated[static_cast<const char*>(*data)] = bytes;
  ++state.alive;
  return 0;
}
int RUNTIME(Free)(void* data) {
  const std::lock_guard lock(mutex);
  allocated.erase(static_cast<const char*>(data));
  std::free(data);
  --state.alive;
  return 0;
}
int RUNTIME(MemcpyAsync)(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  if (kind != 4) return failed(21);
  static_cast<FakeStream*>(stream)->add([=] {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    std::memmove(to, from, bytes);
  });
  return 0;
}
int RUNTIME(MemsetAsync)(void* data, int value, std::size_t bytes, void* stream) {
  static_cast<FakeStream*>(stream)->add([=] { std::memset(data, value, bytes); });
  return 0;
}
int RUNTIME(PointerGetAttributes)(void* attributes, const void* data) {
  struct {
    int type, device;
    void *device_pointer, *host_pointer;
#ifndef FAKE_HIP
    long reserved[8];
#else
    int is_managed;
    unsigned flags;
#endif
  } found{};
  const std::lock_guard lock(mutex);
#ifdef FAKE_HIP
  if (is_host(data)) return failed(1);  // ROCm's answer for unknown memory
#endif
  found.type = is_host(data) ? 0 : 2;
  found.device = data == foreign_pointer ? current_device + 1 : current_device;
  std::memcpy(attributes, &found, sizeof found);
  return 0;
}
int RUNTIME(GetLastError)() {
  return std::exchange(last_error, 0);
}
#ifdef FAKE_HIP
int hipRuntimeGetVersion(int* version) {
  const std::lock_guard lock(mutex);
  *version = state.version;
  return 0;
}
#endif
const char* RUNTIME(GetErrorString)(int error) {
  return error == 700 ? "an illegal memory access was encountered" : "fake runtime error";
}

}  // extern "C"
