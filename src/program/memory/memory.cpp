#include "program/memory/memory.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace molen::program {
namespace {

// An item to place: a transient buffer (its interval in each body), or the scratch of one op.
struct Item {
  std::int64_t bytes = 0;
  int buffer = -1;
  int body = -1, op = -1;
  std::int64_t offset = -1;
};

// Returns, for each op of a body, the latest op of each stream that is known to have ended when the op starts.
std::vector<OpPerStream> ended_before(const Body& body) {
  std::vector<OpPerStream> known(body.steps.size(), kNoOps);
  std::array<OpPerStream, kNumStreams> now;
  now.fill(kNoOps);
  for (std::size_t k = 0; k < body.steps.size(); ++k) {
    const auto own = static_cast<std::size_t>(body.steps[k].stream);
    for (const OpRef& ref : body.steps[k].after) {
      if (ref.body >= 0) continue;
      const auto from = static_cast<std::size_t>(ref.op), stream = static_cast<std::size_t>(body.steps[from].stream);
      now[own][stream] = std::max(now[own][stream], ref.op);
      for (std::size_t t = 0; t < kNumStreams; ++t) now[own][t] = std::max(now[own][t], known[from][t]);
    }
    known[k] = now[own];
    now[own][own] = static_cast<int>(k);
  }
  return known;
}

// The uses of a transient buffer, or of the scratch of an op, in one body. `start` is, for each stream, the last op
// that has ended when the first use begins. `end` is, for each stream, the last use.
struct Lifespan {
  bool used = false;
  OpPerStream start = kNoOps, end = kNoOps;

  void add(const OpPerStream& ended, std::size_t stream, int op) {
    for (std::size_t t = 0; t < kNumStreams; ++t) start[t] = used ? std::min(start[t], ended[t]) : ended[t];
    end[stream] = std::max(end[stream], op);
    used = true;
  }
  bool before(const Lifespan& other) const {
    for (std::size_t t = 0; t < kNumStreams; ++t)
      if (end[t] > other.start[t]) return false;
    return true;
  }
  bool apart(const Lifespan& other) const { return !used || !other.used || before(other) || other.before(*this); }
};

struct BodySpans {
  std::vector<Lifespan> buffers, scratch;  // `buffers` by buffer, `scratch` by op
  std::vector<OpPerStream> ended;
};

BodySpans spans_of(const Program& p, const Body& body) {
  BodySpans spans{std::vector<Lifespan>(p.buffers.size()), std::vector<Lifespan>(body.steps.size()),
                  ended_before(body)};
  for (std::size_t k = 0; k < body.steps.size(); ++k) {
    const Step& step = body.steps[k];
    const auto stream = static_cast<std::size_t>(step.stream);
    for (const Use& use : step.operands)
      spans.buffers[static_cast<std::size_t>(use.buffer)].add(spans.ended[k], stream, static_cast<int>(k));
    spans.scratch[k].add(spans.ended[k], stream, static_cast<int>(k));
  }
  return spans;
}

// Returns, for each stream, the range of the ops that may run between the first and the last use of the buffer: those
// that are neither ordered before its first use nor after its last.
MemoryPlan::Live live_of(const Body& body, const BodySpans& spans, const Lifespan& buffer) {
  MemoryPlan::Live live{kNoOps, kNoOps};
  if (!buffer.used) return live;
  for (std::size_t k = 0; k < body.steps.size(); ++k) {
    const auto s = static_cast<std::size_t>(body.steps[k].stream);
    if (spans.scratch[k].before(buffer) || buffer.before(spans.scratch[k])) continue;
    if (live.first[s] < 0) live.first[s] = static_cast<int>(k);
    live.last[s] = static_cast<int>(k);
  }
  return live;
}

class Packer {
 public:
  Packer(const Program& p, const std::vector<BodySpans>& spans, Packing packing, MemoryPlan& plan)
      : program_(p), spans_(spans), apart_(packing != Packing::kShared), plan_(plan) {}

  void pack() {
    collect();
    // Large items come first, the classic order for offline packing (greedy by size).
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
    for (std::size_t i = 0; i < items_.size(); ++i) place(i);
  }

 private:
  void collect() {
    for (std::size_t i = 0; i < program_.buffers.size(); ++i)
      if (packed(program_.buffers[i]))
        items_.push_back({plan_.aligned(program_.buffers[i].bytes().value), static_cast<int>(i), -1, -1, -1});
    for (std::size_t b = 0; b < program_.bodies.size(); ++b)
      for (std::size_t k = 0; k < program_.bodies[b].steps.size(); ++k)
        if (const auto bytes = program_.bodies[b].steps[k].scratch.value; bytes > 0)
          items_.push_back({plan_.aligned(bytes), -1, static_cast<int>(b), static_cast<int>(k), -1});
  }

  const Lifespan& span(const Item& item, std::size_t body) const {
    static const Lifespan kUnused;
    if (item.buffer >= 0) return spans_[body].buffers[static_cast<std::size_t>(item.buffer)];
    return static_cast<int>(body) == item.body ? spans_[body].scratch[static_cast<std::size_t>(item.op)] : kUnused;
  }

  bool interfere(const Item& a, const Item& b) const {
    if (apart_) return true;
    // Scratch belongs to one body, in which the ops of one stream do not overlap.
    if (a.buffer < 0 || b.buffer < 0) {
      const Item& scratch = a.buffer < 0 ? a : b;
      if (a.buffer < 0 && b.buffer < 0 && (a.body != b.body || stream_of(a) == stream_of(b))) return false;
      const auto body = static_cast<std::size_t>(scratch.body);
      return !span(a, body).apart(span(b, body));
    }
    for (std::size_t body = 0; body < program_.bodies.size(); ++body)
      if (!span(a, body).apart(span(b, body))) return true;
    return false;
  }
  Stream stream_of(const Item& scratch) const {
    return program_.bodies[static_cast<std::size_t>(scratch.body)].steps[static_cast<std::size_t>(scratch.op)].stream;
  }

  // Calls `found` with the placed items that may conflict with `item`. Most items are scratch. For such an item, the
  // scratch of the same stream and of other bodies is skipped.
  template <class Found>
  void others(const Item& item, Found&& found) const {
    for (const std::size_t i : placed_buffers_) found(items_[i]);
    for (const auto& [body, streams] : placed_scratch_) {
      if (!apart_ && item.buffer < 0 && body != item.body) continue;
      for (std::size_t s = 0; s < kNumStreams; ++s)
        if (apart_ || item.buffer >= 0 || s != static_cast<std::size_t>(stream_of(item)))
          for (const std::size_t i : streams[s]) found(items_[i]);
    }
  }

  void place(std::size_t index) {
    Item& item = items_[index];
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    others(item, [&](const Item& other) {
      if (interfere(other, item)) taken.emplace_back(other.offset, other.offset + other.bytes);
    });
    std::sort(taken.begin(), taken.end());
    taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
    if (item.buffer >= 0)
      placed_buffers_.push_back(index);
    else
      placed_scratch_[item.body][static_cast<std::size_t>(stream_of(item))].push_back(index);
    std::int64_t offset = plan_.kept.value;
    for (const auto& [first, last] : taken) {
      if (offset + item.bytes <= first) break;
      offset = std::max(offset, last);
    }
    item.offset = offset;
    plan_.peak = std::max(plan_.peak, Bytes(offset + item.bytes));
    if (item.buffer >= 0)
      plan_.buffer_offset[static_cast<std::size_t>(item.buffer)] = offset;
    else
      plan_.scratch_offset[static_cast<std::size_t>(item.body)][static_cast<std::size_t>(item.op)] = offset;
  }

  const Program& program_;
  const std::vector<BodySpans>& spans_;
  bool apart_;
  MemoryPlan& plan_;
  std::vector<Item> items_;
  std::vector<std::size_t> placed_buffers_;
  std::map<int, std::array<std::vector<std::size_t>, kNumStreams>> placed_scratch_;  // by body
};

}  // namespace

bool packed(const Buffer& buffer) {
  return buffer.lifetime == Lifetime::kTransient && buffer.place == Place::kDevice;
}

namespace {

// Computes offsets and peaks. `plan_memory` adds the ops during which each byte is in use.
MemoryPlan plan_offsets(const Program& p, Packing packing, std::vector<BodySpans>& spans) {
  MemoryPlan plan;
  if (packing == Packing::kPages) plan.alignment = MemoryPlan::kPage;
  plan.buffer_offset.assign(p.buffers.size(), -1);
  for (const Body& body : p.bodies) {
    plan.scratch_offset.emplace_back(body.steps.size(), -1);
    spans.push_back(spans_of(p, body));
  }
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    if (!stays(p.buffers[i].lifetime) || p.buffers[i].place == Place::kHost) continue;
    plan.buffer_offset[i] = plan.persistent.value;
    plan.persistent += Bytes(plan.aligned(p.buffers[i].bytes().value));
  }
  plan.kept = plan.persistent;
  const Slots slots(p);
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    if (p.buffers[i].place == Place::kHost && p.buffers[i].lifetime != Lifetime::kExternal) {
      plan.buffer_offset[i] = plan.host.value;
      plan.host += Bytes(slots.count(static_cast<int>(i)) * plan.aligned(p.buffers[i].bytes().value));
      continue;
    }
    if (p.buffers[i].lifetime != Lifetime::kMicroBatch) continue;
    plan.buffer_offset[i] = plan.kept.value;
    plan.kept += Bytes(slots.count(static_cast<int>(i)) * plan.aligned(p.buffers[i].bytes().value));
  }
  plan.peak = plan.kept;
  Packer(p, spans, packing, plan).pack();
  return plan;
}

}  // namespace

PlannedPeak planned_peak(const Program& program) {
  std::vector<BodySpans> spans;
  const MemoryPlan plan = plan_offsets(program, Packing::kShared, spans);
  return {plan.peak, plan.host};
}

MemoryPlan plan_memory(const Program& p, Packing packing) {
  std::vector<BodySpans> spans;
  MemoryPlan plan = plan_offsets(p, packing, spans);
  for (std::size_t b = 0; b < p.bodies.size(); ++b) {
    plan.high_water.emplace_back(p.bodies[b].steps.size(), 0);
    plan.live.emplace_back();
    for (const Lifespan& buffer : spans[b].buffers) plan.live.back().push_back(live_of(p.bodies[b], spans[b], buffer));
  }
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      std::int64_t top = plan.kept.value;
      for (std::size_t i = 0; i < p.buffers.size(); ++i)
        if (packed(p.buffers[i]) && plan.live[b][i].during(p.bodies[b].steps[k].stream, static_cast<int>(k)))
          top = std::max(top, plan.buffer_offset[i] + plan.aligned(p.buffers[i].bytes().value));
      if (plan.scratch_offset[b][k] >= 0)
        top = std::max(top, plan.scratch_offset[b][k] + plan.aligned(p.bodies[b].steps[k].scratch.value));
      plan.high_water[b][k] = top;
    }
  return plan;
}

Bytes peak_of(const std::vector<Program>& stages) {
  Bytes peak;
  for (const Program& p : stages) peak = std::max(peak, planned_peak(p).device);
  return peak;
}

std::int64_t MemoryPlan::offset(const Program& p, const Slots& slots, int buffer, std::int64_t micro_batch) const {
  const auto b = static_cast<std::size_t>(buffer);
  return buffer_offset[b] + slots.of(buffer, micro_batch) * aligned(p.buffers[b].bytes().value);
}

MemorySummary summarize(const Program& p, const MemoryPlan& plan) {
  MemorySummary s;
  for (const Buffer& buffer : p.buffers) {
    if (!stays(buffer.lifetime) || buffer.place == Place::kHost) continue;
    if (class_of(buffer.role) == ValueClass::kState) s.optimizer += buffer.bytes();
    switch (buffer.role) {
      case Value::kParam:
      case Value::kParamShard:
        s.parameters += buffer.bytes();
        break;
      case Value::kGrad:
      case Value::kGradShard:
        s.gradients += buffer.bytes();
        break;
      default:
        break;
    }
  }
  s.transient = plan.peak - plan.persistent;
  s.peak = plan.peak;
  s.host = plan.host;
  return s;
}

}  // namespace molen::program
