#include "program/memory.h"

#include <algorithm>

#include "base/error.h"

namespace molen::program {
namespace {

constexpr std::int64_t kAlign = 64;
std::int64_t align(std::int64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

// What has to be placed: a transient buffer (its interval in each body), or the scratch of one op.
struct Item {
  std::int64_t bytes = 0;
  int buffer = -1;
  int body = -1, op = -1;
  std::int64_t offset = -1;
};

std::vector<std::vector<MemoryPlan::Interval>> find_lifetimes(const Program& p) {
  std::vector<std::vector<MemoryPlan::Interval>> live(p.bodies.size(),
                                                      std::vector<MemoryPlan::Interval>(p.buffers.size()));
  std::vector<bool> on_other_stream(p.buffers.size(), false);
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      const Step& step = p.bodies[b].steps[k];
      for (const auto* uses : {&step.reads, &step.writes})
        for (const Use& use : *uses) {
          auto& interval = live[b][static_cast<std::size_t>(use.buffer)];
          if (interval.first < 0) interval.first = static_cast<int>(k);
          interval.last = static_cast<int>(k);
          if (step.stream != Stream::kCompute) on_other_stream[static_cast<std::size_t>(use.buffer)] = true;
        }
    }
  // List order bounds a lifetime only on the compute stream. What another stream touches keeps its place throughout.
  for (std::size_t i = 0; i < p.buffers.size(); ++i)
    if (on_other_stream[i])
      for (std::size_t b = 0; b < p.bodies.size(); ++b)
        live[b][i] = {0, static_cast<int>(p.bodies[b].steps.size()) - 1};
  return live;
}

bool overlap(MemoryPlan::Interval a, MemoryPlan::Interval b) {
  return a.first >= 0 && b.first >= 0 && a.first <= b.last && b.first <= a.last;
}

class Packer {
 public:
  Packer(const Program& p, MemoryPlan& plan) : program_(p), plan_(plan) {}

  void pack() {
    collect();
    // Large first: the classic order for offline packing (greedy by size).
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
    for (std::size_t i = 0; i < items_.size(); ++i) place(i);
  }

 private:
  void collect() {
    for (std::size_t i = 0; i < program_.buffers.size(); ++i)
      if (program_.buffers[i].lifetime == Lifetime::kTransient)
        items_.push_back({align(program_.buffers[i].bytes().value), static_cast<int>(i), -1, -1, -1});
    for (std::size_t b = 0; b < program_.bodies.size(); ++b)
      for (std::size_t k = 0; k < program_.bodies[b].steps.size(); ++k)
        if (const auto bytes = program_.bodies[b].steps[k].scratch.value; bytes > 0)
          items_.push_back({align(bytes), -1, static_cast<int>(b), static_cast<int>(k), -1});
  }

  MemoryPlan::Interval interval(const Item& item, std::size_t body) const {
    if (item.buffer >= 0) return plan_.live[body][static_cast<std::size_t>(item.buffer)];
    return static_cast<int>(body) == item.body ? MemoryPlan::Interval{item.op, item.op} : MemoryPlan::Interval{};
  }

  bool interfere(const Item& a, const Item& b) const {
    for (std::size_t body = 0; body < program_.bodies.size(); ++body)
      if (overlap(interval(a, body), interval(b, body))) return true;
    return false;
  }

  void place(std::size_t index) {
    Item& item = items_[index];
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (std::size_t i = 0; i < index; ++i)
      if (interfere(items_[i], item)) taken.emplace_back(items_[i].offset, items_[i].offset + items_[i].bytes);
    std::sort(taken.begin(), taken.end());
    std::int64_t offset = align(plan_.persistent.value);
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
  MemoryPlan& plan_;
  std::vector<Item> items_;
};

}  // namespace

MemoryPlan plan_memory(const Program& p) {
  MemoryPlan plan;
  plan.buffer_offset.assign(p.buffers.size(), -1);
  for (const Body& body : p.bodies) {
    plan.scratch_offset.emplace_back(body.steps.size(), -1);
    plan.high_water.emplace_back(body.steps.size(), 0);
  }
  plan.live = find_lifetimes(p);
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    if (p.buffers[i].lifetime != Lifetime::kPersistent) continue;
    plan.buffer_offset[i] = plan.persistent.value;
    plan.persistent += Bytes(align(p.buffers[i].bytes().value));
  }
  plan.peak = plan.persistent;
  Packer(p, plan).pack();

  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      std::int64_t top = plan.persistent.value;
      for (std::size_t i = 0; i < p.buffers.size(); ++i)
        if (p.buffers[i].lifetime == Lifetime::kTransient && plan.live[b][i].live(static_cast<int>(k)))
          top = std::max(top, plan.buffer_offset[i] + align(p.buffers[i].bytes().value));
      if (plan.scratch_offset[b][k] >= 0)
        top = std::max(top, plan.scratch_offset[b][k] + align(p.bodies[b].steps[k].scratch.value));
      plan.high_water[b][k] = top;
    }
  return plan;
}

MemorySummary summarize(const Program& p, const MemoryPlan& plan) {
  MemorySummary s;
  for (const Buffer& buffer : p.buffers) {
    if (buffer.lifetime != Lifetime::kPersistent) continue;
    const std::string family = buffer.name.substr(0, buffer.name.find('.'));
    if (family == "param") s.parameters += buffer.bytes();
    if (family == "grad") s.gradients += buffer.bytes();
    if (family == "m" || family == "v" || family == "master") s.optimizer += buffer.bytes();
  }
  s.transient = plan.peak - plan.persistent;
  s.peak = plan.peak;
  return s;
}

}  // namespace molen::program
