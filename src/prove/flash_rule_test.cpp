// The simulator decides without libtorch which attention a device computes in tiles; the device's own choice must be
// the same.
#include <gtest/gtest.h>

#include "model/device_attention.h"
#include "program/build/build.h"
#include "prove/layouts_suite.h"
#include "sim/attended.h"

namespace molen::prove {
namespace {

TEST(FlashRule, OfTheSimulatorIsThatOfTheDevice) {
  int fits = 0, others = 0;
  for (const arch::Position position : {arch::Position::kRope, arch::Position::kLearned, arch::Position::kAlibi})
    for (const std::int64_t head_dim : {8, 20, 64, 256, 264})
      for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16})
        for (const bool masked : {false, true})
          for (const bool unfused : {false, true}) {
            arch::Architecture a = suite::llama(false);
            a.position = position, a.head_dim = head_dim;
            program::Setting s;
            s.micro_batch = s.global_batch = 2, s.sequence = 16, s.compute = compute, s.document_mask = masked;
            s.kernels = arch::Kernels::kAten;
            const arch::Kernels kernels = unfused ? arch::Kernels("unfused") : s.kernels;
            if (unfused) s.other_kernels.emplace(arch::Part::kAttention, kernels);
            const program::Program p = program::build(a, s);
            const at::Tensor starts = at::zeros({32}, at::kInt);
            math::Scratch scratch;
            const model::Context c{a,  {2, 16, 0, compute, 1, kernels}, scratch, true, {}, arch::Pass::kForward,
                                   {}, masked ? &starts : nullptr};
            const auto way = model::aten::attention_backend(c, true, exec::to_aten(compute));
            for (const program::Body& body : p.bodies)
              for (const program::Step& step : body.steps) {
                const auto* part = std::get_if<program::Compute>(&step.op);
                if (!part || part->part != arch::Part::kAttention) continue;
                const bool flash = sim::flash_on_device(p, step);
                EXPECT_EQ(flash, way.flash || way.documents)
                    << head_dim << " " << name_of(compute) << masked << unfused;
                ++(flash ? fits : others);
              }
          }
  EXPECT_GT(fits, 0);
  EXPECT_GT(others, 0);
}

}  // namespace
}  // namespace molen::prove
