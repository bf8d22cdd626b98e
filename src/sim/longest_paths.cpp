#include "sim/longest_paths.h"

#include <algorithm>
#include <array>
#include <deque>

namespace molen::sim {
namespace {

// Walks each stage in list order, which no edge and no stream contradicts. A stage pauses at a meeting until all of its
// members have arrived.
class Walk {
 public:
  Walk(const program::Stages& stages, const std::vector<std::vector<double>>& work, bool one_at_a_time)
      : stages_(stages), work_(work), meetings_(stages.meetings()), places_(stages.size()) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      places_[s].turn = one_at_a_time;
      timelines_.emplace_back();
      timelines_.back().ops.resize(stages.ops(s).size());
      runnable_.push_back(s);
    }
  }

  std::optional<std::vector<program::Timeline>> run() {
    while (!runnable_.empty()) {
      const std::size_t stage = runnable_.front();
      runnable_.pop_front();
      if (!advance(stage)) return std::nullopt;
    }
    for (std::size_t s = 0; s < stages_.size(); ++s)
      if (places_[s].next < stages_.ops(s).size()) return std::nullopt;
    return std::move(timelines_);
  }

 private:
  struct Place {
    std::size_t next = 0;
    std::array<double, program::kNumStreams> free{};  // when each stream ends its latest op
    bool turn = false;                                // whether communication takes turns
    double turn_free = 0.0;
  };
  struct Meeting {
    std::size_t arrived = 0;
    double last_arrival_s = 0.0, work_s = 0.0;
  };

  // Returns whether every op that the stage has met so far waits only for earlier ones.
  bool advance(std::size_t stage) {
    const auto& ops = stages_.ops(stage);
    Place& place = places_[stage];
    for (; place.next < ops.size(); ++place.next) {
      const std::size_t i = place.next;
      const auto start = start_of(stage, i);
      if (!start) return false;
      if (const int meeting = stages_.meeting_of(stage, i); meeting >= 0) {
        timelines_[stage].ops[i].start_s = *start;
        arrive(meeting, *start, work_[stage][i]);
        return true;  // the last member to arrive lets all of them go on
      }
      end(stage, i, *start, *start + work_[stage][i], 0.0);
    }
    return true;
  }

  std::optional<double> start_of(std::size_t stage, std::size_t i) const {
    const program::Expanded& op = stages_.ops(stage)[i];
    const Place& place = places_[stage];
    double start = place.free[static_cast<std::size_t>(op.step->stream)];
    if (place.turn && program::is_communication(op.step->op)) start = std::max(start, place.turn_free);
    for (const int after : op.after) {
      if (static_cast<std::size_t>(after) >= i) return std::nullopt;
      start = std::max(start, timelines_[stage].ops[static_cast<std::size_t>(after)].end_s);
    }
    return start;
  }

  void arrive(int number, double at, double work) {
    Meeting& meeting = meetings_[static_cast<std::size_t>(number)];
    meeting.last_arrival_s = std::max(meeting.last_arrival_s, at);
    meeting.work_s = std::max(meeting.work_s, work);
    const auto& members = stages_.members(number);
    if (++meeting.arrived < members.size()) return;
    for (const auto& member : members) {
      const auto stage = static_cast<std::size_t>(member.stage);
      const double start = timelines_[stage].ops[member.op].start_s;
      end(stage, member.op, start, meeting.last_arrival_s + meeting.work_s, meeting.last_arrival_s - start);
      ++places_[stage].next;
      runnable_.push_back(stage);
    }
  }

  void end(std::size_t stage, std::size_t i, double start, double end, double waited) {
    const program::Step& step = *stages_.ops(stage)[i].step;
    Place& place = places_[stage];
    timelines_[stage].ops[i] = {.start_s = start, .end_s = end, .cpu_s = work_[stage][i], .waited_s = waited};
    timelines_[stage].total_s = std::max(timelines_[stage].total_s, end);
    place.free[static_cast<std::size_t>(step.stream)] = end;
    if (place.turn && program::is_communication(step.op)) place.turn_free = end;
  }

  const program::Stages& stages_;
  const std::vector<std::vector<double>>& work_;
  std::vector<Meeting> meetings_;
  std::vector<Place> places_;
  std::deque<std::size_t> runnable_;
  std::vector<program::Timeline> timelines_;
};

}  // namespace

std::optional<std::vector<program::Timeline>> longest_paths(const program::Stages& stages,
                                                            const std::vector<std::vector<double>>& work,
                                                            bool one_at_a_time) {
  return Walk(stages, work, one_at_a_time).run();
}

}  // namespace molen::sim
