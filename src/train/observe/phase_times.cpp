#include "train/observe/phase_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <variant>

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

// The waits come after the streams.
constexpr int kDataWait = program::kNumPhases + static_cast<int>(program::kCommStreams.size() + kCopies.size());
constexpr int kBubble = kDataWait + 1;

bool between_stages(const program::Step& step) {
  const auto axis = program::axis_of(step.op);
  return axis && program::stream_of(*axis) == Stream::kPpComm;
}

// Times of the steady clock. In a list they are in order and do not overlap.
struct Span {
  std::int64_t start_ns = 0, end_ns = 0;
};

class Phases {
 public:
  Phases(const std::vector<program::Expanded>& ops, const program::Timeline& timeline,
         const std::vector<data::LoaderWait>& waits, std::vector<PhaseTime>& times)
      : ops_(ops), timeline_(timeline), times_(times) {
    open_.fill({-1, 0, 0});
    for (const data::LoaderWait& wait : waits) waits_.push_back({wait.start_ns, wait.end_ns});
    find_bubbles();
  }

  std::vector<std::int64_t> add() {
    std::vector<std::int64_t> ns(ops_.size());
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const program::Step& step = *ops_[i].step;
      const int phase = energy_phase_of(step);
      if (between_stages(step))
        ns[i] = add(step.stream, phase, span_of(i), bubbles_);
      else if (std::holds_alternative<program::LoadBatch>(step.op))
        ns[i] = add(step.stream, phase, span_of(i), waits_, kDataWait);
      else
        ns[i] = add(step.stream, phase, span_of(i));
    }
    for (const PhaseTime& time : open_) close(time);
    for (const Span& bubble : bubbles_) times_.push_back({kBubble, bubble.start_ns, bubble.end_ns});
    return ns;
  }

 private:
  std::int64_t at(double seconds) const { return timeline_.start_ns + std::llround(seconds * 1e9); }
  Span span_of(std::size_t op) const { return {at(timeline_.ops[op].start_s), at(timeline_.ops[op].end_s)}; }

  // The first of the spans that ends after a time.
  static auto first_after(const std::vector<Span>& spans, std::int64_t ns) {
    return std::ranges::upper_bound(spans, ns, {}, &Span::end_ns);
  }

  // Takes the times in which another op is open out of those in which messages wait. Messages on different streams may
  // overlap, and a message that sends is open as any op is.
  void find_bubbles() {
    const auto waits = [](const program::OpTime& op) { return op.waited_s > 0; };
    if (std::ranges::none_of(timeline_.ops, waits)) return;
    std::vector<Span> waiting, others;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const program::OpTime& op = timeline_.ops[i];
      const Span span = span_of(i);
      std::int64_t works_ns = span.start_ns;  // an op that waits for no stage works from its beginning
      if (between_stages(*ops_[i].step) && op.waited_s > 0)
        works_ns = std::min(span.end_ns, at(op.start_s + op.waited_s));
      if (works_ns > span.start_ns) waiting.push_back({span.start_ns, works_ns});
      if (span.end_ns > works_ns) others.push_back({works_ns, span.end_ns});
    }
    std::ranges::sort(waiting, {}, &Span::start_ns);
    std::ranges::sort(others, {}, &Span::start_ns);
    auto other = others.begin();
    std::int64_t free_ns = 0, busy_until_ns = 0;  // busy: the latest end of the ops that began until `free_ns`
    for (const Span& wait : waiting) {
      for (free_ns = std::max(free_ns, wait.start_ns); free_ns < wait.end_ns;) {
        for (; other != others.end() && other->start_ns <= free_ns; ++other)
          busy_until_ns = std::max(busy_until_ns, other->end_ns);
        if (busy_until_ns > free_ns) {
          free_ns = busy_until_ns;
          continue;
        }
        const std::int64_t until_ns = other == others.end() ? wait.end_ns : std::min(wait.end_ns, other->start_ns);
        bubbles_.push_back({free_ns, until_ns});
        free_ns = until_ns;
      }
    }
  }

  // Adds an op of a phase without the spans within it, which are added to the phase that is given for them, if any.
  // Returns the nanoseconds without these spans.
  std::int64_t add(Stream stream, int phase, Span op, const std::vector<Span>& within,
                   std::optional<int> phase_within = {}) {
    std::int64_t ns = 0;
    for (auto span = first_after(within, op.start_ns); span != within.end() && span->start_ns < op.end_ns; ++span) {
      const Span inside{std::max(op.start_ns, span->start_ns), std::min(op.end_ns, span->end_ns)};
      if (inside.start_ns > op.start_ns) ns += add(stream, phase, {op.start_ns, inside.start_ns});
      if (phase_within) add(stream, *phase_within, inside);
      op.start_ns = inside.end_ns;
    }
    if (op.end_ns > op.start_ns) ns += add(stream, phase, op);
    return ns;
  }

  std::int64_t add(Stream stream, int phase, Span span) {
    PhaseTime& last = open_[static_cast<std::size_t>(stream)];
    if (last.phase == phase && continues(last, span)) {
      last.end_ns = std::max(last.end_ns, span.end_ns);
    } else {
      close(last);
      last = {phase, span.start_ns, span.end_ns};
    }
    return span.end_ns - span.start_ns;
  }

  bool continues(const PhaseTime& last, const Span& next) const {
    if (next.start_ns - last.end_ns > kSamePhaseNs) return false;
    const auto bubble = first_after(bubbles_, last.end_ns);
    return bubble == bubbles_.end() || bubble->start_ns >= next.start_ns;
  }

  void close(const PhaseTime& time) {
    if (time.phase >= 0 && time.end_ns > time.start_ns) times_.push_back(time);
  }

  const std::vector<program::Expanded>& ops_;
  const program::Timeline& timeline_;
  std::vector<PhaseTime>& times_;
  std::vector<Span> waits_, bubbles_;
  std::array<PhaseTime, program::kNumStreams> open_;  // the last time of each stream
};

}  // namespace

const std::vector<std::string>& energy_phases() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int i = 0; i < program::kNumPhases; ++i) all.emplace_back(name_of(static_cast<program::Phase>(i)));
    for (const Stream stream : streams_as_phases()) all.emplace_back(name_of(stream));
    for (const char* more : {"data_wait", "bubble", "start", "validation", "checkpoint"}) all.emplace_back(more);
    return all;
  }();
  return names;
}

int energy_phase_of(const program::Step& step) {
  static const std::vector<Stream> streams = streams_as_phases();
  Stream stream = step.stream;
  if (const auto axis = program::axis_of(step.op)) stream = program::stream_of(*axis);
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (streams[i] == stream) return program::kNumPhases + static_cast<int>(i);
  return static_cast<int>(step.phase);
}

int energy_phase_of(OutsideSteps what) {
  return static_cast<int>(energy_phases().size()) - kOutside + static_cast<int>(what);
}

std::vector<std::int64_t> add_phase_times(const std::vector<program::Expanded>& ops, const program::Timeline& timeline,
                                          const std::vector<data::LoaderWait>& waits, std::vector<PhaseTime>& times) {
  MOLEN_CHECK(ops.size() == timeline.ops.size(), "a timeline of {} ops for a program of {}", timeline.ops.size(),
              ops.size());
  return Phases(ops, timeline, waits, times).add();
}

}  // namespace molen::train
