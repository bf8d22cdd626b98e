// The right of one job to set a device: a lock of the kernel (flock) on one of the device's files. It needs no right to
// write, it belongs to the host, and it ends with the last process that holds it: the job and its guardian.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actuate/actuator.h"
#include "base/descriptor.h"
#include "base/units.h"

namespace molen::actuate {

class Locks {
 public:
  // Takes the locks of these settings. A lock whose owner is dead is waited for, at most `patience`, because the
  // guardian of that owner is restoring. A lock of a living owner is a failure that names it.
  static Result<Locks> take(const std::vector<const Actuator*>& actuators, Seconds patience);
  // Returns the descriptors, which a guardian inherits. None is below 3.
  std::vector<int> descriptors() const;

 private:
  std::vector<std::shared_ptr<Descriptor>> held_;
};

// Returns whether a process runs; one that has ended and was not waited for does not.
bool is_running(std::int64_t pid);

// Returns which process holds a lock of the kernel on a file, from the text of /proc/locks; 0 where none does, or the
// text does not tell.
std::int64_t holder_in(std::string_view locks, std::uint64_t device, std::uint64_t inode);

}  // namespace molen::actuate
