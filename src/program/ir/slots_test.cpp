#include "program/ir/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "program/build/build.h"
#include "program/test_edit.h"

namespace molen::program {
namespace {

// The first and the last instance that use a buffer for a micro-batch.
struct Life {
  int first = -1, last = -1;
};

// Values that are alive at the same time have different places, and every place is used.
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
            for (const Use& use : ops[i].step->operands) {
              if (p.buffers[static_cast<std::size_t>(use.buffer)].lifetime != Lifetime::kMicroBatch) continue;
              Life& life = lives[use.buffer][ops[i].micro_batch];
              // An instance frees its buffers only when it ends, so lives are counted in instances.
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

// In a program text, a body without a micro-batch may use a buffer of Lifetime::kMicroBatch. Every buffer gets a place,
// and then the verifier refuses the program.
TEST(Slots, BodiesOfNoMicroBatchTakeNone) {
  Setting s;
  s.mesh[mesh::Axis::kPp] = 2;
  s.pipeline = pipeline_of(ScheduleKind::k1f1b, 1);
  s.global_batch = 4;
  s.sequence = 8;
  Program p = build_stages(tiny(), s)[0];
  const Slots before(p);
  int kept = -1;  // the buffer with the most slots
  for (int b = 0; b < static_cast<int>(p.buffers.size()); ++b)
    if (p.buffers[static_cast<std::size_t>(b)].lifetime == Lifetime::kMicroBatch &&
        (kept < 0 || before.count(b) > before.count(kept)))
      kept = b;
  ASSERT_GE(kept, 0);
  ASSERT_GT(before.count(kept), 1);
  const auto none =
      std::find_if(p.schedule.begin(), p.schedule.end(), [](const Instance& i) { return i.micro_batch < 0; });
  ASSERT_NE(none, p.schedule.end());
  p.schedule.insert(p.schedule.begin(), Instance(*none));
  std::size_t edited = 0;
  for (const Instance& i : p.schedule)
    if (i.micro_batch < 0) {
      p.bodies[static_cast<std::size_t>(i.body)].steps.front().operands.push_back({Arg::kResidual, kept});
      ++edited;
    }
  ASSERT_GT(edited, 0u);
  const Slots after(p);
  for (std::int64_t m = -1; m <= s.global_batch; ++m) EXPECT_EQ(after.place(kept, m), before.place(kept, m)) << m;
  EXPECT_EQ(after.count(kept), before.count(kept));
  EXPECT_EQ(after.place(kept, -1), after.place(kept, 0)) << "that of no micro-batch is the first";
}

}  // namespace
}  // namespace molen::program
