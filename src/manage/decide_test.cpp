#include "manage/decide.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace molen::manage {
namespace {

constexpr double kNow = 1.7e9, kStale = 180, kHold = 300, kNodeMost = 5000;

// A node of a Cray: 1000 W in all, of which two GPUs have their own readings.
NodeRecord cray(double now_s = kNow) {
  NodeRecord record{"n1", {}, std::nullopt, 0};
  record.scopes = {
      {"gpu0", false, 300.0, now_s - 10}, {"gpu1", false, 100.0, now_s - 10}, {"node", true, 1000.0, now_s - 20}};
  record.limitable =
      collect::Limitable{{{"nvml-power:A", "gpu0", 200, 700, 700}, {"nvml-power:B", "gpu1", 200, 700, 700}}, ""};
  record.asked_s = now_s - 10;
  return record;
}

NodeNow seen(const NodeRecord& record) {
  return node_now(record, {kNow, kStale, kHold}, kNodeMost);
}

PowerCap soft(double watts) {
  PowerCap cap;
  cap.power = Watts(watts);
  return cap;
}
PowerCap hard(double watts) {
  PowerCap cap = soft(watts);
  cap.kind = PowerCap::Kind::kHard;
  return cap;
}

TEST(NodeNow, WhatNoLimitBoundsIsTheRest) {
  const NodeNow node = seen(cray());
  EXPECT_EQ(node.how, NodeNow::How::kMeasured);
  EXPECT_EQ(node.watts(), 1000);
  EXPECT_EQ(node.rest_w, 600);
  EXPECT_EQ(node.until_s, kNow - 20);
  ASSERT_EQ(node.devices.size(), 2u);
  EXPECT_NEAR(node.devices[0].wants_w(), 330, 1e-9);
  EXPECT_EQ(node.devices[1].wants_w(), 200) << "its least limit";
  EXPECT_EQ(node.without, "");
  // Without a meter of the whole node, the sum has the GPUs themselves.
  NodeRecord parts = cray();
  parts.scopes = {{"cpu-package0", true, 200.0, kNow}, {"gpu0", true, 300.0, kNow}, {"gpu1", true, 100.0, kNow}};
  EXPECT_EQ(seen(parts).watts(), 600);
  EXPECT_EQ(seen(parts).rest_w, 200);
  // A GPU that the sum lacks is added to it.
  parts.scopes[2].counted = false;
  EXPECT_EQ(seen(parts).watts(), 600);
  EXPECT_EQ(seen(parts).rest_w, 200);
}

TEST(NodeNow, ADeviceAtItsLimitWantsItsGreatestOne) {
  NodeRecord record = cray();
  record.limitable->settings[0].present_w = 310;
  const NodeNow node = seen(record);
  EXPECT_EQ(node.devices[0].wants_w(), 700) << "300 W of 310 W";
  record.limitable->settings[0].present_w = 320;
  EXPECT_NEAR(seen(record).devices[0].wants_w(), 330, 1e-9);
}

TEST(NodeNow, NoReadingIsNeverZero) {
  NodeRecord record = cray();
  record.scopes[0].watts = std::nullopt;
  NodeNow node = seen(record);
  EXPECT_EQ(node.devices[0].counts_w(), 700) << "its limit";
  EXPECT_EQ(node.watts(), 900 + 700 + 100) << "the sum has it, and nothing tells how much";
  EXPECT_NE(node.notes.at(0).find("gpu0 has no reading and counts with its limit, 700 W"), std::string::npos);
  record.limitable->settings[0].present_w = 400;
  EXPECT_EQ(seen(record).devices[0].counts_w(), 400);
  // A scope of the sum that nothing limits is said.
  record.scopes.push_back({"dram0", true, std::nullopt, kNow});
  EXPECT_NE(seen(record).notes.back().find("dram0 has no reading"), std::string::npos);
  // The last reading counts when there is no newer one.
  NodeRecord late = cray(kNow - 1000);
  node = seen(late);
  EXPECT_EQ(node.how, NodeNow::How::kLastKnown);
  EXPECT_EQ(node.watts(), 2000) << "600 W that no limit bounds, and two devices at their greatest limits";
  EXPECT_TRUE(node.devices.empty()) << "nobody would set its limits";
  EXPECT_EQ(node.without, "it has not asked for limits for 1010 s");
  // A node that nothing was ever read of.
  late.scopes.clear();
  node = seen(late);
  EXPECT_EQ(node.how, NodeNow::How::kAssumed);
  EXPECT_EQ(node.watts(), kNodeMost);
  late.limitable.reset();
  EXPECT_NE(seen(late).without.find("it does not ask for limits"), std::string::npos);
  NodeRecord unread = cray();
  unread.scopes.clear();
  EXPECT_EQ(seen(unread).watts(), kNodeMost);
  EXPECT_EQ(seen(unread).rest_w, kNodeMost - 1400);
}

TEST(NodeNow, ANodeThatAsksNoMoreCountsWithoutItsLimits) {
  NodeRecord record = cray();
  record.asked_s = kNow - 200;  // its limits of 300 s still hold, and the manager can renew them no more
  NodeNow node = seen(record);
  EXPECT_EQ(node.how, NodeNow::How::kMeasured);
  EXPECT_EQ(node.watts(), 600 + 700 + 700);
  EXPECT_NE(node.notes.at(0).find("it counts with 1000 W more than it drew"), std::string::npos) << node.notes[0];
  EXPECT_EQ(decide(hard(1e4), false, {node}).bound_w, 2000);
  // A reading of a time after the limits is what it draws.
  record.asked_s = kNow - 20 - kStale - kHold - 1;
  EXPECT_EQ(seen(record).watts(), 1000);
  EXPECT_TRUE(seen(record).notes.empty());
  // A GPU that draws above its limit is never counted with less than it drew, and one without a reading in full.
  record.asked_s = kNow - 200;
  record.scopes[0].watts = 800;
  record.scopes[1].watts.reset();
  EXPECT_EQ(seen(record).watts(), 1000 + 700);
  // A node that never said that it can limit something draws what it draws.
  record.limitable.reset();
  EXPECT_EQ(seen(record).watts(), 1000);
}

TEST(NodeNow, ANodeThatCannotLimitSaysWhy) {
  NodeRecord record = cray();
  record.limitable = collect::Limitable{{}, "no daemon"};
  EXPECT_EQ(seen(record).without, "no daemon");
  EXPECT_EQ(seen(record).rest_w, 1000);
  record.limitable->problem.clear();
  EXPECT_EQ(seen(record).without, "it has no power limit that may be set");
}

TEST(PowerCap, ASoftOneBeginsAndLiftsWithHysteresis) {
  const std::vector<NodeNow> nodes{seen(cray())};
  EXPECT_FALSE(decide(soft(1000), false, nodes).limiting) << "1000 W of 1000 W";
  EXPECT_TRUE(decide(soft(999), false, nodes).limiting);
  EXPECT_TRUE(decide(soft(1200), true, nodes).limiting) << "above 80 %";
  EXPECT_FALSE(decide(soft(1250), true, nodes).limiting);
  PowerCap early = soft(1250);
  early.lift_at = 0.5;
  EXPECT_TRUE(decide(early, true, nodes).limiting);
  EXPECT_TRUE(decide(soft(1250), false, nodes).limits.empty());
  EXPECT_TRUE(decide(hard(1e6), false, nodes).limiting) << "a hard one always";
}

TEST(PowerCap, TheLimitsAndTheRestKeepTheCap) {
  const std::vector<NodeNow> nodes{seen(cray())};
  const PowerDecision decision = decide(soft(1050), true, nodes);
  EXPECT_TRUE(decision.met);
  EXPECT_EQ(decision.least_w, 1000);
  EXPECT_NEAR(decision.bound_w, 1050, 1e-9);
  EXPECT_EQ(decision.limits.at("n1").at(0).setting, "nvml-power:A");
  EXPECT_NEAR(decision.limits.at("n1")[0].watts, 250, 1e-9);
  EXPECT_NEAR(decision.limits.at("n1")[1].watts, 200, 1e-9);
  const PowerDecision unmet = decide(hard(900), false, nodes);
  EXPECT_FALSE(unmet.met);
  EXPECT_EQ(unmet.bound_w, 1000) << "the least that there is";
}

TEST(PowerCap, ANodeThatCannotLimitLeavesTheRestToTheOthers) {
  NodeRecord other = cray();
  other.name = "n2";
  other.limitable.reset();
  const std::vector<NodeNow> nodes{seen(cray()), seen(other)};
  const PowerDecision decision = decide(hard(2200), false, nodes);
  EXPECT_FALSE(decision.limits.contains("n2"));
  EXPECT_NEAR(decision.limits.at("n1")[0].watts + decision.limits.at("n1")[1].watts, 2200 - 1000 - 600, 1e-9)
      << "what n2 draws is taken off, and all that remains is n1's";
}

RC_GTEST_PROP(PowerCap, HoldsForAnyNodes, ()) {
  const int count = *rc::gen::inRange(1, 6);
  std::vector<NodeNow> nodes;
  double least_w = 0;
  for (int n = 0; n < count; ++n) {
    NodeNow node;
    node.name = fmt::format("n{}", n);
    node.rest_w = *rc::gen::inRange(0, 1000);
    least_w += node.rest_w;
    for (int d = *rc::gen::inRange(0, 4); d > 0; --d) {
      Device device{fmt::format("s{}", d), "gpu0", 0, 0, std::nullopt, std::nullopt};
      device.least_w = *rc::gen::inRange(1, 300);
      device.most_w = device.least_w + *rc::gen::inRange(0, 500);
      if (*rc::gen::arbitrary<bool>()) device.drawn_w = *rc::gen::inRange(0, 900);
      least_w += device.least_w;
      node.devices.push_back(device);
    }
    nodes.push_back(node);
  }
  const double cap_w = *rc::gen::inRange(1, 8000);
  const PowerDecision decision = decide(hard(cap_w), false, nodes);
  RC_ASSERT(decision.met == (cap_w >= least_w));
  if (decision.met) RC_ASSERT(decision.bound_w <= cap_w * (1 + 1e-12));
  for (const NodeNow& node : nodes)
    for (std::size_t i = 0; i < node.devices.size(); ++i)
      RC_ASSERT(decision.limits.at(node.name).at(i).watts >= node.devices[i].least_w);
}

TEST(PowerCap, OfSeveralCapsTheLeastHolds) {
  const SiteLimits a{{"n1", {{"A", 300}, {"B", 200}}}, {"n2", {{"A", 100}}}};
  const SiteLimits b{{"n1", {{"A", 250}, {"C", 400}}}, {"n3", {{"A", 50}}}};
  const SiteLimits both{{"n1", {{"A", 250}, {"B", 200}, {"C", 400}}}, {"n2", {{"A", 100}}}, {"n3", {{"A", 50}}}};
  EXPECT_EQ(least_of(a, b), both);
  EXPECT_EQ(least_of(a, {}), a);
}

TEST(EnergyCap, EachLevelWarnsOnce) {
  EnergyCap cap;
  cap.energy = Joules(1000);
  EXPECT_TRUE(decide(cap, 800, 49, {}).warnings.empty());
  EXPECT_EQ(decide(cap, 800, 50, {}).warnings, std::vector<int>{85}) << "what is assumed counts";
  EXPECT_EQ(decide(cap, 930, 0, {85}).warnings, std::vector<int>{90});
  EXPECT_EQ(decide(cap, 2000, 0, {}).warnings, (std::vector<int>{85, 90, 95}));
  EXPECT_TRUE(decide(cap, 2000, 0, {85, 90, 95}).warnings.empty());
  EXPECT_EQ(decide(cap, 2000, 0, {}).percent, 200);
}

TEST(EnergyCap, AGapHasTheMeanPowerOfItsScope) {
  EXPECT_EQ(joules_of_gaps({{"n1", "node", 6000, 60, 100, 160}}), 0) << "no gap";
  EXPECT_EQ(joules_of_gaps({{"n1", "node", 6000, 60, 100, 260}}), 100 * 100.0);
  EXPECT_EQ(joules_of_gaps({{"n1", "a", 6000, 60, 100, 260}, {"n1", "b", 0, 10, 0, 30}, {"n2", "a", 10, 1, 0, 3}}),
            100 * 100.0 + 0 + 2 * 10.0);
  EXPECT_EQ(joules_of_gaps({{"n1", "node", 6000, 120, 100, 160}}), 0) << "two senders: more is covered than there was";
  EXPECT_EQ(joules_of_gaps({{"n1", "node", 0, 0, 0, 0}}), 0) << "nothing was read";
}

TEST(EnergyCap, WhatNobodyMeasuresIsAssumed) {
  NodeNow measured = seen(cray()), late = seen(cray(kNow - 1000)), never;
  never.how = NodeNow::How::kAssumed;
  never.rest_w = 50;
  EXPECT_EQ(assumed_joules({measured}, kNow - 5000, kNow), 0);
  EXPECT_EQ(assumed_joules({measured, late}, kNow - 5000, kNow), 1020 * 2000.0);
  // One of two scopes is old; what the other one measured since is not counted twice.
  NodeRecord parts{"n1", {{"a", true, 100.0, kNow - 1000}, {"b", true, 300.0, kNow - 20}}, std::nullopt, 0};
  EXPECT_EQ(assumed_joules({seen(parts)}, kNow - 5000, kNow), 1000 * 100.0);
  EXPECT_EQ(assumed_joules({late}, kNow - 10, kNow), 10 * 2000.0) << "within the period only";
  EXPECT_EQ(assumed_joules({never}, kNow - 5000, kNow), 5000 * 50.0);
}

}  // namespace
}  // namespace molen::manage
