#include "program/verify/races.h"

#include <algorithm>
#include <array>

#include "program/ir/slots.h"

namespace molen::program {
namespace {

// Returns, for each op, the latest op of each stream that must have ended when the op has ended.
std::vector<OpPerStream> known_by(const std::vector<Expanded>& ops) {
  const auto stream_of_op = [&](int op) {
    return static_cast<std::size_t>(ops[static_cast<std::size_t>(op)].step->stream);
  };
  std::vector<OpPerStream> known(ops.size());
  std::array<OpPerStream, kNumStreams> now;
  for (auto& k : now) k.fill(-1);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const std::size_t own = stream_of_op(static_cast<int>(i));
    auto& mine = now[own];
    for (const int a : ops[i].after) {
      mine[stream_of_op(a)] = std::max(mine[stream_of_op(a)], a);
      for (std::size_t s = 0; s < kNumStreams; ++s) mine[s] = std::max(mine[s], known[static_cast<std::size_t>(a)][s]);
    }
    mine[own] = static_cast<int>(i);
    known[i] = mine;
  }
  return known;
}

// Keeps, for each stream, the later op of the two lists.
void keep_latest(OpPerStream& ops, const OpPerStream& others) {
  for (std::size_t s = 0; s < kNumStreams; ++s) ops[s] = std::max(ops[s], others[s]);
}

// Returns whether the op works in the space that instances use in turn: the plan may give the bytes of one instance to
// another.
bool in_shared_space(const Program& p, const Step& step) {
  const auto transient = [&](const Use& use) {
    const Buffer& b = p.buffers[static_cast<std::size_t>(use.buffer)];
    return b.lifetime == Lifetime::kTransient && b.place == Place::kDevice;
  };
  return step.scratch.value > 0 || std::any_of(step.operands.begin(), step.operands.end(), transient);
}

// The history of the ops so far, in list order. For each stream it has the latest op that read or changed each place,
// that communicated over each axis, that decided a flag, and that worked in the shared space for an earlier instance.
class History {
 public:
  explicit History(const Program& p)
      : p_(p), slots_(p), readers_(slots_.places(), kNoOps), changers_(slots_.places(), kNoOps) {
    communicated_.fill(kNoOps);
  }

  // Returns, for each stream, the latest op that must have ended before `e` begins.
  OpPerStream needed_by(const Expanded& e) {
    if (e.instance != instance_) {
      instance_ = e.instance;
      earlier_instances_ = in_space_;
    }
    OpPerStream needed = e.step->unless ? flag_ : kNoOps;
    if (in_shared_space(p_, *e.step)) keep_latest(needed, earlier_instances_);
    // The ranks of a group must communicate in the same order, on whatever streams their ops run.
    if (const auto axis = axis_of(e.step->op)) keep_latest(needed, communicated_[static_cast<std::size_t>(*axis)]);
    for (const Use& use : e.step->operands) {
      keep_latest(needed, changers_[place(e, use)]);
      if (use.changes()) keep_latest(needed, readers_[place(e, use)]);
    }
    return needed;
  }

  void record(const Expanded& e, int op) {
    const auto stream = static_cast<std::size_t>(e.step->stream);
    if (std::holds_alternative<Agree>(e.step->op)) flag_[stream] = op;
    if (const auto axis = axis_of(e.step->op)) communicated_[static_cast<std::size_t>(*axis)][stream] = op;
    if (in_shared_space(p_, *e.step)) in_space_[stream] = op;
    for (const Use& use : e.step->operands) (use.changes() ? changers_ : readers_)[place(e, use)][stream] = op;
  }

 private:
  std::size_t place(const Expanded& e, const Use& use) const { return slots_.place(use.buffer, e.micro_batch); }

  const Program& p_;
  Slots slots_;
  std::vector<OpPerStream> readers_, changers_;              // by place
  std::array<OpPerStream, kAllAxes.size()> communicated_{};  // by axis
  OpPerStream flag_ = kNoOps, in_space_ = kNoOps, earlier_instances_ = kNoOps;
  int instance_ = -1;
};

}  // namespace

std::vector<std::pair<int, int>> unordered(const Program& program, const std::vector<Expanded>& ops) {
  const std::vector<OpPerStream> known = known_by(ops);
  History history(program);
  std::vector<std::pair<int, int>> pairs;
  for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
    const Expanded& e = ops[static_cast<std::size_t>(i)];
    const OpPerStream needed = history.needed_by(e), &ended = known[static_cast<std::size_t>(i)];
    for (std::size_t s = 0; s < kNumStreams; ++s)  // ops of its own stream run in list order
      if (s != static_cast<std::size_t>(e.step->stream) && ended[s] < needed[s]) pairs.emplace_back(i, needed[s]);
    history.record(e, i);
  }
  return pairs;
}

}  // namespace molen::program
