// Tests measured traffic against the program's: by axis and kind of call.
#include "launch/traffic.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/threads/threads.h"

namespace molen::launch {
namespace {

using comm::CallKind;
using program::Axis;

std::string refusal(const Traffic& moved, const program::CallsByAxis& planned) {
  try {
    require_planned(moved, planned);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const program::CallsByAxis kPlanned{{{Axis::kDp, "all_gather"}, {3, 300}}, {{Axis::kDp, "reduce_scatter"}, {3, 300}}};

TEST(Traffic, WhatThePlanSaysPasses) {
  const Traffic moved{{{Axis::kDp, CallKind::kAllGather}, {3, 300, 150, 150}},
                      {{Axis::kDp, CallKind::kReduceScatter}, {3, 300, {}, {}}}};
  EXPECT_EQ(refusal(moved, kPlanned), "");
}

// The calls and bytes of all kinds together equal those of the program on each axis, but single kinds differ.
TEST(Traffic, ErrorsThatCancelOverAnAxisAreFound) {
  const Traffic bytes{{{Axis::kDp, CallKind::kAllGather}, {3, 364, 0, 0}},
                      {{Axis::kDp, CallKind::kReduceScatter}, {3, 236, 0, 0}}};
  EXPECT_EQ(refusal(bytes, kPlanned),
            "over dp: all_gather moved 364 bytes in 3 calls where the program has 300 bytes in 3");
  const Traffic calls{{{Axis::kDp, CallKind::kAllGather}, {2, 300, 0, 0}},
                      {{Axis::kDp, CallKind::kReduceScatter}, {4, 300, 0, 0}}};
  EXPECT_EQ(refusal(calls, kPlanned),
            "over dp: all_gather moved 300 bytes in 2 calls where the program has 300 bytes in 3");
}

TEST(Traffic, CallsOfOneSideAloneAreFound) {
  const Traffic other{{{Axis::kDp, CallKind::kAllGather}, {3, 300, 0, 0}},
                      {{Axis::kDp, CallKind::kAllReduce}, {3, 300, 0, 0}}};
  EXPECT_EQ(refusal(other, kPlanned),
            "over dp: reduce_scatter moved 0 bytes in 0 calls where the program has 300 bytes in 3");
  const Traffic more{{{Axis::kDp, CallKind::kAllGather}, {3, 300, 0, 0}},
                     {{Axis::kDp, CallKind::kReduceScatter}, {3, 300, 0, 0}},
                     {{Axis::kTp, CallKind::kBroadcast}, {1, 8, 0, 0}}};
  EXPECT_EQ(refusal(more, kPlanned), "over tp: broadcast moved 8 bytes in 1 calls where the program has 0 bytes in 0");
  EXPECT_NE(refusal({}, kPlanned), "");
}

// Rows go where routers send them, so only the sum over all ranks is planned: two ranks send 300 and 100 bytes.
TEST(Traffic, ExchangesAreComparedOverAllRanks) {
  const auto refused = [](std::int64_t first, std::int64_t second, bool at_most) {
    comm::ThreadWorld world(2);
    std::string errors[2];
    {
      std::vector<std::jthread> ranks;
      for (const int rank : {0, 1})
        ranks.emplace_back([&, rank] {
          const auto all = world.communicator(rank);
          const Traffic moved{{{Axis::kEp, CallKind::kAllToAll}, {2, rank == 0 ? first : second, {}, {}}},
                              {{Axis::kDp, CallKind::kAllGather}, {3, 77, {}, {}}}};
          const program::CallsByAxis planned{{{Axis::kEp, "all_to_all"}, {2, 200}},
                                             {{Axis::kDp, "all_gather"}, {3, 300}}};
          EXPECT_EQ(refusal(moved, {{{Axis::kEp, "all_to_all"}, {2, 200}}, {{Axis::kDp, "all_gather"}, {3, 77}}}), "");
          try {
            require_planned_exchanges(moved, planned, at_most, *all);
          } catch (const Error& error) {
            errors[rank] = error.what();
          }
        });
    }
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  EXPECT_EQ(refused(300, 100, false), "");
  EXPECT_EQ(refused(300, 100, true), "");
  EXPECT_EQ(refused(300, 90, false), "all_to_all moved 390 bytes over all ranks where their programs have 400");
  EXPECT_EQ(refused(300, 90, true), "");
  EXPECT_EQ(refused(300, 110, true), "all_to_all moved 410 bytes over all ranks where their programs have at most 400");
}

TEST(Traffic, OfAStepAlone) {
  const Traffic before{{{Axis::kDp, CallKind::kAllGather}, {3, 300, 150, 150}},
                       {{Axis::kTp, CallKind::kSend}, {1, 8, {}, {}}}},
      now{{{Axis::kDp, CallKind::kAllGather}, {5, 500, 250, 250}},
          {{Axis::kDp, CallKind::kAllReduce}, {1, 40, 40, 40}},
          {{Axis::kTp, CallKind::kSend}, {1, 8, {}, {}}}};
  const Traffic step{{{Axis::kDp, CallKind::kAllGather}, {2, 200, 100, 100}},
                     {{Axis::kDp, CallKind::kAllReduce}, {1, 40, 40, 40}}};
  EXPECT_EQ(since(before, now), step);
}

TEST(Traffic, AsJson) {
  const Traffic moved{{{Axis::kDp, CallKind::kAllGather}, {3, 300, 150, 150}},
                      {{Axis::kTp, CallKind::kSend}, {1, 8, {}, {}}}};
  EXPECT_EQ(to_json(moved), Json::parse(R"([
    {"axis": "dp", "op": "all_gather", "calls": 3, "payload_bytes": 300, "wire_bytes": 150},
    {"axis": "tp", "op": "send", "calls": 1, "payload_bytes": 8, "wire_bytes": null}])"));
}

}  // namespace
}  // namespace molen::launch
