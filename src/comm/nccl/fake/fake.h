// What the tests turn in the fake libraries, found by name with dlsym.
#pragma once

#include <cstddef>

// `alive`: streams and allocations not given back.
struct FakeRuntime {
  int devices = 8, stream_error = 0, alive = 0, version = 60'032'830;
};

extern "C" {

void fake_runtime_reset(int devices);
FakeRuntime fake_runtime_state();
void fake_runtime_stream_error(int error);  // what every stream query says from now on; 0: the truth
// From now on memory that was not allocated here is plain host memory, until the next reset.
void fake_runtime_strict();
// Pointers that are plain host memory, or memory of another device. All others are this thread's device's memory.
void fake_runtime_pointers(const void* host, const void* foreign);
void fake_runtime_version(int version);  // of HIP, as hipRuntimeGetVersion counts
int fake_runtime_device();               // the calling thread's
void fake_runtime_enqueue(void* stream, void (*run)(void*), void* argument);

// `polls`: looks at the communicator's state that pass before it takes what it was asked.
void fake_nccl_reset(int version, int polls);
// Function `name` returns `result` on rank `rank` (-1: any).
void fake_nccl_fail(const char* name, int result, int rank);
// The next operation of rank `rank` is never done, and the communicator's state becomes `result`.
void fake_nccl_async(int result, int rank);
int fake_nccl_count(const char* name);  // calls of it since the reset
int fake_nccl_alive();                  // communicators not destroyed or aborted

}  // extern "C"
