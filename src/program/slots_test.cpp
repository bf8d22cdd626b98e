#include "program/slots.h"

#include <gtest/gtest.h>

#include <map>

#include "program/build.h"
#include "program/test_edit.h"

namespace molen::program {
namespace {

// From the first op to the last that uses a buffer for a micro-batch.
struct Life {
  int first = -1, last = -1;
};

// Values that live at one time lie apart, and there are no more places than that takes.
TEST(Slots, NoTwoLivesShareAPlaceAndNoneIsSpare) {
  int shared = 0, several = 0;
  for (const ScheduleKind kind : kAllScheduleKinds)
    for (const int stages : {2, 3})
      for (const std::int64_t micro_batches : {1, 2, 5, 8}) {
        Setting s;
        s.mesh[mesh::Axis::kPp] = stages;
        s.pipeline = pipeline_of(kind, kind == ScheduleKind::kInterleaved ? 2 : 1);
        s.global_batch = micro_batches;
        s.sequence = 8;
        arch::Architecture a = tiny();
        a.layers = 7;
        for (const Program& p : build_stages(a, s)) {
          const Slots slots(p);
          std::map<int, std::map<std::int64_t, Life>> lives;  // by buffer and micro-batch
          const auto ops = expand(p);
          for (std::size_t i = 0; i < ops.size(); ++i)
            for (const auto* uses : {&ops[i].step->reads, &ops[i].step->writes})
              for (const Use& use : *uses) {
                if (p.buffers[static_cast<std::size_t>(use.buffer)].lifetime != Lifetime::kMicroBatch) continue;
                Life& life = lives[use.buffer][ops[i].micro_batch];
                // By instance: an instance frees what it uses last only when it ends.
                if (life.first < 0) life.first = ops[i].instance;
                life.last = ops[i].instance;
              }
          for (const auto& [buffer, of] : lives) {
            int most = 0;
            for (const auto& [m, life] : of) {
              int live = 0;
              for (const auto& [n, other] : of) {
                if (other.first > life.first || other.last < life.first) continue;
                ++live;
                if (m == n) continue;
                ASSERT_NE(slots.place(buffer, m), slots.place(buffer, n)) << p.buffers[buffer].name;
              }
              most = std::max(most, live);
            }
            ASSERT_EQ(slots.count(buffer), most) << p.buffers[buffer].name;
            shared += static_cast<int>(of.size()) > most;
            several += most > 1;
          }
        }
      }
  EXPECT_GT(shared, 100) << "no schedule gives a place to a second micro-batch";
  EXPECT_GT(several, 100) << "no schedule has two micro-batches in flight";
}

}  // namespace
}  // namespace molen::program
