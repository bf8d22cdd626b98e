// The edges between streams.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "program/build/build.h"
#include "program/build/latest_ops.h"
#include "program/ir/repeats.h"
#include "program/memory/memory.h"

namespace molen::program::pass {
namespace {

bool uses_transients(const Program& p, const Step& step) {
  if (step.scratch.value > 0) return true;
  for (const Use& use : step.operands) {
    const Buffer& buffer = p.buffers[static_cast<std::size_t>(use.buffer)];
    if (buffer.lifetime == Lifetime::kTransient && buffer.place == Place::kDevice) return true;
  }
  return false;
}

// Instances use the transient space in turn. BufferHandOff finds the ops that each op must wait for, so that no stream
// uses this space for one instance while another stream still uses it for the previous instance.
class BufferHandOff {
 public:
  explicit BufferHandOff(const Program& p) : p_(p) {
    for (const Body& body : p.bodies)
      for (const Step& step : body.steps)
        shared_ = shared_ || (step.stream != Stream::kCompute && uses_transients(p, step));
  }

  // Returns the latest ops of the other streams that op `index` has to wait for, or kNoOps when there are none.
  OpPerStream before(const Expanded& e, int index) {
    if (!shared_ || !uses_transients(p_, *e.step)) return kNoOps;
    if (e.instance != instance_) {
      instance_ = e.instance;
      before_ = latest_;
      entered_.fill(false);
    }
    const auto own = static_cast<std::size_t>(e.step->stream);
    latest_[own] = index;
    return std::exchange(entered_[own], true) ? kNoOps : before_;
  }

 private:
  const Program& p_;
  bool shared_ = false;
  int instance_ = -1;
  OpPerStream before_ = kNoOps, latest_ = kNoOps;
  std::array<bool, kNumStreams> entered_{};
};

constexpr std::size_t kUnbounded = std::numeric_limits<std::size_t>::max();

// Bounds how far a communication stream runs ahead of the others. When an op begins, at most `ahead` earlier ops of
// each other communication stream in its instance have not ended. Buffers of an op that has not ended, such as a
// gradient that is still to be reduced, cannot be used for anything else.
class Recent {
 public:
  explicit Recent(std::size_t ahead) : ahead_(ahead) {}

  // Returns, for each stream, the latest op that must have ended before `e` begins.
  OpPerStream before(const Expanded& e) const {
    OpPerStream need = kNoOps;
    if (ahead_ == kUnbounded || e.instance != instance_ || !communicates(e.step->stream)) return need;
    for (const Stream other : kCommStreams) {
      const auto& ops = ops_[static_cast<std::size_t>(other)];
      if (other != e.step->stream && ops.size() > ahead_)
        need[static_cast<std::size_t>(other)] = ops[ops.size() - 1 - ahead_];
    }
    return need;
  }
  void add(const Expanded& e, int index) {
    if (std::exchange(instance_, e.instance) != e.instance)
      for (auto& ops : ops_) ops.clear();
    if (communicates(e.step->stream)) ops_[static_cast<std::size_t>(e.step->stream)].push_back(index);
  }

 private:
  std::size_t ahead_;
  int instance_ = -1;
  std::array<std::vector<int>, kNumStreams> ops_;  // communication ops of the present instance
};

// The edges of each op of each body.
using Edges = std::vector<std::vector<std::vector<OpRef>>>;

Edges edges_of(const Program& p) {
  Edges edges;
  for (const Body& body : p.bodies) {
    edges.emplace_back();
    for (const Step& step : body.steps) edges.back().push_back(step.after);
  }
  return edges;
}

void set_edges(Program& p, Edges edges) {
  for (std::size_t b = 0; b < edges.size(); ++b)
    for (std::size_t k = 0; k < edges[b].size(); ++k) p.bodies[b].steps[k].after = std::move(edges[b][k]);
}

// Returns, for each op and stream, the latest op that must have ended before the op begins: the ops before it on its
// operands, on its axis, on the transient space, and the decision that it runs by.
std::vector<OpPerStream> needed_ops(const Program& p, const std::vector<Expanded>& all) {
  const Places places(p);
  LatestOps latest_ops(p, places);
  BufferHandOff hand_off(p);
  OpPerStream agreed = kNoOps;                            // the latest decision on a flag, for which guarded ops wait
  std::array<OpPerStream, kAllAxes.size()> communicated;  // the latest op over each axis
  communicated.fill(kNoOps);
  std::vector<OpPerStream> needed;
  needed.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Step& step = *all[i].step;
    const auto own = static_cast<std::size_t>(step.stream);
    const auto index = static_cast<int>(i);
    OpPerStream need = hand_off.before(all[i], index);
    if (step.unless) keep_latest(need, agreed);
    if (const auto axis = axis_of(step.op)) {
      OpPerStream& of_axis = communicated[static_cast<std::size_t>(*axis)];
      keep_latest(need, of_axis);
      of_axis[own] = index;
    }
    latest_ops.keep_needed(all[i], need);
    latest_ops.add(all[i], index);
    if (std::holds_alternative<SetFlag>(step.op)) agreed[own] = index;
    needed.push_back(need);
  }
  return needed;
}

// Returns the edges that a program has, and those for the ops that its ops need. `all` is the expanded program. `ahead`
// is the bound of Recent.
Edges ordered_edges(const std::vector<Expanded>& all, const std::vector<OpPerStream>& needed, Edges edges,
                    std::size_t ahead) {
  // `known` has, for each stream, the last op of every other stream that is known to have ended before the next op of
  // the stream.
  std::array<OpPerStream, kNumStreams> known;
  known.fill(kNoOps);
  std::vector<OpPerStream> at_end(all.size(), kNoOps);  // by op: what is known to have ended when it has
  Recent recent(ahead);

  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto own = static_cast<std::size_t>(all[i].step->stream);
    const auto learn = [&](int op) { keep_latest(known[own], at_end[static_cast<std::size_t>(op)]); };
    for (const int a : all[i].after) learn(a);
    OpPerStream need = needed[i];
    keep_latest(need, recent.before(all[i]));
    // The latest op comes first, because an op that it waits for needs no edge of its own.
    const auto latest = [&] {
      std::size_t found = kNumStreams;
      for (std::size_t s = 0; s < kNumStreams; ++s)
        if (s != own && need[s] > known[own][s] && (found == kNumStreams || need[s] > need[found])) found = s;
      return found;
    };
    for (std::size_t s = latest(); s != kNumStreams; s = latest()) {
      const Expanded& from = all[static_cast<std::size_t>(need[s])];
      std::vector<OpRef>& after = edges[static_cast<std::size_t>(all[i].body)][static_cast<std::size_t>(all[i].op)];
      const OpRef ref{from.instance == all[i].instance ? -1 : from.body, from.op};
      if (std::find(after.begin(), after.end(), ref) == after.end()) after.push_back(ref);
      learn(need[s]);
    }
    known[own][own] = static_cast<int>(i);
    at_end[i] = known[own];
    recent.add(all[i], static_cast<int>(i));
  }
  for (auto& body : edges)
    for (auto& after : body) std::sort(after.begin(), after.end());
  return edges;
}

bool on_several_streams(const Program& p) {
  std::array<bool, kNumStreams> used{};
  for (const Body& body : p.bodies)
    for (const Step& step : body.steps) used[static_cast<std::size_t>(step.stream)] = communicates(step.stream);
  return std::count(used.begin(), used.end(), true) > 1;
}

// Returns a schedule with every order of instances that the program's has. Blocks that repeat each other have the same
// hazards, once slots are reused as often as they ever are.
std::vector<Instance> without_repetition(const Program& p) {
  constexpr std::size_t kOfOne = 8, kOfGroups = 3;  // blocks of one micro-batch, and of several
  const std::int64_t each = micro_batches_of_block(p.setting);
  const auto repeats = repeats_in(p.schedule, each);
  const std::size_t kept = each == 1 ? kOfOne : kOfGroups;
  return repeats && repeats->blocks > kept ? with_blocks(p.schedule, *repeats, kept) : p.schedule;
}

// Sets the edges of a program by its schedule. With `ahead` 0 communication runs in list order, as on a single stream,
// and the plan is the smallest. A larger bound is used only if the plan does not grow.
Program order_by_schedule(Program p) {
  const std::vector<Expanded> all = expand(p);
  const std::vector<OpPerStream> needed = needed_ops(p, all);
  const Edges given = edges_of(p);
  const auto with = [&](std::size_t ahead) { return ordered_edges(all, needed, given, ahead); };
  Edges free = with(kUnbounded);
  if (!on_several_streams(p)) {
    set_edges(p, std::move(free));
    return p;
  }
  const Edges in_list_order = with(0);
  set_edges(p, in_list_order);
  const Bytes smallest = planned_peak(p).device;
  for (const std::size_t ahead : {kUnbounded, std::size_t{4}, std::size_t{1}}) {
    set_edges(p, ahead == kUnbounded ? free : with(ahead));
    if (fits(p, smallest)) return p;
  }
  set_edges(p, in_list_order);
  return p;
}

}  // namespace

Program order_streams(Program p) {
  std::vector<Instance> shorter = without_repetition(p);
  std::vector<Instance> schedule = std::exchange(p.schedule, std::move(shorter));
  p = order_by_schedule(std::move(p));
  p.schedule = std::move(schedule);
  return p;
}

}  // namespace molen::program::pass
