#include "base/work_at_once.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace molen {

void each_at_once(std::size_t count, int at_once, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  std::size_t failed = count;
  const auto some = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) failed = i, failure = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> others;
  for (std::size_t t = 1; t < std::min(static_cast<std::size_t>(std::max(1, at_once)), count); ++t)
    others.emplace_back(some);
  some();
  others.clear();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace molen
