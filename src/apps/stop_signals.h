// The end of a command that serves until a signal comes.
#pragma once

#include <csignal>

#include "base/descriptor.h"

namespace molen::apps {

// While it lives, the first SIGINT and the first SIGTERM make a descriptor readable; the second of one kind ends the
// process. One may live at a time. Throws Error if the system has no descriptor.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  int get() const { return descriptor_.get(); }

 private:
  Descriptor descriptor_;
  struct sigaction before_[2]{};
};

}  // namespace molen::apps
