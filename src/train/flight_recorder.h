// A training rank's flight record and its watch over the others (src/store/flight.h, watch.h), beside the executor and
// the loop.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "exec/executor.h"
#include "store/flight.h"
#include "train/trainer.h"

namespace molen::train {

// Records nothing before `open`.
class FlightRecorder final : public exec::Observer {
 public:
  FlightRecorder();
  // The record then says that the rank ended, or failed where an exception is on its way.
  ~FlightRecorder() override;

  // Creates this rank's file under the run directory and starts to beat and watch. `attempt` as rank 0 has it; `job`
  // must outlive this. Collective over `world`; throws Error on all ranks where one has no room for its file.
  // When a rank dies, stops or hangs, the report is written, its summary said on stderr and the process ended with 1.
  void open(const Job& job, std::int64_t attempt, comm::Communicator& world);

  void phase(store::FlightPhase phase, std::int64_t step) noexcept;
  void step_took(double seconds);

  void begin(program::Stream stream, std::size_t op, std::int64_t ns) noexcept override;
  void end(program::Stream stream, std::size_t op, std::int64_t ns) noexcept override;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

}  // namespace molen::train
