#include "exec/launches.h"

#include "base/clock.h"

namespace molen::exec {
namespace {

constexpr auto kTimed = c10::EventFlag::BACKEND_DEFAULT;  // events with the other flag have no times

std::vector<c10::Event> events(at::Device device, std::size_t count) {
  std::vector<c10::Event> made;
  made.reserve(count);
  for (std::size_t i = 0; i < count; ++i) made.emplace_back(device.type(), kTimed);
  return made;
}

}  // namespace

Launches::Launches(at::Device device, std::size_t ops)
    : device_(device),
      guard_(device.type()),
      begins_(events(device, ops)),
      ends_(events(device, ops)),
      step_(device.type(), kTimed) {
  for (int s = 0; s < program::kNumStreams; ++s) streams_.push_back(guard_.getStreamFromGlobalPool(device));
}

std::int64_t Launches::begin_step() {
  wait();
  const std::int64_t begun = now_ns();
  step_.record(stream(program::Stream::kCompute));
  return begun;
}

std::pair<double, double> Launches::seconds(std::size_t op) const {
  constexpr double kSecond = 1e-3;  // c10 counts milliseconds
  return {step_.elapsedTime(begins_[op]) * kSecond, step_.elapsedTime(ends_[op]) * kSecond};
}

}  // namespace molen::exec
