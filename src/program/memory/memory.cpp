#include "program/memory/memory.h"

#include <algorithm>
#include <limits>

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
  int first = -1;  // the first use, in list order
  OpPerStream start = kNoOps, end = kNoOps;

  void add(const OpPerStream& ended, std::size_t stream, int op) {
    if (!used) first = op;
    for (std::size_t t = 0; t < kNumStreams; ++t) start[t] = used ? std::min(start[t], ended[t]) : ended[t];
    end[stream] = std::max(end[stream], op);
    used = true;
  }
  bool before(const Lifespan& other) const {
    bool later = false;  // no early return, so that the compiler compares all streams at once
    for (std::size_t t = 0; t < kNumStreams; ++t) later |= end[t] > other.start[t];
    return !later;
  }
  bool apart(const Lifespan& other) const { return !used || !other.used || before(other) || other.before(*this); }
};

struct BodySpans {
  std::vector<Lifespan> buffers, scratch;  // `buffers` by buffer, `scratch` by op
  std::vector<OpPerStream> ended;
  std::vector<OpPerStream> ended_from;  // by op: the least of `ended` of this op and of all later ones
};

std::vector<OpPerStream> least_from_each(std::vector<OpPerStream> ended) {
  for (std::size_t k = ended.size(); k-- > 1;)
    for (std::size_t t = 0; t < kNumStreams; ++t) ended[k - 1][t] = std::min(ended[k - 1][t], ended[k][t]);
  return ended;
}

BodySpans spans_of(const Program& p, const Body& body) {
  BodySpans spans{
      std::vector<Lifespan>(p.buffers.size()), std::vector<Lifespan>(body.steps.size()), ended_before(body), {}};
  spans.ended_from = least_from_each(spans.ended);
  for (std::size_t k = 0; k < body.steps.size(); ++k) {
    const Step& step = body.steps[k];
    const auto stream = static_cast<std::size_t>(step.stream);
    for (const Use& use : step.operands)
      spans.buffers[static_cast<std::size_t>(use.buffer)].add(spans.ended[k], stream, static_cast<int>(k));
    spans.scratch[k].add(spans.ended[k], stream, static_cast<int>(k));
  }
  return spans;
}

// The ops [first, last] of a body, in list order: from the first use of an item to the last op that may begin before
// all uses of the item have ended. Items whose windows have no op in common are not in use at the same time. The
// converse need not be true.
struct Window {
  int first = 0, last = 0;
};
Window window_of(const BodySpans& spans, const Lifespan& buffer) {
  Window window{buffer.first, buffer.first};
  for (std::size_t t = 0; t < kNumStreams; ++t) {
    if (buffer.end[t] < 0) continue;
    const auto all = std::partition_point(spans.ended_from.begin(), spans.ended_from.end(),
                                          [&](const OpPerStream& ended) { return ended[t] < buffer.end[t]; });
    window.last = std::max(window.last, static_cast<int>(all - spans.ended_from.begin()) - 1);
  }
  return window;
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

using ByteRange = std::pair<std::int64_t, std::int64_t>;  // [first, second)

// Adds a range to a list of disjoint ranges in ascending order. Ranges that touch become one.
void add_range(std::vector<ByteRange>& ranges, ByteRange range) {
  const auto first = std::lower_bound(ranges.begin(), ranges.end(), range.first,
                                      [](const ByteRange& r, std::int64_t at) { return r.second < at; });
  auto last = first;
  for (; last != ranges.end() && last->first <= range.second; ++last)
    range = {std::min(range.first, last->first), std::max(range.second, last->second)};
  if (first == last)
    ranges.insert(first, range);
  else
    *first = range, ranges.erase(first + 1, last);
}

// The placed items of one body, found by the ops during which they may be in use. The body's ops are cut into blocks of
// equal length. An item that is in use during all of a block is surely in use at the same time as each item whose first
// use is in that block. A block keeps the bytes of such items as a few disjoint ranges, so an item is compared one by
// one with few others.
class PlacedItems {
 public:
  explicit PlacedItems(const BodySpans& body) : blocks_(body.scratch.size() / kOps + 1) {}

  void add(std::size_t item, const Lifespan& span, const Window& window, ByteRange bytes) {
    Block& first = blocks_[block(window.first)];
    first.begin.push_back(item);
    add_range(first.of_begin, bytes);
    for (std::size_t b = block(window.first) + 1; b <= block(window.last); ++b)
      if (used_throughout(span, b))
        add_range(blocks_[b].of_throughout, bytes);
      else
        blocks_[b].partly.push_back(item);
  }

  // Appends to `surely` the bytes of items that are surely in use at the same time as an item of this lifespan, and
  // calls `found` with each other item that may be.
  template <class Found>
  void beside(const Lifespan& span, const Window& window, std::vector<ByteRange>& surely, Found&& found) const {
    const auto append = [&](const std::vector<ByteRange>& to) { surely.insert(surely.end(), to.begin(), to.end()); };
    const Block& first = blocks_[block(window.first)];
    append(first.of_throughout);
    for (const std::size_t item : first.partly) found(item);
    for (std::size_t b = block(window.first); b <= block(window.last); ++b)
      if (used_throughout(span, b))
        append(blocks_[b].of_begin);
      else
        for (const std::size_t item : blocks_[b].begin) found(item);
  }

 private:
  static constexpr std::size_t kOps = 32;  // of a block
  static std::size_t block(int op) { return static_cast<std::size_t>(op) / kOps; }
  static int first_of(std::size_t block) { return static_cast<int>(block * kOps); }
  // Returns whether no op of the block is known to have ended before the first use, and a use follows the block. Every
  // op waits for earlier ops alone.
  static bool used_throughout(const Lifespan& span, std::size_t block) {
    return *std::max_element(span.start.begin(), span.start.end()) < first_of(block) &&
           *std::max_element(span.end.begin(), span.end.end()) >= first_of(block + 1);
  }

  struct Block {
    std::vector<std::size_t> begin;        // items whose first use is in this block
    std::vector<ByteRange> of_begin;       // their bytes
    std::vector<ByteRange> of_throughout;  // the bytes of items that are in use during all of this block
    std::vector<std::size_t> partly;       // other items whose windows begin in an earlier block and reach this one
  };
  std::vector<Block> blocks_;
};

class Packer {
 public:
  Packer(const Program& p, const std::vector<BodySpans>& spans, Packing packing, MemoryPlan& plan)
      : program_(p),
        spans_(spans),
        apart_(packing != Packing::kShared),
        plan_(plan),
        placed_(spans.begin(), spans.end()) {}

  // Stops as soon as the peak is above `most`.
  void pack(Bytes most) {
    collect();
    // Large items come first, the classic order for offline packing (greedy by size).
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
    compared_.assign(items_.size(), items_.size());
    for (std::size_t i = 0; i < items_.size() && plan_.peak <= most; ++i) place(i);
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

  Stream stream_of(const Item& scratch) const {
    return program_.bodies[static_cast<std::size_t>(scratch.body)].steps[static_cast<std::size_t>(scratch.op)].stream;
  }

  // Returns whether the items may be in use at the same time in a body that uses both.
  bool interfere(const Item& a, const Item& b, std::size_t body) const {
    // The ops of one stream do not overlap, and the scratch of an op is in use during this op alone.
    if (a.buffer < 0 && b.buffer < 0 && stream_of(a) == stream_of(b)) return false;
    return !span(a, body).apart(span(b, body));
  }

  // Calls `found` with each body that uses the item, and the item's window in it.
  template <class Found>
  void windows(const Item& item, Found&& found) const {
    const auto bodies = item.buffer >= 0
                            ? std::pair<std::size_t, std::size_t>{0, spans_.size()}
                            : std::pair{static_cast<std::size_t>(item.body), static_cast<std::size_t>(item.body) + 1};
    for (std::size_t body = bodies.first; body < bodies.second; ++body)
      if (const Lifespan& of = span(item, body); of.used) found(body, window_of(spans_[body], of));
  }

  // Returns the bytes of the placed items that the item interferes with, in ascending order.
  const std::vector<ByteRange>& taken(std::size_t index) {
    std::vector<ByteRange>& ranges = taken_;
    ranges.clear();
    windows(items_[index], [&](std::size_t body, const Window& window) {
      placed_[body].beside(span(items_[index], body), window, ranges, [&](std::size_t other) {
        const Item& o = items_[other];
        if (compared_[other] == index || !interfere(o, items_[index], body)) return;
        compared_[other] = index;
        ranges.emplace_back(o.offset, o.offset + o.bytes);
      });
    });
    std::sort(ranges.begin(), ranges.end());
    return ranges;
  }

  // Returns the lowest offset at which the item shares no byte with a placed item that interferes with it. If all items
  // lie apart, that is the end of the placed items.
  std::int64_t free_offset(std::size_t index) {
    if (apart_) return plan_.peak.value;
    std::int64_t offset = plan_.kept.value;
    for (const auto& [first, last] : taken(index)) {
      if (offset + items_[index].bytes <= first) break;
      offset = std::max(offset, last);
    }
    return offset;
  }

  void place(std::size_t index) {
    Item& item = items_[index];
    item.offset = free_offset(index);
    if (!apart_)
      windows(item, [&](std::size_t body, const Window& window) {
        placed_[body].add(index, span(item, body), window, {item.offset, item.offset + item.bytes});
      });
    plan_.peak = std::max(plan_.peak, Bytes(item.offset + item.bytes));
    if (item.buffer >= 0)
      plan_.buffer_offset[static_cast<std::size_t>(item.buffer)] = item.offset;
    else
      plan_.scratch_offset[static_cast<std::size_t>(item.body)][static_cast<std::size_t>(item.op)] = item.offset;
  }

  const Program& program_;
  const std::vector<BodySpans>& spans_;
  bool apart_;
  MemoryPlan& plan_;
  std::vector<Item> items_;
  std::vector<PlacedItems> placed_;    // by body
  std::vector<ByteRange> taken_;       // of one item; kept, so that its memory is used again
  std::vector<std::size_t> compared_;  // by item: the item that it was last found to interfere with
};

}  // namespace

bool packed(const Buffer& buffer) {
  return buffer.lifetime == Lifetime::kTransient && buffer.place == Place::kDevice;
}

namespace {

constexpr Bytes kNoLimit{std::numeric_limits<std::int64_t>::max()};

// Computes offsets and peaks. `plan_memory` adds the ops during which each byte is in use. If the peak is above `most`,
// some offsets may be left out.
MemoryPlan plan_offsets(const Program& p, Packing packing, std::vector<BodySpans>& spans, Bytes most = kNoLimit) {
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
  Packer(p, spans, packing, plan).pack(most);
  return plan;
}

}  // namespace

PlannedPeak planned_peak(const Program& program) {
  std::vector<BodySpans> spans;
  const MemoryPlan plan = plan_offsets(program, Packing::kShared, spans);
  return {plan.peak, plan.host};
}

bool fits(const Program& program, Bytes most) {
  std::vector<BodySpans> spans;
  return plan_offsets(program, Packing::kShared, spans, most).peak <= most;
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
