#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "base/error.h"
#include "program/build.h"
#include "program/memory.h"
#include "program/signature.h"
#include "program/test_edit.h"
#include "program/text.h"
#include "program/verify.h"

namespace molen::program {
namespace {

arch::Architecture tiny(bool tied = false) {
  arch::Architecture a = arch::preset("llama-tiny");
  a.name = "custom";
  a.layers = 3;
  a.hidden = 24;
  a.ffn = 40;
  a.heads = 6;
  a.kv_heads = 2;
  a.head_dim = 4;
  a.vocabulary = 53;
  a.tied = tied;
  return a;
}

Setting setting_of(int ranks, int zero, bool recompute, std::int64_t global) {
  Setting s;
  s.data_ranks = ranks;
  s.zero = zero;
  s.recompute = recompute;
  s.global_batch = global;
  s.micro_batch = 2;
  s.sequence = 150;  // 300 tokens: two chunks of the head
  return s;
}

rc::Gen<Setting> any_setting() {
  return rc::gen::map(rc::gen::tuple(rc::gen::inRange(1, 6), rc::gen::inRange(0, 2), rc::gen::arbitrary<bool>(),
                                     rc::gen::inRange(1, 30)),
                      [](const std::tuple<int, int, bool, int>& t) {
                        return setting_of(std::get<0>(t), std::get<1>(t), std::get<2>(t), std::get<3>(t));
                      });
}

RC_GTEST_PROP(Program, EveryBuiltProgramIsSound, (bool tied)) {
  const Program p = build(tiny(tied), *any_setting());
  const auto findings = verify(p);
  RC_LOG() << (findings.empty() ? "" : findings[0].text);
  RC_ASSERT(findings.empty());
}

RC_GTEST_PROP(Program, TextRoundTrip, (bool tied)) {
  const Program p = build(tiny(tied), *any_setting());
  RC_ASSERT(parse(print(p), "test") == p);
  RC_ASSERT(parse(print(p, plan_memory(p)), "test") == p);
}

TEST(Program, EvaluationProgramIsSound) {
  Setting s = setting_of(1, 0, false, 2);
  s.purpose = Purpose::kEvaluate;
  const Program p = build(tiny(), s);
  EXPECT_TRUE(verify(p).empty()) << verify(p)[0].text;
  EXPECT_EQ(p.find_buffer("grad.embed"), -1);
}

// Every pair of transient buffers or scratch that is in use at once lies apart.
TEST(Memory, NothingOverlapsWhileItLives) {
  for (const bool recompute : {false, true}) {
    const Program p = build(tiny(), setting_of(2, 1, recompute, 8));
    const MemoryPlan plan = plan_memory(p);
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
        std::vector<std::pair<std::int64_t, std::int64_t>> used;
        for (std::size_t i = 0; i < p.buffers.size(); ++i)
          if (p.buffers[i].lifetime == Lifetime::kPersistent || plan.live[b][i].live(static_cast<int>(k)))
            used.emplace_back(plan.buffer_offset[i], plan.buffer_offset[i] + p.buffers[i].bytes().value);
        if (plan.scratch_offset[b][k] >= 0)
          used.emplace_back(plan.scratch_offset[b][k], plan.scratch_offset[b][k] + p.bodies[b].steps[k].scratch.value);
        std::sort(used.begin(), used.end());
        for (std::size_t i = 1; i < used.size(); ++i) ASSERT_LE(used[i - 1].second, used[i].first);
        ASSERT_LE(used.back().second, plan.high_water[b][k] + 64);
        ASSERT_LE(plan.high_water[b][k], plan.peak.value);
      }
  }
}

TEST(Memory, RecomputeNeedsLess) {
  auto a = tiny();
  a.layers = 12;
  const auto full = plan_memory(build(a, setting_of(1, 0, true, 2))),
             none = plan_memory(build(a, setting_of(1, 0, false, 2)));
  EXPECT_LT((full.peak - full.persistent).value * 2, (none.peak - none.persistent).value);
}

TEST(Memory, ZeroOneShardsTheMoments) {
  const Program p = build(tiny(), setting_of(4, 1, false, 8)), q = build(tiny(), setting_of(4, 0, false, 8));
  const auto sharded = summarize(p, plan_memory(p)), whole = summarize(q, plan_memory(q));
  EXPECT_EQ(sharded.parameters, whole.parameters);
  // A quarter, up to the alignment of each unit.
  EXPECT_LE(sharded.optimizer.value, whole.optimizer.value / 4 + static_cast<std::int64_t>(p.units.size()) * 2 * 64);
}

TEST(Program, ALargeModelStaysSmall) {
  Setting s = setting_of(8, 1, true, 1600);
  s.micro_batch = 1;
  s.sequence = 2048;
  const Program p = build(arch::preset("gpt-175b"), s);
  EXPECT_LE(p.bodies.size(), 4u);
  EXPECT_GT(plan_memory(p).peak.value, std::int64_t{174} * 1000 * 1000 * 1000 * 8);
}

TEST(Layout, OwnedRangesTile) {
  for (const std::int64_t elements : {0, 16, 48, 1600, 4111 * 16})
    for (int ranks = 1; ranks < 9; ++ranks) {
      std::int64_t at = 0;
      for (int r = 0; r < ranks; ++r) {
        const auto [first, last] = owned_range(elements, r, ranks);
        EXPECT_EQ(first, at);
        EXPECT_LE(last - first, owned_range(elements, 0, ranks).second);
        at = last;
      }
      EXPECT_EQ(at, elements);
    }
}

// Deleting, retargeting or disordering an op: every single deletion, in every layout, is refused.
class Edited : public ::testing::TestWithParam<std::tuple<int, int, bool, bool>> {
 protected:
  Program program() const {
    const auto [ranks, zero, recompute, tied] = GetParam();
    return build(tiny(tied), setting_of(ranks, zero, recompute, 4 * ranks));
  }
};

TEST_P(Edited, EveryDeletionIsRefused) {
  const Program p = program();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      EXPECT_FALSE(verify(without(p, b, k)).empty())
          << p.bodies[b].name << " %" << k << " " << kind_of(p.bodies[b].steps[k].op);
}

TEST_P(Edited, EveryDuplicateOfAnUpdateOrCollectiveIsRefused) {
  const Program p = program();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      const Step& step = p.bodies[b].steps[k];
      const bool once = is_communication(step.op) || std::holds_alternative<OptimizerStep>(step.op) ||
                        std::holds_alternative<SumSquares>(step.op) || std::holds_alternative<ClipScale>(step.op);
      if (!once) continue;
      Program q = p;
      q.bodies[b].steps.push_back(step);  // at the end: nothing refers past it
      EXPECT_FALSE(verify(q).empty()) << kind_of(step.op);
    }
}

// Moving a value that nobody reads, or reading the same value from where it also stands, changes nothing and is
// accepted.
bool keeps_the_meaning(const Program& p, std::size_t body, bool write, int from, int to) {
  const auto family = [&](int b) {
    return p.buffers[static_cast<std::size_t>(b)].name.substr(0, p.buffers[static_cast<std::size_t>(b)].name.find('.'));
  };
  if (!write) return p.setting.recompute && family(from) == family(to);
  for (const Step& step : p.bodies[body].steps)
    for (const Use& use : step.reads)
      if (use.buffer == from) return false;
  return true;
}

TEST_P(Edited, EveryRetargetedOperandIsRefused) {
  const Program p = program();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      for (const bool write : {false, true}) {
        const auto& uses = write ? p.bodies[b].steps[k].writes : p.bodies[b].steps[k].reads;
        for (std::size_t u = 0; u < uses.size(); ++u) {
          Program q = p;
          Use& use = (write ? q.bodies[b].steps[k].writes : q.bodies[b].steps[k].reads)[u];
          const Buffer& old = p.buffers[static_cast<std::size_t>(use.buffer)];
          for (std::size_t other = 0; other < p.buffers.size(); ++other) {
            if (static_cast<int>(other) == use.buffer ||
                keeps_the_meaning(p, b, write, use.buffer, static_cast<int>(other)))
              continue;
            use.buffer = static_cast<int>(other);
            EXPECT_FALSE(verify(q).empty()) << p.bodies[b].name << " %" << k << " " << kind_of(p.bodies[b].steps[k].op)
                                            << " " << old.name << " -> " << p.buffers[other].name;
            use.buffer = p.find_buffer(old.name);
          }
        }
      }
}

TEST_P(Edited, SwappingNeighboursIsRefusedOrKeepsTheMeaning) {
  const Program p = program();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k + 1 < p.bodies[b].steps.size(); ++k) {
      Program q = p;
      std::swap(q.bodies[b].steps[k], q.bodies[b].steps[k + 1]);
      if (!verify(q).empty()) continue;
      // Accepted only where neither op reads or writes what the other writes, or where both add to the step's sums.
      const auto touches = [&](const std::vector<Use>& uses, const std::vector<Use>& writes) {
        for (const Use& x : uses)
          for (const Use& y : writes)
            if (x.buffer == y.buffer && p.buffers[static_cast<std::size_t>(x.buffer)].name != "scalars") return true;
        return false;
      };
      const Step &s = p.bodies[b].steps[k], &t = p.bodies[b].steps[k + 1];
      const bool chunks = std::holds_alternative<Compute>(s.op) && std::get<Compute>(s.op).part == arch::Part::kHead &&
                          std::holds_alternative<Compute>(t.op) && std::get<Compute>(t.op).part == arch::Part::kHead;
      if (!chunks) {
        EXPECT_FALSE(touches(s.reads, t.writes) || touches(t.reads, s.writes) || touches(s.writes, t.writes))
            << kind_of(s.op) << " <-> " << kind_of(t.op);
      }
    }
}

TEST_P(Edited, EveryDroppedEdgeIsRefused) {
  const Program p = program();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      if (!p.bodies[b].steps[k].after.empty()) {
        Program q = p;
        q.bodies[b].steps[k].after.clear();
        EXPECT_FALSE(verify(q).empty()) << p.bodies[b].name << " %" << k;
      }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Edited,
                         ::testing::Values(std::tuple{1, 0, false, false}, std::tuple{1, 0, true, true},
                                           std::tuple{2, 0, false, false}, std::tuple{3, 1, false, true},
                                           std::tuple{2, 1, true, false}));

TEST(Text, ErrorsNameTheLine) {
  const std::string text = print(build(tiny(), setting_of(2, 0, false, 4)));
  const auto fails_with = [&](const std::string& from, const std::string& to, const std::string& want) {
    std::string edited = text;
    const auto at = edited.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    edited.replace(at, from.size(), to);
    try {
      parse(edited, "p.txt");
      FAIL() << "accepted " << to;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(want), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("p.txt"), std::string::npos) << error.what();
    }
  };
  fails_with("part=embed", "part=embet", "unknown part");
  fails_with("writes=x.0", "writes=y.0", "no buffer 'y.0'");
  fails_with("stream=compute", "stream=computer", "unknown stream");
  fails_with("molen-program 1", "molen-program 2", "molen-program 1");
  fails_with("schedule first", "schedule fist", "unknown body");
  fails_with("after=%", "after=%9", "not there");
  fails_with("buffer ids i32", "buffer ids i33", "i33");
}

TEST(Build, RefusesWhatItCannotHonour) {
  Setting s = setting_of(1, 2, false, 4);
  EXPECT_THROW(build(tiny(), s), UsageError);
  s.zero = 0;
  s.compute = DType::kF16;
  EXPECT_THROW(build(tiny(), s), UsageError);
}

}  // namespace
}  // namespace molen::program
