#include "plan/memory_need.h"

#include <gtest/gtest.h>

namespace molen::plan {
namespace {

program::MemoryPlan plan_of(std::int64_t peak, std::int64_t persistent, std::int64_t host) {
  program::MemoryPlan plan;
  plan.peak = Bytes(peak), plan.persistent = Bytes(persistent), plan.host = Bytes(host);
  return plan;
}

TEST(MemoryNeed, AnEvaluationThatDoesNotFitBesideWhatIsKeptNeedsAnArena) {
  const program::MemoryPlan training = plan_of(1000, 600, 50);
  const MemoryNeed fits = with_evaluation(training, plan_of(400, 0, 7));
  EXPECT_EQ(fits.device, Bytes(1000));
  EXPECT_EQ(fits.host, Bytes(57));
  const MemoryNeed apart = with_evaluation(training, plan_of(401, 0, 7));
  EXPECT_EQ(apart.device, Bytes(1401));
  EXPECT_EQ(apart.host, Bytes(57));
}

}  // namespace
}  // namespace molen::plan
