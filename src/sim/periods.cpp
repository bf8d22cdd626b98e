#include "sim/periods.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace molen::sim {
namespace {

// How many blocks apart the ops may be that depend on each other within the window of the proof.
constexpr std::size_t kReach = 1;

// The largest error of a shift between two blocks, relative to the end of the blocks: what sums of some thousands of
// times lose by rounding.
constexpr double kRounding = 1e-12;

// The ops of the blocks of one stage: block k is [first + k ops, first + (k + 1) ops).
struct OpBlocks {
  std::size_t first = 0, ops = 0;
  std::size_t begin(std::size_t block) const { return first + block * ops; }
};

std::size_t ops_in(const program::Program& p, std::size_t first, std::size_t end) {
  std::size_t ops = 0;
  for (std::size_t i = first; i < end; ++i) ops += p.bodies[static_cast<std::size_t>(p.schedule[i].body)].steps.size();
  return ops;
}

class Proof {
 public:
  Proof(const program::Stages& stages, const Blocks& blocks, std::size_t every,
        const std::vector<program::Timeline>& timelines, bool one_at_a_time)
      : stages_(stages), timelines_(timelines), every_(every), turns_(one_at_a_time) {
    blocks_ = blocks.count();
    window_ = blocks_ - fewest_blocks(every);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const program::Repeats& r = blocks.of_stage[s];
      of_stage_.push_back(
          {ops_in(stages.program(s), 0, r.first), ops_in(stages.program(s), r.first, r.first + r.length)});
      last_ = std::max(last_, timelines[s].ops[of_stage_[s].begin(blocks_) - 1].end_s);
    }
  }

  std::optional<Period> run() {
    const OpBlocks& any = of_stage_.front();
    const auto& times = timelines_.front().ops;
    seconds_ = times[any.begin(blocks_) - 1].end_s - times[any.begin(blocks_ - every_) - 1].end_s;
    Period period{seconds_, {}};
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (!comes_back(s) || !depends_on_window(s) || !meets_in_window(s)) return std::nullopt;
      const OpBlocks& of = of_stage_[s];
      period.ops.push_back({of.begin(base()), of.begin(base() + every_)});
    }
    return period;
  }

 private:
  // The first block that a longer step has more of.
  std::size_t base() const { return window_ + kReach; }

  // Whether each op of the window is later than `every` blocks before by the same time.
  bool comes_back(std::size_t s) const {
    const OpBlocks& of = of_stage_[s];
    const auto& times = timelines_[s].ops;
    const double most = kRounding * last_;
    const std::size_t apart = every_ * of.ops;
    const auto same = [&](double later, double earlier) { return std::abs(later - earlier - seconds_) <= most; };
    for (std::size_t i = of.begin(window_); i + apart < of.begin(blocks_); ++i)
      if (!same(times[i + apart].start_s, times[i].start_s) || !same(times[i + apart].end_s, times[i].end_s))
        return false;
    return true;
  }

  // Whether each op from the base to the end of the step starts when an op of the window or a later one ends. An older
  // op that it waits for must have ended by then.
  bool depends_on_window(std::size_t s) const {
    constexpr int kNone = -1;
    const auto& ops = stages_.ops(s);
    const auto& times = timelines_[s].ops;
    const std::size_t window = of_stage_[s].begin(window_), base_op = of_stage_[s].begin(base());
    std::array<int, program::kNumStreams> latest;
    latest.fill(kNone);
    int in_turn = kNone;
    // Nothing from before the window may still run, for it would run beside the base alone.
    double over = 0.0;
    for (std::size_t i = 0; i < window; ++i) over = std::max(over, times[i].end_s);
    for (std::size_t i = base_op; i < of_stage_[s].begin(base() + 1); ++i)
      if (times[i].start_s < over) return false;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const program::Step& step = *ops[i].step;
      int& before = latest[static_cast<std::size_t>(step.stream)];
      const bool takes_turn = turns_ && program::is_communication(step.op);
      if (i >= base_op) {
        double older = 0.0, newer = -1.0;
        const auto waits = [&](int op) {
          if (op == kNone) return;
          double& end = static_cast<std::size_t>(op) >= window ? newer : older;
          end = std::max(end, times[static_cast<std::size_t>(op)].end_s);
        };
        waits(before);
        if (takes_turn) waits(in_turn);
        for (const int after : ops[i].after) waits(after);
        if (newer < older) return false;
      }
      before = static_cast<int>(i);
      if (takes_turn) in_turn = before;
    }
    return true;
  }

  // Whether the ops from the base on meet ops of the window and later ones alone, and the meetings of one block are
  // those of the block before.
  bool meets_in_window(std::size_t s) const {
    const std::size_t base_op = of_stage_[s].begin(base());
    for (std::size_t i = base_op; i < stages_.ops(s).size(); ++i) {
      const int meeting = stages_.meeting_of(s, i);
      if (meeting < 0) continue;
      for (const auto& member : stages_.members(meeting))
        if (member.op < of_stage_[static_cast<std::size_t>(member.stage)].begin(window_)) return false;
      if (i < base_op + of_stage_[s].ops && !meets_again(s, i, meeting)) return false;
    }
    return true;
  }

  bool meets_again(std::size_t s, std::size_t i, int meeting) const {
    const int again = stages_.meeting_of(s, i + of_stage_[s].ops);
    if (again < 0) return false;
    const auto& now = stages_.members(meeting);
    const auto& then = stages_.members(again);
    if (now.size() != then.size()) return false;
    for (std::size_t k = 0; k < now.size(); ++k) {
      const OpBlocks& of = of_stage_[static_cast<std::size_t>(now[k].stage)];
      if (now[k].stage != then[k].stage || now[k].op + of.ops != then[k].op || then[k].op >= of.begin(blocks_))
        return false;
    }
    return true;
  }

  const program::Stages& stages_;
  const std::vector<program::Timeline>& timelines_;
  const std::size_t every_;
  const bool turns_;
  std::size_t blocks_ = 0, window_ = 0;  // all blocks; the first one of the window
  std::vector<OpBlocks> of_stage_;
  double last_ = 0.0, seconds_ = 0.0;
};

}  // namespace

std::optional<Blocks> blocks_of(const std::vector<program::Program>& stages) {
  Blocks all;
  std::int64_t earliest = 0;
  for (const program::Program& p : stages) {
    const auto found = program::repeats_in(p.schedule, program::micro_batches_of_block(p.setting));
    if (!found) return std::nullopt;
    all.of_stage.push_back(*found);
    earliest = std::max(earliest, found->earliest);
  }
  std::size_t blocks = all.of_stage.front().blocks;
  for (program::Repeats& r : all.of_stage) {
    const std::int64_t later = earliest - r.earliest;
    const auto skipped = static_cast<std::size_t>(later / r.micro_batches);
    if (later % r.micro_batches != 0 || skipped >= r.blocks) return std::nullopt;
    r.first += skipped * r.length, r.blocks -= skipped, r.earliest = earliest;
    blocks = std::min(blocks, r.blocks);
  }
  for (program::Repeats& r : all.of_stage) r.blocks = blocks;
  return all;
}

std::size_t fewest_blocks(std::size_t every) {
  return every + 1 + 2 * kReach;
}

std::optional<Period> period_of(const program::Stages& stages, const Blocks& blocks, std::size_t every,
                                const std::vector<program::Timeline>& timelines, bool one_at_a_time) {
  if (every == 0 || blocks.count() < fewest_blocks(every)) return std::nullopt;
  return Proof(stages, blocks, every, timelines, one_at_a_time).run();
}

}  // namespace molen::sim
