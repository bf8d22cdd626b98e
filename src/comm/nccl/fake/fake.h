// Test controls of the fake libraries, found by name with dlsym.
#pragma once

#include <cstddef>

// `alive`: streams and allocations that are not yet freed.
struct FakeRuntime {
  int devices = 8, stream_error = 0, alive = 0, version = 60'032'830;
};

extern "C" {

void fake_runtime_reset(int devices);
FakeRuntime fake_runtime_state();
void fake_runtime_stream_error(int error);  // every later stream query returns this; 0: the true state
// Until the next reset, treats memory that was not allocated here as plain host memory.
void fake_runtime_strict();
// Marks pointers as plain host memory and as memory of another device. All others are this thread's device's memory.
void fake_runtime_pointers(const void* host, const void* foreign);
void fake_runtime_version(int version);  // of HIP, encoded as in hipRuntimeGetVersion
int fake_runtime_device();               // the calling thread's
void fake_runtime_enqueue(void* stream, void (*run)(void*), void* argument);

// `polls`: polls of the communicator's state before it accepts an operation.
void fake_nccl_reset(int version, int polls);
// Makes the function `name` return `result` on rank `rank` (-1: on any rank).
void fake_nccl_fail(const char* name, int result, int rank);
// The next operation of rank `rank` never completes, and the communicator's state becomes `result`.
void fake_nccl_async(int result, int rank);
int fake_nccl_count(const char* name);  // calls of `name` since the reset
int fake_nccl_alive();                  // communicators not destroyed or aborted

}  // extern "C"
