#include "train/observe/phase_times.h"

#include <array>
#include <cmath>

#include "base/error.h"

namespace molen::train {
namespace {

using program::Stream;

constexpr int kOutside = 3;
constexpr std::array kCopies{Stream::kToHost, Stream::kToDevice};

// The streams that are phases themselves, after the phases of a program.
std::vector<Stream> streams_as_phases() {
  std::vector<Stream> streams(program::kCommStreams.begin(), program::kCommStreams.end());
  streams.insert(streams.end(), kCopies.begin(), kCopies.end());
  return streams;
}

int phase_of(const program::Step& step) {
  static const std::vector<Stream> streams = streams_as_phases();
  Stream stream = step.stream;
  if (const auto axis = program::axis_of(step.op)) stream = program::stream_of(*axis);
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (streams[i] == stream) return program::kNumPhases + static_cast<int>(i);
  return static_cast<int>(step.phase);
}

}  // namespace

const std::vector<std::string>& energy_phases() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int i = 0; i < program::kNumPhases; ++i) all.emplace_back(name_of(static_cast<program::Phase>(i)));
    for (const Stream stream : streams_as_phases()) all.emplace_back(name_of(stream));
    for (const char* outside : {"start", "validation", "checkpoint"}) all.emplace_back(outside);
    return all;
  }();
  return names;
}

int energy_phase_of(OutsideSteps what) {
  return static_cast<int>(energy_phases().size()) - kOutside + static_cast<int>(what);
}

void add_phase_times(const std::vector<program::Expanded>& ops, const program::Timeline& timeline,
                     std::vector<PhaseTime>& times) {
  MOLEN_CHECK(ops.size() == timeline.ops.size(), "a timeline of {} ops for a program of {}", timeline.ops.size(),
              ops.size());
  std::array<PhaseTime, program::kNumStreams> open;  // the last time of each stream
  open.fill({-1, 0, 0});
  const auto at = [&](double seconds) { return timeline.start_ns + std::llround(seconds * 1e9); };
  const auto close = [&](const PhaseTime& time) {
    if (time.phase >= 0 && time.end_ns > time.start_ns) times.push_back(time);
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    PhaseTime& last = open[static_cast<std::size_t>(ops[i].step->stream)];
    const PhaseTime now{phase_of(*ops[i].step), at(timeline.ops[i].start_s), at(timeline.ops[i].end_s)};
    if (last.phase == now.phase && now.start_ns - last.end_ns <= kSamePhaseNs) {
      last.end_ns = std::max(last.end_ns, now.end_ns);
      continue;
    }
    close(last);
    last = now;
  }
  for (const PhaseTime& time : open) close(time);
}

}  // namespace molen::train
