// A library with the CUDA runtime's functions on host memory: streams are threads, so what a test does not wait for is
// not done.
#include "comm/nccl/fake/fake.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

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
FakeCudart state;
const void* host_pointer = nullptr;
const void* foreign_pointer = nullptr;
thread_local int last_error = 0, current_device = 0;

int failed(int error) {
  return last_error = error;
}

}  // namespace

extern "C" {

void fake_cudart_reset(int devices) {
  const std::lock_guard lock(mutex);
  state.devices = devices;
  state.stream_error = 0;
  host_pointer = foreign_pointer = nullptr;
}
FakeCudart fake_cudart_state() {
  const std::lock_guard lock(mutex);
  return state;
}
void fake_cudart_stream_error(int error) {
  const std::lock_guard lock(mutex);
  state.stream_error = error;
}
void fake_cudart_pointers(const void* host, const void* foreign) {
  const std::lock_guard lock(mutex);
  host_pointer = host;
  foreign_pointer = foreign;
}
int fake_cudart_device() {
  return current_device;
}
void fake_cudart_enqueue(void* stream, void (*run)(void*), void* argument) {
  static_cast<FakeStream*>(stream)->add([=] { run(argument); });
}

int cudaGetDeviceCount(int* count) {
  const std::lock_guard lock(mutex);
  *count = state.devices;
  return state.devices > 0 ? 0 : failed(100);
}
int cudaSetDevice(int device) {
  current_device = device;
  return 0;
}
int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  if (flags != 1) return failed(1);
  *stream = new FakeStream;
  const std::lock_guard lock(mutex);
  ++state.alive;
  return 0;
}
int cudaStreamDestroy(void* stream) {
  delete static_cast<FakeStream*>(stream);
  const std::lock_guard lock(mutex);
  --state.alive;
  return 0;
}
int cudaStreamQuery(void* stream) {
  {
    const std::lock_guard lock(mutex);
    if (state.stream_error != 0) return failed(state.stream_error);
  }
  auto& s = *static_cast<FakeStream*>(stream);
  const std::lock_guard lock(s.mutex);
  return s.busy || !s.work.empty() ? failed(600) : 0;
}
int cudaMalloc(void** data, std::size_t bytes) {
  *data = std::malloc(bytes);
  const std::lock_guard lock(mutex);
  ++state.alive;
  return 0;
}
int cudaFree(void* data) {
  std::free(data);
  const std::lock_guard lock(mutex);
  --state.alive;
  return 0;
}
int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  if (kind != 4) return failed(21);
  static_cast<FakeStream*>(stream)->add([=] {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    std::memmove(to, from, bytes);
  });
  return 0;
}
int cudaMemsetAsync(void* data, int value, std::size_t bytes, void* stream) {
  static_cast<FakeStream*>(stream)->add([=] { std::memset(data, value, bytes); });
  return 0;
}
int cudaPointerGetAttributes(void* attributes, const void* data) {
  struct {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8];
  } found{};
  const std::lock_guard lock(mutex);
  found.type = data == host_pointer ? 0 : 2;
  found.device = data == foreign_pointer ? current_device + 1 : current_device;
  std::memcpy(attributes, &found, sizeof found);
  return 0;
}
int cudaGetLastError() {
  return std::exchange(last_error, 0);
}
const char* cudaGetErrorString(int error) {
  return error == 700 ? "an illegal memory access was encountered" : "fake CUDA error";
}

}  // extern "C"
