// Ends a process that was told to stop and does not: a meter whose driver hangs holds its reader for ever.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/descriptor.h"

namespace molen::collect {

class Watchdog {
 public:
  // Once the descriptor `stop` is readable, and stays so, this object has `limit_s` to be destroyed. Else the process
  // ends with status 1 at once, after `say`. Throws Error if there can be no thread.
  Watchdog(int stop, double limit_s, std::function<void(const std::string&)> say);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  const Descriptor over_;  // readable once this object is destroyed
  std::thread thread_;
};

}  // namespace molen::collect
