// Tests the programs of sparse layers: where the balance loss is computed, and which parts run again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/test_edit.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

using arch::Part;

Setting along(mesh::Axis axis, int ranks) {
  Setting s = setting_of(1, 0, false, 4);
  s.sequence = 24;
  s.mesh[axis] = ranks;
  return s;
}

bool sums_load(const Op& op) {
  const auto* sum = std::get_if<AllReduce>(&op);
  return sum && sum->payload == Payload::kLoad;
}

// The experts run between the sum of a load and the balance loss, and no op there waits for the sum.
TEST(SparseProgram, TheLoadIsSummedBesideTheExperts) {
  const Program p = build(tiny_sparse(), along(mesh::Axis::kCp, 2));
  int sums = 0;
  for (const Body& body : p.bodies)
    for (std::size_t k = 0; k < body.steps.size(); ++k) {
      if (!sums_load(body.steps[k].op)) continue;
      ++sums;
      std::set<Part> beside;
      std::size_t next = k + 1;
      for (; next < body.steps.size(); ++next) {
        const auto* c = std::get_if<Compute>(&body.steps[next].op);
        if (c && c->part == Part::kBalance) break;
        if (c) beside.insert(c->part);
        for (const OpRef& ref : body.steps[next].after)
          EXPECT_FALSE(ref.body < 0 && ref.op == static_cast<int>(k)) << print_step(p, body.steps[next]);
      }
      ASSERT_LT(next, body.steps.size());
      EXPECT_TRUE(beside.contains(Part::kExpertUp) && beside.contains(Part::kSharedUp) &&
                  beside.contains(Part::kCombine));
    }
  EXPECT_EQ(sums, 4);  // two sparse layers in two bodies
}

// An evaluation reports no loss of a router, so it has none of the ops that compute the balance loss.
TEST(SparseProgram, EvaluationsLeaveOutTheBalanceLoss) {
  for (const mesh::Axis axis : {mesh::Axis::kDpShard, mesh::Axis::kTp, mesh::Axis::kCp, mesh::Axis::kPp})
    for (const Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate}) {
      Setting s = along(axis, 2);
      s.purpose = purpose;
      int losses = 0, sums = 0, routed = 0;
      for (const Program& p : build_stages(tiny_sparse(), s)) {
        EXPECT_TRUE(verify(p).empty());
        for (const Body& body : p.bodies)
          for (const Step& step : body.steps) {
            const auto* c = std::get_if<Compute>(&step.op);
            losses += c && c->part == Part::kBalance;
            routed += c && c->part == Part::kRoute && c->pass == Pass::kForward;
            sums += sums_load(step.op);
          }
      }
      EXPECT_GT(routed, 0);
      EXPECT_EQ(losses, purpose == Purpose::kTrain ? routed : 0);
      EXPECT_EQ(sums, purpose == Purpose::kTrain && axis == mesh::Axis::kCp ? routed : 0);
    }
}

arch::Architecture with_capacity(double factor) {
  auto a = tiny_sparse();
  a.experts->capacity = factor;
  return a;
}
std::int64_t elements_of_all(const Program& p, Value role) {
  std::int64_t sum = 0;
  for (const Buffer& b : p.buffers)
    if (b.role == role) sum += b.elements;
  return sum;
}

// A sequence of 24 tokens has 2 x 24 choices among 5 experts. With a factor of 0.5, each of the 5 experts has room for
// 5 rows of a sequence.
TEST(SparseProgram, ACapacityBoundsTheRowsOfExperts) {
  for (const int ranks : {1, 5}) {
    const Setting s = along(mesh::Axis::kEp, ranks);
    const Program all = build(tiny_sparse(), s), some = build(with_capacity(0.5), s);
    EXPECT_TRUE(verify(some).empty());
    EXPECT_EQ(elements_of_all(all, Value::kExpertRows) * 5 * 5, elements_of_all(some, Value::kExpertRows) * 24 * 2);
    const std::int64_t rows = ranks == 1 ? 24 * 2 : 5 * 24;  // rows of a sequence on the rank of its experts
    EXPECT_EQ(elements_of_all(all, Value::kExpertUp) * 5 * 5, elements_of_all(some, Value::kExpertUp) * rows);
    // The step has one more sum, which counts the dropped choices.
    EXPECT_EQ(elements_of_all(some, Value::kScalars), elements_of_all(all, Value::kScalars) + 1);
  }
}

// An evaluation drops no choice, so its program equals that of a model without a capacity.
TEST(SparseProgram, EvaluationsDropNothing) {
  for (const mesh::Axis axis : {mesh::Axis::kDpShard, mesh::Axis::kTp, mesh::Axis::kEp}) {
    Setting s = along(axis, axis == mesh::Axis::kEp ? 5 : 2);
    s.purpose = Purpose::kEvaluate;
    EXPECT_EQ(build(with_capacity(0.5), s), build(tiny_sparse(), s));
  }
}

// With a capacity, context ranks exchange their numbers of choices after each router, and drop choices before the
// experts. No other program has these ops: a rank with whole sequences drops choices in its router.
TEST(SparseProgram, ContextRanksLimitExpertsTogether) {
  const auto limiting = [](const Program& p) {
    std::vector<std::string> found;
    for (const Body& body : p.bodies)
      for (const Step& step : body.steps) {
        const auto* gather = std::get_if<AllGather>(&step.op);
        const auto* c = std::get_if<Compute>(&step.op);
        const bool forward = c && c->pass == Pass::kForward;
        if (gather && gather->payload == Payload::kCounts) found.push_back(fmt::format("counts {}", gather->layer));
        if (forward && (c->part == Part::kRoute || c->part == Part::kLimit || c->part == Part::kDispatch))
          found.push_back(fmt::format("{} {}", arch::name_of(c->part), c->layer));
      }
    return found;
  };
  const std::vector<std::string> together{"route 1", "counts 1", "limit 1", "dispatch 1",
                                          "route 2", "counts 2", "limit 2", "dispatch 2"},
      alone{"route 1", "dispatch 1", "route 2", "dispatch 2"};
  for (const mesh::Axis axis : {mesh::Axis::kCp, mesh::Axis::kTp, mesh::Axis::kDpShard})
    for (const double factor : {0.0, 0.75})
      for (const char* again : {"none", "full"})
        for (const Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate}) {
          Setting s = along(axis, 2);
          s.purpose = purpose, s.global_batch = axis == mesh::Axis::kDpShard ? 4 : 2;
          if (purpose == Purpose::kTrain) s.recompute = recompute_from_text(again);
          const Program p = build(with_capacity(factor), s);
          EXPECT_TRUE(verify(p).empty());
          const bool shared = axis == mesh::Axis::kCp && factor > 0.0 && purpose == Purpose::kTrain;
          EXPECT_EQ(limiting(p), shared ? together : alone) << factor << ", recompute " << again;
          EXPECT_EQ(p.find_buffer("counts") >= 0, shared);
          if (!shared) continue;
          // For each of two sequences: two runs of positions, two kinds of tokens, and five experts.
          EXPECT_EQ(p.buffers[static_cast<std::size_t>(p.buffer("counts_all"))].elements, 2 * (2 * 2 * 2 * 5));
        }
}

// An expert takes 5 of a sequence's 24 tokens. One of 2 context ranks, with 12 tokens, may have all of them; one of 6,
// with 4 tokens, has at most 4. Costs count an even share of what experts take.
TEST(SparseProgram, RowsOfContextRanksAreBoundedByTheWholeSequence) {
  for (const int ranks : {2, 6}) {
    const Program p = build(with_capacity(0.5), along(mesh::Axis::kCp, ranks));
    const std::int64_t tokens = 24 / ranks;
    for (const Buffer& b : p.buffers)
      if (b.role == Value::kExpertRows) {
        EXPECT_EQ(b.elements, 2 * std::min<std::int64_t>(tokens * 2, 5 * std::min<std::int64_t>(tokens, 5)) * 24);
      }
    for (const Step& step : p.bodies.front().steps)
      if (const auto* c = std::get_if<Compute>(&step.op);
          c && c->part == Part::kExpertDown && c->pass == Pass::kForward) {
        EXPECT_EQ(step.model_flops.value, 2.0 * ((2 * 25 + ranks - 1) / ranks) * 24 * 14) << ranks;
      }
  }
}

// A unit of layers that is brought to the rank, in the order of the body: which unit, for which phase, and between
// which ops its copy holds memory and is in use.
struct Brought {
  int unit = -1;
  Phase phase{};
  std::size_t from = 0, first = 0, last = 0;
};
std::vector<Brought> brought_in(const Body& body, const Program& p) {
  std::map<int, Brought> by_buffer;
  for (std::size_t k = 0; k < body.steps.size(); ++k)
    for (const Use& use : body.steps[k].operands) {
      if (p.buffers[static_cast<std::size_t>(use.buffer)].role != Value::kParam) continue;
      if (use.writes()) by_buffer[use.buffer] = {p.unit_of_buffer(use.buffer), {}, k, 0, 0};
      if (!use.reads()) continue;
      Brought& b = by_buffer.at(use.buffer);
      if (b.first == 0) b.first = k, b.phase = body.steps[k].phase;
      b.last = k;
    }
  std::vector<Brought> all;
  for (const auto& [buffer, b] : by_buffer) all.push_back(b);
  std::ranges::sort(all, {}, &Brought::first);
  return all;
}

bool reads_parameters(const Program& p, const Step& step) {
  return std::ranges::any_of(step.operands, [&](const Use& use) {
    return use.reads() && p.buffers[static_cast<std::size_t>(use.buffer)].role == Value::kParam;
  });
}

// With expert ranks, the experts of each layer come into use between the uses of a unit of several layers. The unit is
// still brought once for the forward and once for the backward, and at most `prefetch` units are there besides those
// that are in use.
TEST(SparseProgram, UnitsOfSeveralLayersComeOnceInEachPass) {
  arch::Architecture a = tiny_sparse();
  a.layers = 6;
  for (const int prefetch : {0, 1, 2})
    for (const bool host : {false, true})
      for (const char* again : {"none", "full"}) {
        SCOPED_TRACE(fmt::format("prefetch {}, recompute {}{}", prefetch, again, host ? ", on the host" : ""));
        Setting s = along(mesh::Axis::kEp, 5);
        s.mesh[mesh::Axis::kDpShard] = 2, s.zero = 3, s.unit_layers = 3, s.prefetch = prefetch;
        s.offload.optimizer = s.offload.parameters = host, s.recompute = recompute_from_text(again);
        const Program p = build(a, s);
        EXPECT_TRUE(verify(p).empty());
        const Body& body = p.bodies.front();
        const std::vector<Brought> all = brought_in(body, p);
        std::map<std::pair<std::string, bool>, int> times;
        for (const Brought& b : all)
          ++times[{p.units[static_cast<std::size_t>(b.unit)].name, b.phase == Phase::kForward}];
        for (const Unit& unit : p.units) {
          if (!unit.of_layers()) continue;
          for (const bool forward : {true, false})
            EXPECT_EQ((times[{unit.name, forward}]), 1) << unit.name << (forward ? ", forward" : ", backward");
        }
        EXPECT_EQ(p.find_unit("layers.0-2"), 1);
        std::size_t nested = 0;
        for (const Brought& b : all) {
          nested += std::ranges::count_if(all, [&](const Brought& o) { return o.first < b.first && b.last < o.last; });
          // When a unit begins to come, the units that have come and are not yet out of use are those in use, and at
          // most `prefetch` others, of which it is one.
          const auto in_use = [&](const Brought& o) { return o.first < b.from && b.from < o.last; };
          const auto there = std::ranges::count_if(
              all, [&](const Brought& o) { return o.from < b.from && !in_use(o) && b.from < o.last; });
          EXPECT_LE(there, prefetch) << p.units[static_cast<std::size_t>(b.unit)].name;
        }
        EXPECT_EQ(nested, 6u);  // in each pass the experts of layers 1, 3 and 4
        // A unit waits for the last use of parameters before the unit `prefetch` places earlier comes into use.
        for (std::size_t i = static_cast<std::size_t>(prefetch) + 1; i < all.size(); ++i) {
          std::size_t bound = all[i - static_cast<std::size_t>(prefetch)].first - 1;
          while (!reads_parameters(p, body.steps[bound])) --bound;
          const std::vector<OpRef>& after = body.steps[all[i].from - (host ? 1 : 0)].after;
          EXPECT_EQ(std::ranges::count(after, OpRef{-1, static_cast<int>(bound)}), 1)
              << p.units[static_cast<std::size_t>(all[i].unit)].name;
        }
      }
}

// Shared experts run again as the MLP does, so all layers share one buffer for the results of their parts.
TEST(SparseProgram, SharedExpertsRunAgain) {
  for (const char* choice : {"shared_up", "shared_act", "shared_up,shared_act/2", "full"}) {
    Setting s = along(mesh::Axis::kTp, 2);
    s.recompute = recompute_from_text(choice);
    const Program p = build(tiny_sparse(), s);
    EXPECT_TRUE(verify(p).empty()) << choice;
    for (const Part part : {Part::kSharedUp, Part::kSharedActivation}) {
      std::set<std::int64_t> again, chosen;
      for (std::int64_t layer = 1; layer < 3; ++layer)
        if (s.recompute.in(part, layer)) chosen.insert(layer);
      for (const Step& step : p.bodies.front().steps)
        if (const auto* c = std::get_if<Compute>(&step.op); c && c->part == part && c->pass == Pass::kRecompute)
          again.insert(c->layer);
      EXPECT_EQ(again, chosen) << choice << ": " << arch::name_of(part);
    }
    for (const Buffer& b : p.buffers) {
      const bool kept = b.layer >= 0 && (b.role == Value::kSharedUp || b.role == Value::kSharedActivation);
      const Part maker = b.role == Value::kSharedUp ? Part::kSharedUp : Part::kSharedActivation;
      EXPECT_FALSE(kept && s.recompute.in(maker, b.layer)) << choice << ": " << b.name;
    }
  }
}

}  // namespace
}  // namespace molen::program
