// A training rank's flight record and its watch over the other ranks (src/store/flight.h, watch.h). The executor and
// the loop report to the record; the watch has threads of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "exec/executor.h"
#include "store/flight.h"
#include "train/trainer.h"

namespace molen::train {

// Records nothing until `open` is called.
class FlightRecorder final : public exec::Observer {
 public:
  FlightRecorder();
  // Records that the rank ended, or that it failed when an exception is propagating.
  ~FlightRecorder() override;

  // Creates this rank's file under the run directory and starts to beat and watch. `attempt` is rank 0's; `job` must
  // outlive this object. Collective over `world`. When one rank has no room for its file, no rank records or watches:
  // returns why, on all ranks; else nothing. When a rank dies, stops or hangs, the recorder writes the report, prints
  // its summary on stderr and ends the process with status 1.
  std::string open(const Job& job, std::int64_t attempt, comm::Communicator& world);

  void phase(store::FlightPhase phase, std::int64_t step) noexcept;
  void step_took(double seconds);

  void begin(program::Stream stream, std::size_t op, std::int64_t ns) noexcept override;
  void end(program::Stream stream, std::size_t op, std::int64_t ns) noexcept override;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

}  // namespace molen::train
