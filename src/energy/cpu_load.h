// Keeps processors busy, to measure the power that they take.
#pragma once

#include <thread>
#include <vector>

namespace molen::energy {

// Threads that multiply and add without end, on numbers that the caches hold.
class CpuLoad {
 public:
  ~CpuLoad() { run_on(0); }
  CpuLoad() = default;
  CpuLoad(const CpuLoad&) = delete;
  CpuLoad& operator=(const CpuLoad&) = delete;

  // Ends the threads that run, and starts this number of them.
  void run_on(int threads);

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace molen::energy
