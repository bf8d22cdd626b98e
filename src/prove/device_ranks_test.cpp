// Tests thread-ranks whose collectives move a device's memory. Whole layouts run through exec::DeviceMemory, which uses
// the host's arenas here, and must give the same bits as the host's own collectives.
#include <gtest/gtest.h>

#include "exec/device_memory.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

Outcome through_device(const std::vector<program::Program>& stages, int steps) {
  exec::DeviceMemory memory(at::kCPU);
  comm::ThreadOptions options;
  options.memory = &memory;
  return train_threads(stages, steps, {}, options);
}

Layout device_layout(int shards, int zero, int tensor, bool rows, int stages) {
  Layout l{shards, zero, false, 2};
  l.tensor = tensor;
  l.rows = rows;
  l.stages = stages;
  if (stages > 1) l.pipeline = program::pipeline_of(program::ScheduleKind::k1f1b, 1);
  return l;
}

TEST(DeviceRanks, LeaveTheBitsOfTheHost) {
  Layout gathered{1, 0, false, 2};
  gathered.context = 2;
  gathered.sequence = 24;
  Layout ring = gathered;
  ring.form = program::ContextForm::kRing;
  for (const Layout& l : {device_layout(2, 1, 1, false, 1), device_layout(2, 3, 2, true, 1),
                          device_layout(3, 2, 1, false, 1), device_layout(1, 0, 2, false, 2), gathered, ring})
    for (const DType compute : {DType::kF64, DType::kF32}) {
      SCOPED_TRACE(fmt::format("{} ranks, ZeRO-{}, tp {}", l.ranks(), l.zero, l.tensor));
      const auto stages = program::build_stages(llama(false), setting_of(l, compute));
      const Outcome host = train_threads(stages, 3), device = through_device(stages, 3);
      EXPECT_EQ(host.losses, device.losses);
      EXPECT_EQ(host.norms, device.norms);
      EXPECT_EQ(host.hash, device.hash);
    }
}

}  // namespace
}  // namespace molen::prove
