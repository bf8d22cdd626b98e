#include "program/schedule/schedule.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::program {
namespace {

using enum ScheduleKind;
using enum Pass;

std::vector<int> chunk_counts(ScheduleKind kind) {
  if (kind == k1f1b || kind == kZbH1) return {1};
  if (kind == kZbV) return {2};
  return {1, 2, 3, 4};
}

template <class Visit>
void for_all_schedules(Visit&& visit) {
  for (const ScheduleKind kind : kAllScheduleKinds)
    for (int p = 1; p <= 8; ++p)
      for (const int v : chunk_counts(kind))
        for (int m = 1; m <= 20; ++m) visit(kind, make_schedule(kind, p, v, m));
}

std::string describe(ScheduleKind kind, const Schedule& s) {
  return fmt::format("{} p={} v={} m={}", name_of(kind), s.stages, s.chunks, s.micro_batches);
}

std::string schedule_refusal(const Schedule& s) {
  try {
    check(s);
  } catch (const UsageError& e) {
    return GoldenMessages::note(e.what());
  }
  return "";
}

// With F = I = W = 1 and B = 2, all times are small integers, so every sum is exact.
ScheduleTimes unit_times(const Schedule& s) {
  return simulate(s, uniform_costs(s, 1, 1, 1));
}

// An independent, quadratic check, which runs every action that can run until none can.
bool runs_through(const Schedule& s) {
  std::set<std::tuple<char, int, int>> done;
  std::map<std::tuple<char, int, int>, int> count;
  std::vector<std::size_t> next(s.order.size(), 0);
  const int last = s.stages * s.chunks - 1;
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < s.stages; ++stage) {
      auto& n = next[static_cast<std::size_t>(stage)];
      const auto& order = s.order[static_cast<std::size_t>(stage)];
      if (n == order.size()) continue;
      const Action a = order[n];
      if (a.chunk < 0 || a.chunk >= s.chunks || a.micro_batch < 0 || a.micro_batch >= s.micro_batches) return false;
      const int i = a.micro_batch;
      const int g =
          s.placement == Placement::kV && a.chunk == 1 ? 2 * s.stages - 1 - stage : a.chunk * s.stages + stage;
      const auto has = [&](char what, int at) { return done.count({what, at, i}) > 0; };
      bool ready = false;
      char key = 'f';
      if (a.kind == kForward) {
        ready = g == 0 || has('f', g - 1);
      } else if (a.kind == kBackwardWeights) {
        key = 'w', ready = has('i', g) && !has('w', g);
      } else {
        key = 'i', ready = has('f', g) && (g == last || has('i', g + 1));
      }
      if (!ready) continue;
      if (!done.insert({key, g, i}).second) return false;
      if (a.kind == kBackward) done.insert({'w', g, i});
      ++n, moved = true;
    }
  }
  for (std::size_t stage = 0; stage < next.size(); ++stage)
    if (next[stage] != s.order[stage].size()) return false;
  return done.size() == 3U * static_cast<std::size_t>((last + 1) * s.micro_batches);
}

TEST(Schedule, EveryMadeScheduleIsAccepted) {
  int made = 0;
  for_all_schedules([&](ScheduleKind kind, const Schedule& s) {
    ASSERT_EQ(schedule_refusal(s), "") << describe(kind, s);
    if (s.micro_batches % 3 == 1) {
      ASSERT_TRUE(runs_through(s)) << describe(kind, s);
    }
    ++made;
  });
  EXPECT_EQ(made, 8 * 20 * (4 + 1 + 4 + 1 + 1));
}

TEST(Schedule, BackwardsOfAChunkAscend) {
  for_all_schedules([&](ScheduleKind kind, const Schedule& s) {
    for (const auto& order : s.order) {
      std::map<std::pair<Pass, int>, int> next;
      for (const Action& a : order) ASSERT_EQ(a.micro_batch, (next[{a.kind, a.chunk}]++)) << describe(kind, s);
    }
  });
}

TEST(Schedule, OneForwardOneBackwardByHand) {
  EXPECT_EQ(print_schedule(make_schedule(k1f1b, 2, 1, 3)), "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_EQ(print_schedule(make_schedule(kGpipe, 2, 1, 2)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(print_schedule(make_schedule(kZbH1, 2, 1, 3)),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
}

// The closed forms are exact except for the rounding of one division.
TEST(Schedule, IdleSharesAreTheFormulas) {
  constexpr double kRounding = 4 * std::numeric_limits<double>::epsilon();
  for_all_schedules([&](ScheduleKind kind, const Schedule& s) {
    const int p = s.stages, v = s.chunks, m = s.micro_batches;
    const ScheduleTimes times = unit_times(s);
    const double got = idle_share(times);
    const bool filled = m >= (kind == kZbV ? 2 * p - 1 : p);
    // GPipe and 1F1B have no chunk to wait for, so their formulas also hold for fewer micro-batches than stages.
    if (filled || ((kind == kGpipe || kind == k1f1b) && v == 1)) {
      ASSERT_NEAR(got, ideal_idle_share(kind, p, v, m), kRounding) << describe(kind, s);
    }
    // The bound holds for any schedule with fewer micro-batches. It adds up the way of the first micro-batch forward
    // and back, the other micro-batches after it on the last stage, and, when backwards are split, the weight gradients
    // of the last micro-batch on stage 0.
    if (kind == kInterleaved) {
      ASSERT_EQ(times.total_s, 3 * std::max(v * m + p - 1, v * p + m - 1)) << describe(kind, s);
    }
    if (kind == kZbH1) {
      ASSERT_EQ(times.total_s, std::max(3 * m + p - 1, 2 * m + 2 * p - 1)) << describe(kind, s);
    }
    if (kind == kZbV) {
      ASSERT_GE(times.total_s, std::max(6 * m + p - 1, 4 * p + 2 * m - 1)) << describe(kind, s);
    }
  });
  EXPECT_NEAR(idle_share(unit_times(make_schedule(k1f1b, 4, 1, 8))), 3.0 / 11, kRounding);
  EXPECT_NEAR(idle_share(unit_times(make_schedule(kInterleaved, 4, 2, 8))), 3.0 / 19, kRounding);
  EXPECT_NEAR(idle_share(unit_times(make_schedule(kZbH1, 4, 1, 8))), 3.0 / 27, kRounding);
}

TEST(Schedule, ZbVIsBelowZbH1) {
  for (int p = 2; p <= 8; ++p) {
    const int m = 2 * p;
    const double v = idle_share(unit_times(make_schedule(kZbV, p, 2, m)));
    const double h1 = idle_share(unit_times(make_schedule(kZbH1, p, 1, m)));
    fmt::print("p={} m={}: idle zb-h1 {:.4f}, zb-v {:.4f}, its ideal {:.4f}\n", p, m, h1, v,
               ideal_idle_share(kZbV, p, 2, m));
    EXPECT_LT(v, 0.6 * h1);
  }
}

// With few micro-batches zb-v has no closed form, so the test prints its distance from the bound, in chunk times. zb-v
// never takes longer than zb-h1, whose stages are two chunks each.
TEST(Schedule, ZbVWithFewMicroBatches) {
  double worst = 0.0;
  int at_bound = 0, cases = 0;
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m < 2 * p - 1; ++m) {
      const double bound = std::max(6 * m + p - 1, 4 * p + 2 * m - 1);
      const double total = unit_times(make_schedule(kZbV, p, 2, m)).total_s;
      EXPECT_GE(total, bound) << p << ' ' << m;
      EXPECT_LE(total, 2 * unit_times(make_schedule(kZbH1, p, 1, m)).total_s) << p << ' ' << m;
      worst = std::max(worst, total / bound - 1.0);
      at_bound += total == bound ? 1 : 0;
      ++cases;
    }
  }
  fmt::print("zb-v, m < 2p-1: {} of {} at the bound, worst {:.3f} above it\n", at_bound, cases, worst);
}

// List scheduling of the V by its definition. In each unit of time, a stage takes the first action that can run, and
// the result of an action is available one unit later.
std::string listed_v(int p, int m) {
  std::map<std::tuple<char, int, int>, int> end;  // by kind, global stage and micro-batch
  std::vector<std::map<std::pair<char, int>, int>> done(static_cast<std::size_t>(p));
  std::vector<std::string> order(static_cast<std::size_t>(p));
  for (int written = 0, now = 0; written < 6 * p * m; ++now)
    for (int stage = 0; stage < p; ++stage) {
      auto& mine = done[static_cast<std::size_t>(stage)];
      const int held = mine[{'F', 0}] + mine[{'F', 1}] - mine[{'W', 0}] - mine[{'W', 1}];
      const auto ended = [&](char kind, int global, int i) {
        const auto found = end.find({kind, global, i});
        return found != end.end() && found->second <= now;
      };
      for (const auto& [kind, chunk] : {std::pair{'I', 1}, {'I', 0}, {'F', 1}, {'F', 0}, {'W', 1}, {'W', 0}}) {
        const int i = mine[{kind, chunk}], global = chunk == 0 ? stage : 2 * p - 1 - stage;
        const bool can =
            i < m && (kind == 'F'   ? held < 2 * p - 1 + chunk && (global == 0 || ended('F', global - 1, i))
                      : kind == 'I' ? ended('F', global, i) && (global == 2 * p - 1 || ended('I', global + 1, i))
                                    : ended('I', global, i));
        if (!can) continue;
        end[{kind, global, i}] = now + 1;
        ++mine[{kind, chunk}];
        ++written;
        auto& text = order[static_cast<std::size_t>(stage)];
        text += fmt::format("{}{}{}{}", text.empty() ? "" : ",", global, kind, i);
        break;
      }
    }
  return fmt::format("{}\n", fmt::join(order, "\n"));
}

TEST(Schedule, ZbVWithFewMicroBatchesIsTheList) {
  EXPECT_EQ(print_schedule(make_schedule(kZbV, 2, 2, 1)), "0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,1I0,2W0,1W0\n");
  for (const auto& [p, m] : {std::pair{2, 2}, {3, 3}, {4, 3}, {4, 4}, {5, 4}, {6, 6}})
    EXPECT_EQ(print_schedule(make_schedule(kZbV, p, 2, m)), listed_v(p, m)) << p << " stages, " << m;
}

// Returns the largest number of micro-batches whose forward has run on a stage but whose backward has not.
int most_in_flight(const Schedule& s, int stage) {
  int live = 0, most = 0;
  for (const Action& a : s.order[static_cast<std::size_t>(stage)]) {
    if (a.kind == kForward) most = std::max(most, ++live);
    if (a.kind == kBackward || a.kind == kBackwardWeights) --live;
  }
  return most;
}

TEST(Schedule, PeaksInFlight) {
  for_all_schedules([&](ScheduleKind kind, const Schedule& s) {
    const int p = s.stages, v = s.chunks, m = s.micro_batches;
    for (int stage = 0; stage < p; ++stage) {
      const int peak = most_in_flight(s, stage);
      const std::string where = fmt::format("{} stage {}", describe(kind, s), stage);
      switch (kind) {
        case kGpipe:
          ASSERT_EQ(peak, m * v) << where;
          break;
        case k1f1b:
          ASSERT_EQ(peak, std::min(m, p - stage)) << where;
          break;
        case kInterleaved: {
          const int groups = std::max(1, m / p), n = (m + groups - 1) / groups;
          ASSERT_TRUE(m % p != 0 || n == p) << where;
          const int warm_up = v == 1 ? p - stage - 1 : 2 * (p - stage - 1) + (v - 1) * n;
          ASSERT_EQ(peak, std::min(m * v, warm_up + 1)) << where;
          break;
        }
        case kZbH1:  // stage 0 of 1f1b holds min(m, p)
          ASSERT_LE(peak, std::min(m, p)) << where;
          break;
        case kZbV:  // in halves of a stage
          ASSERT_LE(peak, 2 * std::min(m, p)) << where;
          break;
        case ScheduleKind::kFile:
          FAIL() << "no kind that is made";
      }
    }
  });
}

Schedule any_schedule() {
  const auto kind = *rc::gen::elementOf(kAllScheduleKinds);
  const int p = *rc::gen::inRange(1, 7), m = *rc::gen::inRange(1, 13);
  return make_schedule(kind, p, *rc::gen::elementOf(chunk_counts(kind)), m);
}

RC_GTEST_PROP(Schedule, DroppedDoubledAndForeignActionsAreRefused, ()) {
  Schedule s = any_schedule();
  auto& order = s.order[*rc::gen::inRange<std::size_t>(0, s.order.size())];
  const auto at = static_cast<std::ptrdiff_t>(*rc::gen::inRange<std::size_t>(0, order.size()));
  const auto to = static_cast<std::ptrdiff_t>(*rc::gen::inRange<std::size_t>(0, order.size()));
  Action& a = order[static_cast<std::size_t>(at)];
  switch (*rc::gen::inRange(0, 5)) {
    case 0:
      order.erase(order.begin() + at);
      break;
    case 1:
      order.insert(order.begin() + to, Action(a));
      break;
    case 2:
      a.micro_batch = *rc::gen::element(-1, s.micro_batches, 1 << 30);
      break;
    case 3:
      a.chunk = *rc::gen::element(-1, s.chunks, 1 << 30);
      break;
    default:  // another kind: the old action is missing, or the new one is repeated
      a.kind = a.kind == kBackward ? kBackwardInput : a.kind == kForward ? kBackwardWeights : kForward;
      break;
  }
  RC_ASSERT(schedule_refusal(s) != "");
}

RC_GTEST_PROP(Schedule, SwappedActionsAreRefusedWhereTheyBreakDependencies, ()) {
  Schedule s = any_schedule();
  int swaps = *rc::gen::inRange(1, 4);
  while (swaps-- > 0) {
    auto& order = s.order[*rc::gen::inRange<std::size_t>(0, s.order.size())];
    std::swap(order[*rc::gen::inRange<std::size_t>(0, order.size())],
              order[*rc::gen::inRange<std::size_t>(0, order.size())]);
  }
  const bool valid = runs_through(s);
  RC_TAG(valid ? "valid" : "broken");
  RC_ASSERT((schedule_refusal(s) == "") == valid);
}

// Tries all single mutations of one small schedule of each kind.
TEST(Schedule, EverySwapAndDropOfSmallSchedules) {
  int broken = 0, harmless = 0;
  for (const ScheduleKind kind : kAllScheduleKinds) {
    const Schedule good = make_schedule(kind, 3, kind == kZbV || kind == kInterleaved ? 2 : 1, 4);
    for (std::size_t stage = 0; stage < good.order.size(); ++stage) {
      for (std::size_t i = 0; i < good.order[stage].size(); ++i) {
        Schedule s = good;
        s.order[stage].erase(s.order[stage].begin() + static_cast<std::ptrdiff_t>(i));
        ASSERT_NE(schedule_refusal(s), "");
        for (std::size_t j = i + 1; j < good.order[stage].size(); ++j) {
          s = good;
          std::swap(s.order[stage][i], s.order[stage][j]);
          const bool valid = runs_through(s);
          ASSERT_EQ(schedule_refusal(s) == "", valid)
              << describe(kind, s) << " stage " << stage << " swap " << i << ' ' << j;
          ++(valid ? harmless : broken);
        }
      }
    }
  }
  EXPECT_GT(broken, 500);
  EXPECT_GT(harmless, 50);
}

TEST(Schedule, RefusalsSayWhereAndWhy) {
  const GoldenMessages golden;
  const Schedule good = make_schedule(kZbH1, 2, 1, 2);  // 0F0,0F1,0I0,0W0,0I1,0W1
  Schedule s = good;
  std::swap(s.order[0][2], s.order[0][3]);
  EXPECT_EQ(schedule_refusal(s), "stage 0, action 3 (0W0): its backward of the input (I) must run before it");
  s = good;
  s.order[0].pop_back();
  EXPECT_EQ(schedule_refusal(s),
            "stage 0: the weight gradient (W) of micro-batch 1 through global stage 0 is missing after 5 actions");
  s = good;
  s.order[0].push_back(s.order[0][0]);
  EXPECT_EQ(schedule_refusal(s), "stage 0, action 7 (0F0): this forward has run before");
  s = good;
  s.order[0][1].micro_batch = 2;
  EXPECT_EQ(schedule_refusal(s),
            "stage 0, action 2: chunk 0, micro-batch 2 is not one of 1 chunks and 2 micro-batches");
  // Stage 0 needs the gradient of the first micro-batch before it sends the second. Stage 1 needs the second one before
  // it makes that gradient.
  s = make_schedule(k1f1b, 2, 1, 2);
  s.order[0] = {{kForward, 0, 0}, {kBackward, 0, 0}, {kForward, 0, 1}, {kBackward, 0, 1}};
  s.order[1] = {{kForward, 0, 0}, {kForward, 0, 1}, {kBackward, 0, 0}, {kBackward, 0, 1}};
  EXPECT_EQ(schedule_refusal(s),
            "the stages wait for each other: stage 0, action 2 (0B0) waits for 1B/I0 of stage 1; "
            "stage 1, action 2 (1F1) waits for 0F1 of stage 0");
  s = good;
  s.stages = 1 << 30, s.chunks = 1 << 30, s.micro_batches = 1 << 30;
  EXPECT_NE(schedule_refusal(s).find("more than 16777216 actions"), std::string::npos);
  s = good;
  s.placement = Placement::kV;
  EXPECT_NE(schedule_refusal(s).find("a V needs 2 chunks"), std::string::npos);
}

TEST(Schedule, CountsBelowOneAreRefused) {
  for (int Schedule::*count : {&Schedule::stages, &Schedule::chunks, &Schedule::micro_batches}) {
    Schedule s = make_schedule(k1f1b, 2, 1, 2);
    s.*count = 0;
    EXPECT_EQ(schedule_refusal(s),
              fmt::format("a pipeline schedule needs at least one stage, chunk and micro-batch, not {}, {} and {}",
                          s.stages, s.chunks, s.micro_batches));
  }
  Schedule s = make_schedule(k1f1b, 2, 1, 2);
  s.order.pop_back();
  EXPECT_EQ(schedule_refusal(s), "a pipeline schedule of 2 stages has 1 lists of actions");
}

TEST(Schedule, CountsThatAKindDoesNotHaveAreRefused) {
  const GoldenMessages golden;
  EXPECT_NOTED(make_schedule(k1f1b, 2, 2, 4), UsageError);
  EXPECT_NOTED(make_schedule(kZbH1, 2, 2, 4), UsageError);
  EXPECT_NOTED(make_schedule(kZbV, 2, 1, 4), UsageError);
  EXPECT_NOTED(make_schedule(kGpipe, 0, 1, 4), UsageError);
  EXPECT_NOTED(make_schedule(kGpipe, 2, 1, 0), UsageError);
  EXPECT_NOTED(make_schedule(kInterleaved, 1 << 30, 1 << 30, 1 << 30), UsageError);
  EXPECT_EQ(parse_schedule_kind("zb-v"), kZbV);
  try {
    parse_schedule_kind("zb-h2");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean 'zb-h1'"), std::string::npos) << e.what();
  }
}

TEST(Schedule, SimulationByHand) {
  // Two stages, one micro-batch and 0.5 s for each transfer give the times 1 | .5 | 2 3 | .5 | 4.
  const Schedule s = make_schedule(k1f1b, 2, 1, 1);
  ScheduleCosts costs = uniform_costs(s, 1, 1, 1, 0.5);
  costs.forward_s = {1, 2};
  costs.backward_s = {4, 3};
  const ScheduleTimes times = simulate(s, costs);
  EXPECT_EQ(times.actions[1][0].start_s, 1.5);
  EXPECT_EQ(times.actions[1][1].end_s, 6.5);
  EXPECT_EQ(times.actions[0][1].start_s, 7.0);
  EXPECT_EQ(times.total_s, 11.0);
  EXPECT_DOUBLE_EQ(idle_share(times), 1.0 - 10.0 / 22.0);
  // The V crosses 2 x 1 boundaries forward and 2 x 1 backward. Its turn is within one stage and needs no transfer.
  const Schedule v = make_schedule(kZbV, 2, 2, 1);
  EXPECT_EQ(simulate(v, uniform_costs(v, 1, 1, 1, 10)).total_s, 4 + 4 + 1 + 4 * 10);
}

TEST(Schedule, CostsThatMakeNoSenseAreRefused) {
  const GoldenMessages golden;
  const Schedule s = make_schedule(k1f1b, 2, 1, 2);
  ScheduleCosts costs = uniform_costs(s, 1, 1, 1);
  costs.forward_s.pop_back();
  EXPECT_NOTED(simulate(s, costs), UsageError);
  EXPECT_NOTED(simulate(s, uniform_costs(s, -1, 1, 1)), UsageError);
  EXPECT_NOTED(simulate(s, uniform_costs(s, 1, 1, 1, std::nan(""))), UsageError);
  EXPECT_EQ(idle_share(simulate(s, uniform_costs(s, 0, 0, 0))), 0.0);
}

TEST(ScheduleText, RoundTrip) {
  for_all_schedules([&](ScheduleKind kind, const Schedule& s) {
    ASSERT_TRUE(parse_schedule(print_schedule(s), "text") == s) << describe(kind, s);
  });
}

// This is the text that torch 2.13 writes for its ScheduleZBVZeroBubble with 2 ranks and 3 micro-batches, which is the
// schedule of the same paper. Python's csv ends lines with CRLF, and a cell is empty when a rank waits.
TEST(ScheduleText, ReadsPyTorch) {
  const Schedule s = parse_schedule(
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2\r\n"
      ",1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2\r\n",
      "zbv.csv");
  EXPECT_EQ(s.stages, 2);
  EXPECT_EQ(s.chunks, 2);
  EXPECT_EQ(s.micro_batches, 3);
  EXPECT_EQ(s.placement, Placement::kV);
  EXPECT_EQ(s.order[1][1], (Action{kForward, 1, 0}));
  EXPECT_EQ(s, make_schedule(kZbV, 2, 2, 3));
}

TEST(ScheduleText, BlanksMeanNothing) {
  EXPECT_EQ(parse_schedule(" 0F0 ,,0F1,\t0B0,0B1,,\n, 1F0,1B0,1F1,1B1\n\n\n", "a"),
            parse_schedule("0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1", "b"));
}

std::string text_refusal(std::string_view text) {
  try {
    parse_schedule(text, "s.csv");
  } catch (const UsageError& e) {
    return GoldenMessages::note(e.what());
  }
  return "";
}

TEST(ScheduleText, RefusalsSayWhereAndWhy) {
  const GoldenMessages golden;
  using namespace std::string_view_literals;
  const std::vector<std::pair<std::string_view, std::string_view>> cases{
      {"", "s.csv: no actions"},
      {"\n,,\r\n", "s.csv: no actions"},
      {"0F0,0B0\n1F0,xyz\n", "s.csv:2: 'xyz' is no action"},
      {"0F0,0B\n", "s.csv:1: '0B' is no action"},
      {"F0,0B0\n", "s.csv:1: 'F0' is no action"},
      {"0F0,0X0\n", "s.csv:1: '0X0' is no action"},
      {"0F-1\n", "s.csv:1: '0F-1' is no action"},
      {"0F0B0\n", "s.csv:1: '0F0B0' is no action"},
      {"0F0 0B0\n", "s.csv:1: '0F0 0B0' is no action"},
      {"0f0,0b0\n", "s.csv:1: '0f0' is no action"},
      {"\"0F0\",0B0\n", "s.csv:1: '\"0F0\"' is no action"},
      {"0F0,\0000B0\n"sv, "s.csv:1: '?0B0' is no action"},
      {"0F0,0SEND_F0,0B0\n", "s.csv:1: '0SEND_F0': communication follows"},
      {"0UNSHARD,0F0,0B0\n", "s.csv:1: '0UNSHARD': communication follows"},
      {"(0F1;1B0)OVERLAP_F_B\n", "s.csv:1: '(0F1;1B0)OVERLAP_F_B': overlapped pairs"},
      {"99999999999999999999F0\n", "the number is too large"},
      {"999999999F999999999,0B0\n", "too few for 1000000000 global stages"},
      {"0F0,0B0\n1F0,1B0\n\n2F0,2B0\n", "cannot be shared evenly by 4 rows"},
      {"1F0,1B0\n0F0,0B0\n",
       "s.csv:1: an action of global stage 1: with 2 rows, 1 chunks each (interleaved), it belongs to row 2"},
      {"0F0,0B0,3F0,3B0\n1F0,1B0,2F0,2B0,0F1\n",
       "s.csv:2: an action of global stage 0: with 2 rows, 2 chunks each (in a V), it belongs to row 1"},
      {"0F0,0B0\n1F0,1I0\n", "s.csv: stage 1: the weight gradient (W)"},
      {"0B0,0F0\n", "s.csv: stage 0, action 1 (0B0): its forward must run before it"},
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "s.csv: the stages wait for each other"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_NE(text_refusal(text).find(expected), std::string::npos) << text << " -> " << text_refusal(text);
  EXPECT_NE(text_refusal(std::string(70000, '\n')).find("more than 65536 rows"), std::string::npos);
  EXPECT_NE(text_refusal(std::string((1 << 24) + 1, '\n')).find("more than 65536 rows"), std::string::npos);
  EXPECT_LT(text_refusal(std::string(1 << 20, 'x')).size(), 200U);
}

RC_GTEST_PROP(ScheduleText, GarbledTextIsRefusedOrRoundTrips, ()) {
  std::string text = print_schedule(any_schedule());
  const int edits = *rc::gen::inRange(1, 4);
  for (int k = 0; k < edits; ++k) {
    const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
    if (*rc::gen::arbitrary<bool>())
      text[at] = *rc::gen::elementOf(std::string("0123456789FBIW,\n \r-("));
    else
      text.erase(at, *rc::gen::inRange<std::size_t>(1, 6));
    if (text.empty()) break;
  }
  try {
    const Schedule s = parse_schedule(text, "garbled");
    RC_ASSERT(schedule_refusal(s) == "");
    RC_ASSERT(parse_schedule(print_schedule(s), "again") == s);
  } catch (const UsageError&) {
  }
}

// The message names the counts in their order, and the limit is exact.
TEST(Schedule, TooManyActionsAreNamedInOrder) {
  const GoldenMessages golden;
  const int most = static_cast<int>(kMaxScheduleActions / 2);
  Schedule s;
  s.stages = 1, s.chunks = 1, s.micro_batches = most + 1;
  s.order.resize(1);
  EXPECT_EQ(schedule_refusal(s),
            fmt::format("a pipeline schedule of 1 stages x 1 chunks x {} micro-batches has more than {} actions",
                        most + 1, kMaxScheduleActions));
  s.micro_batches = most;
  EXPECT_EQ(schedule_refusal(s).find("more than"), std::string::npos) << schedule_refusal(s);
  s.stages = 2, s.chunks = 3, s.micro_batches = most;
  EXPECT_NE(schedule_refusal(s).find(fmt::format("2 stages x 3 chunks x {} micro-batches", most)), std::string::npos)
      << schedule_refusal(s);
  try {
    make_schedule(kInterleaved, 2, 3, most);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()),
              fmt::format("schedule interleaved: 2 stages x 3 chunks x {} micro-batches are more than {} actions", most,
                          kMaxScheduleActions));
  }
}

}  // namespace
}  // namespace molen::program
