#include <gtest/gtest.h>

#include "program/build/build.h"
#include "program/schedule/schedule.h"
#include "program/values/costs.h"

namespace molen::program {
namespace {

// The matrix products of an op have its FLOPs, in every pass, chunk, piece and tile.
void expect_the_flops(const std::string& preset, Setting s) {
  s.global_batch = 8, s.sequence = 64, s.head_chunk = 24;
  for (const Program& p : build_stages(arch::preset(preset), s)) {
    int seen = 0;
    for (const Body& body : p.bodies)
      for (const Step& step : body.steps) {
        const auto products = products_of(p, step);
        if (!products) {
          const auto* c = std::get_if<Compute>(&step.op);
          EXPECT_TRUE(!c || step.hardware_flops.value == 0.0 || c->part == arch::Part::kAttention) << kind_of(step.op);
          continue;
        }
        ++seen;
        EXPECT_DOUBLE_EQ(products->count * products->forward.flops(), step.hardware_flops.value) << kind_of(step.op);
      }
    EXPECT_GT(seen, 4);
  }
}

TEST(Products, HaveTheFlopsOfTheirOps) {
  expect_the_flops("llama-tiny", {});
  Setting tensor;
  tensor.mesh[mesh::Axis::kTp] = 2;
  tensor.sequence_parallel = true, tensor.tensor_chunks = 3;
  expect_the_flops("llama-tiny", tensor);
  Setting halves;
  halves.mesh[mesh::Axis::kPp] = 2;
  halves.pipeline = pipeline_of(ScheduleKind::kZbH1, 1);
  halves.recompute = Recompute::full(2);
  expect_the_flops("llama-tiny", halves);
}

}  // namespace
}  // namespace molen::program
