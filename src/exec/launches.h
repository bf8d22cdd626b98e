// Launches of ops that the host does not wait for. Each of the program's streams has a stream of the device. Events
// order ops across streams and measure their times. The code uses c10, so it works for any accelerator that libtorch
// supports.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "program/ir/program.h"

namespace molen::exec {

// An op of the expansion is launched between `begin` and `end`, on the thread and the device stream of its program
// stream. The caller must make sure that another thread uses the same op only after `end`. Throws c10::Error when the
// device fails, in this op or in an earlier one.
class Launches {
 public:
  Launches(at::Device device, std::size_t ops);

  // Waits for what the calling thread has launched, and begins a step. Returns the start on the steady clock, in
  // nanoseconds. The device's times count from an event some microseconds after it.
  std::int64_t begin_step();
  // Returns the device stream that the calling thread must make current while it runs the ops of a program's stream.
  c10::Stream stream(program::Stream stream) const { return streams_[static_cast<std::size_t>(stream)]; }
  // Everything that the thread launches after this call begins after `op` has ended.
  void order_after(std::size_t op) { ends_[op].block(current()); }
  void begin(std::size_t op) { begins_[op].record(current()); }
  void end(std::size_t op) { ends_[op].record(current()); }
  // Blocks the calling thread until everything that it launched has ended.
  void wait() const { guard_.synchronizeStream(current()); }
  // Returns when an op began and ended, in seconds of the step; the op must have ended.
  std::pair<double, double> seconds(std::size_t op) const;

 private:
  c10::Stream current() const { return guard_.getStream(device_); }

  at::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  std::vector<c10::Stream> streams_;
  std::vector<c10::Event> begins_, ends_;
  c10::Event step_;
};

}  // namespace molen::exec
