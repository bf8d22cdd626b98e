// Schedules whose weight gradients are separate actions, placed where a stage would otherwise wait (Qi et al. 2023,
// "Zero Bubble Pipeline Parallelism", arXiv 2401.10241).
#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "program/schedule/schedule_detail.h"

namespace molen::program::detail {
namespace {

// Appends a chunk's next action of a kind, in ascending micro-batch order. Micro-batches beyond the schedule's count
// are left out. The remaining list is valid, because no action needs an action of another micro-batch.
class Writer {
 public:
  Writer(const Schedule& schedule, std::vector<Action>& order)
      : micro_batches_(schedule.micro_batches), order_(&order) {}
  void forward(int chunk) { write(Pass::kForward, chunk, forwards[at(chunk)]++); }
  void input(int chunk) { write(Pass::kBackwardInput, chunk, inputs[at(chunk)]++); }
  void weight(int chunk) { write(Pass::kBackwardWeights, chunk, weights[at(chunk)]++); }
  void both(int chunk) {
    input(chunk);
    weight(chunk);
  }

  std::array<int, 2> forwards{}, inputs{}, weights{};

 private:
  static std::size_t at(int chunk) { return static_cast<std::size_t>(chunk); }
  void write(Pass kind, int chunk, int micro_batch) {
    if (micro_batch < micro_batches_) order_->push_back({kind, chunk, micro_batch});
  }
  int micro_batches_;
  std::vector<Action>* order_;
};

// Writes the V of section 6 for F = I = W. Stage s first fills, and then repeats F0 I0 W0 F1 I1 W1. It is full after 2p
// forwards of chunk 0, and it needs 2p-1 micro-batches to run without gaps. With fewer, the missing ones are counted
// but not written.
void write_v(const Schedule& s, int stage, std::vector<Action>& order) {
  Writer w(s, order);
  const int below = s.stages - stage;  // stages from this one to the turn
  const int m = std::max(s.micro_batches, 2 * s.stages - 1);
  // Forwards run until the first micro-batch is back from the turn, and then until its gradient arrives from chunk 1 of
  // stage 0.
  for (int k = 0; k < 2 * below - 1; ++k) w.forward(0);
  for (int k = 0; k < stage; ++k) {
    w.forward(1);
    w.forward(0);
  }
  // These actions run until the first gradient is back from the turn.
  for (int k = 0; k < below; ++k) {
    w.forward(1);
    w.both(1);
  }
  while (w.forwards[0] < m || w.forwards[1] < m) {
    if (w.forwards[0] < m) w.forward(0);
    w.both(0);
    w.forward(1);
    w.both(1);
  }
  // The stage drains: first it makes the gradients that other stages wait for, then the weight gradients, which fill
  // the rest of the step.
  for (int k = 0; k < stage; ++k) {
    w.input(0);
    w.input(1);
  }
  for (int k = 0; k < below; ++k) w.both(0);
  while (w.weights[1] < m) w.weight(1);
  while (w.weights[0] < m) w.weight(0);
}

// List scheduling of the V with actions of one time unit. In each unit every stage takes the first of these actions
// that can run:
//   I of chunk 1, I of chunk 0   (other stages wait for them, and they let memory be freed)
//   F of chunk 1                 while less than 2p activations are held
//   F of chunk 0                 while less than 2p-1 are held
//   W of chunk 1, W of chunk 0
// The list cannot get stuck. Consider the earliest unfinished micro-batch. A stage holds only F of
// chunk 0 of later micro-batches, at most 2p-1 of them, so there is room for F of chunk 1 of the earliest one. When the
// earliest one still needs F of chunk 0, the stage holds nothing of later micro-batches. All W of earlier micro-batches
// can run.
class GreedyV {
 public:
  explicit GreedyV(Schedule& schedule)
      : s_(schedule), p_(schedule.stages), m_(schedule.micro_batches), stages_(static_cast<std::size_t>(p_)) {
    const auto cells = static_cast<std::size_t>(2 * p_) * static_cast<std::size_t>(m_);
    forward_end_.assign(cells, kNever);
    input_end_.assign(cells, kNever);
  }

  void run() {
    // In each time unit at least one action can run.
    const auto actions = std::int64_t{6} * p_ * m_;
    std::int64_t written = 0;
    for (now_ = 0; written < actions; ++now_) {
      const auto before = written;
      for (int stage = 0; stage < p_; ++stage) written += step(stage) ? 1 : 0;
      MOLEN_CHECK(written > before, "zb-v: no stage of {} can go on with {} micro-batches", p_, m_);
    }
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  struct Stage {
    std::array<int, 2> forwards{}, inputs{}, weights{};
    int held = 0;
  };

  std::size_t cell(int global, int micro_batch) const {
    return static_cast<std::size_t>(global) * static_cast<std::size_t>(m_) + static_cast<std::size_t>(micro_batch);
  }

  bool can_forward(int stage, std::size_t chunk) const {
    const Stage& at = stages_[static_cast<std::size_t>(stage)];
    const int next = at.forwards[chunk];
    if (next == m_ || at.held >= (chunk == 0 ? 2 * p_ - 1 : 2 * p_)) return false;
    const int g = s_.global_stage(stage, static_cast<int>(chunk));
    return g == 0 || forward_end_[cell(g - 1, next)] <= now_;
  }

  bool can_input(int stage, std::size_t chunk) const {
    const int next = stages_[static_cast<std::size_t>(stage)].inputs[chunk];
    const int g = s_.global_stage(stage, static_cast<int>(chunk));
    if (next == m_ || forward_end_[cell(g, next)] > now_) return false;
    return g + 1 == 2 * p_ || input_end_[cell(g + 1, next)] <= now_;
  }

  bool step(int stage) {
    Stage& at = stages_[static_cast<std::size_t>(stage)];
    auto& order = s_.order[static_cast<std::size_t>(stage)];
    const auto place = [&](std::size_t chunk, int i) {
      return cell(s_.global_stage(stage, static_cast<int>(chunk)), i);
    };
    for (const std::size_t chunk : {1U, 0U}) {
      if (!can_input(stage, chunk)) continue;
      const int i = at.inputs[chunk]++;
      input_end_[place(chunk, i)] = now_ + 1;
      order.push_back({Pass::kBackwardInput, static_cast<int>(chunk), i});
      return true;
    }
    for (const std::size_t chunk : {1U, 0U}) {
      if (!can_forward(stage, chunk)) continue;
      const int i = at.forwards[chunk]++;
      ++at.held;
      forward_end_[place(chunk, i)] = now_ + 1;
      order.push_back({Pass::kForward, static_cast<int>(chunk), i});
      return true;
    }
    for (const std::size_t chunk : {1U, 0U}) {
      if (at.weights[chunk] == at.inputs[chunk]) continue;
      --at.held;
      order.push_back({Pass::kBackwardWeights, static_cast<int>(chunk), at.weights[chunk]++});
      return true;
    }
    return false;
  }

  Schedule& s_;
  int p_, m_;
  std::vector<Stage> stages_;
  std::vector<std::int64_t> forward_end_, input_end_;
  std::int64_t now_ = 0;
};

}  // namespace

// Stage s warms up as 1F1B does and runs its weight gradients s micro-batches late. Later stages hold fewer activations
// and delay their weight gradients more. They therefore return input gradients sooner, and they fill the end of the
// step with the delayed weight gradients. Each stage then holds p activations.
void fill_zb_h1(Schedule& s) {
  for (int stage = 0; stage < s.stages; ++stage) {
    Writer w(s, s.order[static_cast<std::size_t>(stage)]);
    for (int k = 0; k < s.stages - stage; ++k) w.forward(0);
    for (int i = 0; i < s.micro_batches; ++i) {
      w.input(0);
      if (i >= stage) w.weight(0);
      w.forward(0);
    }
    while (w.weights[0] < s.micro_batches) w.weight(0);
  }
}

// When the fixed pattern fills the pipeline, no schedule is shorter. With fewer micro-batches, this takes the shorter
// of the pattern and the greedy list, and the pattern when they are equal.
void fill_zb_v(Schedule& s) {
  Schedule greedy = s;
  for (int stage = 0; stage < s.stages; ++stage) write_v(s, stage, s.order[static_cast<std::size_t>(stage)]);
  if (s.micro_batches >= 2 * s.stages - 1) return;
  GreedyV(greedy).run();
  const ScheduleCosts costs = uniform_costs(s, 1.0, 1.0, 1.0);
  if (simulate(greedy, costs).total_s < simulate(s, costs).total_s) s = std::move(greedy);
}

}  // namespace molen::program::detail
