// Threads that run the streams of a program beside the caller's thread, step after step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "program/ir/op.h"

namespace molen::exec {

// A thread for each of the given streams. The threads live as long as this object, so what a thread has made for
// itself, such as OpenMP's team, is used by all steps.
class Workers {
 public:
  // Calls `prepare` once on each thread before its first step.
  Workers(const std::vector<program::Stream>& streams, std::function<void(program::Stream)> prepare);
  ~Workers();  // no step may be running
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Calls `stream` on each thread while `caller` runs on the calling thread; returns when all of them have returned.
  // The threads see all memory that the calling thread wrote before the call, and the calling thread then sees all that
  // they wrote. None of the functions may throw.
  void run(const std::function<void(program::Stream)>& stream, const std::function<void()>& caller);

 private:
  void serve(program::Stream stream, const std::function<void(program::Stream)>& prepare);

  std::mutex mutex_;  // guards the members below except `threads_`
  std::condition_variable begun_, ended_;
  std::uint64_t step_ = 0;  // counts the calls of `run`
  std::size_t running_ = 0;
  bool stopped_ = false;
  const std::function<void(program::Stream)>* work_ = nullptr;
  std::vector<std::jthread> threads_;  // last, because the threads use the other members
};

}  // namespace molen::exec
