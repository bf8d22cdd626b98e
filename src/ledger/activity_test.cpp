#include "ledger/activity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace molen::ledger {
namespace {

TEST(Activity, SecondsOfOverlappingPhasesAndRanksAreTheSumOverTheirIntervals) {
  struct Ran {
    int rank, phase;
    double start_s, end_s;
  };
  const std::uint64_t key = stream_key(5, "activity");
  std::vector<Ran> all;
  Activity activity(3, 2);
  std::uint64_t draw = 0;
  for (int step = 0; step < 40; ++step) {
    for (int rank = 0; rank < 2; ++rank)
      for (int i = 0; i < 6; ++i) {
        const double start_s = step + uniform_at(key, draw++);
        const Ran ran{rank, static_cast<int>(3 * uniform_at(key, draw++)), start_s,
                      start_s + 1.7 * uniform_at(key, draw++)};  // some end after the next step began
        all.push_back(ran);
        activity.add(ran.rank, ran.phase, ran.start_s, ran.end_s);
      }
    activity.complete(0, step + 1);
    EXPECT_EQ(activity.complete_until_s() < step + 1, true) << "rank 1 is not complete";
    activity.complete(1, step + 1);
    for (int phase = 0; phase < 3; ++phase)
      for (const double t : {step + 0.2, step + 0.77, step + 1.0}) {
        double sum = 0;
        for (const Ran& r : all)
          if (r.phase == phase) sum += std::max(0.0, std::min(t, r.end_s) - r.start_s);
        // Each of the 500 intervals or fewer adds two roundings of a sum below 500 s.
        EXPECT_NEAR(activity.seconds(phase, t), sum, 1000 * 500 * 0x1p-52) << phase << " until " << t;
      }
    activity.forget(step);
    EXPECT_LE(activity.knots(), 3u * 60u) << "what was forgotten is kept";
  }
}

TEST(Activity, TimesThatAreNotKnownAreRefused) {
  EXPECT_THROW(Activity(2, 0), Error);
  Activity activity(2, 1);
  EXPECT_THROW(activity.add(1, 0, 0, 1), Error);
  EXPECT_THROW(activity.add(0, 2, 0, 1), Error);
  EXPECT_THROW(activity.add(0, 0, 1, 0.5), Error);
  EXPECT_THROW(activity.add(0, 0, 1, std::nan("")), Error);
  activity.add(0, 0, 1, 2);
  EXPECT_THROW(activity.seconds(0, 1), Error);
  activity.complete(0, 3);
  EXPECT_EQ(activity.seconds(0, 3), 1.0);
  EXPECT_THROW(activity.seconds(0, 3.5), Error);
  EXPECT_THROW(activity.add(0, 0, 2.5, 4), Error);
  EXPECT_THROW(activity.complete(1, 3), Error);
  activity.forget(2);
  EXPECT_THROW(activity.seconds(0, 1.5), Error);
  EXPECT_EQ(activity.seconds(0, 2.5), 1.0);
}

}  // namespace
}  // namespace molen::ledger
