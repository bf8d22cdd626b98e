// The settings that a job holds on one host until it ends: it sets them itself (Session), or a process with more rights
// does so for it (src/daemon). Whoever sets them restores them, whatever ends the job.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actuate/actuator.h"

namespace molen::actuate {

// Not thread-safe.
class HeldSettings {
 public:
  virtual ~HeldSettings() = default;

  virtual std::size_t size() const = 0;
  virtual const Actuator& actuator(std::size_t index) const = 0;
  // Says which values `set` will be called with again and again, so that it need not prepare for each of them. A
  // failure changes nothing.
  virtual Result<Done> announce(std::size_t index, const std::vector<std::int64_t>& values) = 0;
  // Sets one of them; a failure leaves it as it was.
  virtual Result<Done> set(std::size_t index, std::int64_t value) = 0;
  // Fails once nobody would restore the settings after the job's death. To be called now and then; `set` calls it too.
  virtual Result<Done> keep_guarded() = 0;
  // Restores all. A second call does nothing.
  virtual Restoration end() = 0;
};

}  // namespace molen::actuate
