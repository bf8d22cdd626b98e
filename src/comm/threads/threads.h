// N ranks as threads of one process, in host memory or in the memory of a device that they share. Deterministic; tests
// can inject delay, disorder and failure.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "comm/memory.h"

namespace molen::comm {

struct ThreadOptions {
  int delay_us = 0;  // each call first sleeps a random time up to this: delays, and disorder of arrival
  std::uint64_t seed = 0;
  int fail_rank = -1;           // this rank throws ...
  std::int64_t fail_call = -1;  // ... at its call with this number (from 0)
  Memory* memory = nullptr;     // memory that may hold buffers besides the host's; must outlive the world
};

class ThreadWorld {
 public:
  explicit ThreadWorld(int ranks, ThreadOptions options = {});
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  // Returns the communicator of a rank; to be called once per rank. When a communicator is destroyed while other ranks
  // wait for its rank, those throw Error.
  std::unique_ptr<Communicator> communicator(int rank);

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace molen::comm
