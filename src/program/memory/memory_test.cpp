// Compares the packing of transient memory with a simple packer, which compares every item with every other.
#include "program/memory/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <span>

#include "program/build/build.h"
#include "program/test_cases.h"

namespace molen::program {
namespace {

// Says, for each op of a body, which ops have ended when that op begins.
using Ended = std::vector<std::vector<bool>>;

Ended ended_before_each(const Body& body) {
  const std::size_t ops = body.steps.size();
  Ended ended(ops, std::vector<bool>(ops, false));
  std::map<Stream, std::size_t> last;  // of each stream
  for (std::size_t k = 0; k < ops; ++k) {
    const auto after = [&](std::size_t op) {
      for (std::size_t i = 0; i < op; ++i) ended[k][i] = ended[k][i] || ended[op][i];
      ended[k][op] = true;
    };
    if (const auto at = last.find(body.steps[k].stream); at != last.end()) after(at->second);
    for (const OpRef& ref : body.steps[k].after)
      if (ref.body < 0) after(static_cast<std::size_t>(ref.op));
    last[body.steps[k].stream] = k;
  }
  return ended;
}

// A transient buffer or the scratch of an op: the ops that use it, by body, and where it lies.
struct Item {
  std::int64_t bytes = 0, planned = 0, expected = 0;
  std::map<std::size_t, std::vector<std::size_t>> uses;
};

std::vector<Item> items_of(const Program& p, const MemoryPlan& plan) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    if (!packed(p.buffers[i])) continue;
    Item item{plan.aligned(p.buffers[i].bytes().value), plan.buffer_offset[i], 0, {}};
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
        for (const Use& use : p.bodies[b].steps[k].operands)
          if (use.buffer == static_cast<int>(i)) item.uses[b].push_back(k);
    items.push_back(std::move(item));
  }
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      if (const Bytes bytes = p.bodies[b].steps[k].scratch; bytes.value > 0)
        items.push_back({plan.aligned(bytes.value), plan.scratch_offset[b][k], 0, {{b, {k}}}});
  return items;
}

bool in_use_together(const std::vector<Ended>& ended, const Item& a, const Item& b) {
  for (const auto& [body, uses] : a.uses) {
    const auto others = b.uses.find(body);
    if (others == b.uses.end()) continue;
    const auto before = [&, at = body](const std::vector<std::size_t>& first, const std::vector<std::size_t>& then) {
      return std::ranges::all_of(first, [&](std::size_t f) {
        return std::ranges::all_of(then, [&](std::size_t t) { return ended[at][t][f]; });
      });
    };
    if (!before(uses, others->second) && !before(others->second, uses)) return true;
  }
  return false;
}

// Places the items, large ones first, each at the lowest offset at which its bytes are free.
void pack(const std::vector<Ended>& ended, std::int64_t from, std::vector<Item>& items) {
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::map<std::int64_t, std::int64_t> taken;  // the end of each item in use, by its first byte
    for (std::size_t j = 0; j < i; ++j)
      if (in_use_together(ended, items[i], items[j]))
        taken[items[j].expected] = std::max(taken[items[j].expected], items[j].expected + items[j].bytes);
    std::int64_t& offset = items[i].expected = from;
    for (const auto& [first, last] : taken) {
      if (offset + items[i].bytes <= first) break;
      offset = std::max(offset, last);
    }
  }
}

// Expects the plan of the program to be that of the simple packer.
void expect_packed_alike(const Program& p, const std::string& name) {
  const MemoryPlan plan = plan_memory(p);
  std::vector<Ended> ended;
  for (const Body& body : p.bodies) ended.push_back(ended_before_each(body));
  std::vector<Item> items = items_of(p, plan);
  pack(ended, plan.kept.value, items);
  std::int64_t peak = plan.kept.value;
  for (const Item& item : items) {
    ASSERT_EQ(item.planned, item.expected) << name;
    peak = std::max(peak, item.expected + item.bytes);
  }
  EXPECT_EQ(plan.peak.value, peak) << name;
  EXPECT_EQ(planned_peak(p).device, plan.peak) << name;
  EXPECT_TRUE(fits(p, plan.peak)) << name;
  EXPECT_FALSE(fits(p, plan.peak - Bytes(1))) << name;
}

TEST(Packing, IsThatOfComparingAllPairs) {
  for (const TestCase& c : all_test_cases()) expect_packed_alike(build(c.arch, c.setting), c.name);
}

// A program of random ops on random streams. Some buffers are used by ops close together, and some by ops far apart.
Program any_program(std::mt19937_64& random, std::span<const std::size_t> lengths) {
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  Program p;
  for (std::size_t i = 0; i < 60; ++i) {
    Buffer b;
    b.name = fmt::format("b{}", i);
    b.elements = static_cast<std::int64_t>(16 * (1 + below(4)));
    b.lifetime = Lifetime::kTransient;
    p.buffers.push_back(b);
  }
  const std::size_t streams = 1 + below(kNumStreams);
  for (const std::size_t length : lengths) {
    Body body;
    for (std::size_t k = 0; k < length; ++k) {
      Step step;
      step.stream = kAllStreams[below(streams)];
      if (k > 0 && below(3) > 0)
        step.after.push_back({-1, static_cast<int>(k - 1 - below(std::min<std::size_t>(k, 20)))});
      if (below(2) == 0) step.scratch = Bytes(static_cast<std::int64_t>(64 * (1 + below(3))));
      const std::size_t near = 40 * k / length;
      step.operands.push_back({Arg::kX, static_cast<int>(near + below(10))});
      if (below(8) == 0) step.operands.push_back({Arg::kY, static_cast<int>(50 + below(10))});
      body.steps.push_back(std::move(step));
    }
    p.bodies.push_back(std::move(body));
  }
  return p;
}

TEST(Packing, IsThatOfComparingAllPairsOfRandomOps) {
  const std::vector<std::vector<std::size_t>> bodies{{0}, {1}, {31}, {32}, {33}, {64}, {65}, {96, 0, 33}, {200, 120}};
  for (unsigned seed = 0; seed < 20; ++seed)
    for (const auto& lengths : bodies) {
      std::mt19937_64 random(seed);
      expect_packed_alike(any_program(random, lengths), fmt::format("seed {}, {} ops", seed, fmt::join(lengths, "+")));
    }
}

// Without sharing, items lie side by side, large ones first.
TEST(Packing, ApartNoItemsShareBytes) {
  const TestCase c = all_test_cases().front();
  const Program p = build(c.arch, c.setting);
  for (const Packing packing : {Packing::kApart, Packing::kPages}) {
    const MemoryPlan plan = plan_memory(p, packing);
    std::vector<Item> items = items_of(p, plan);
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
    std::int64_t end = plan.kept.value;
    for (const Item& item : items) {
      EXPECT_EQ(item.planned, end);
      end += item.bytes;
    }
    EXPECT_EQ(plan.peak.value, end);
  }
}

}  // namespace
}  // namespace molen::program
