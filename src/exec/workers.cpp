#include "exec/workers.h"

#include <utility>

namespace molen::exec {

Workers::Workers(const std::vector<program::Stream>& streams, std::function<void(program::Stream)> prepare) {
  try {
    for (const program::Stream stream : streams)
      threads_.emplace_back([this, stream, prepare] { serve(stream, prepare); });
  } catch (...) {  // the system has no thread left; the threads that began must end
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    begun_.notify_all();
    throw;
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  begun_.notify_all();
  threads_.clear();  // joins them while the other members live
}

void Workers::run(const std::function<void(program::Stream)>& stream, const std::function<void()>& caller) {
  {
    const std::lock_guard lock(mutex_);
    work_ = &stream;
    running_ = threads_.size();
    ++step_;
  }
  begun_.notify_all();
  caller();
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return running_ == 0; });
}

void Workers::serve(program::Stream stream, const std::function<void(program::Stream)>& prepare) {
  prepare(stream);
  std::uint64_t served = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begun_.wait(lock, [&] { return stopped_ || step_ > served; });
    if (stopped_) return;
    served = step_;
    const std::function<void(program::Stream)>& work = *work_;
    lock.unlock();
    work(stream);
    lock.lock();
    if (--running_ == 0) ended_.notify_one();
  }
}

}  // namespace molen::exec
