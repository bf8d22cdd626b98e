#include "prove/verify_layouts.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "launch/world.h"
#include "plan/memory_need.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

VerifyRow row(DType compute, double gradients, const std::string& failure = "") {
  VerifyRow r;
  r.compute = compute;
  r.bounds = {1, 1, 1, 1};
  r.difference.gradients = gradients;
  r.failure = failure;
  return r;
}

TEST(VerifyLayouts, VerdictCountsLayoutsAndNotRuns) {
  EXPECT_EQ(
      verdict({row(DType::kF64, 0.25), row(DType::kF64, 0.125), row(DType::kF32, 0.5), row(DType::kF32, 0)}, 2),
      "2 layouts in fp64 and fp32, 4 runs: 2 of them the same model; the largest difference is 0.5000 of its bound");
}

// The first of three layouts differs in one type, and the second differs in both.
TEST(VerifyLayouts, ALayoutThatDiffersInOneTypeDiffers) {
  const std::string said = verdict({row(DType::kF64, 0), row(DType::kF64, 2, "loss"), row(DType::kF64, 0),
                                    row(DType::kF32, 4, "loss"), row(DType::kF32, 2, "loss"), row(DType::kF32, 0)},
                                   3);
  EXPECT_EQ(said,
            "3 layouts in fp64 and fp32, 6 runs: 1 of them the same model; the largest difference is 4.0000 of "
            "its bound");
}

// Two ranks that share a sum round otherwise than one, so such a row that found no difference at all compared nothing.
// Stages compute the sums of one rank.
TEST(VerifyLayouts, ARowHasTheDifferenceThatItsLayoutMade) {
  const arch::Architecture model = suite::llama(false);
  program::Setting s;
  s.global_batch = 4, s.micro_batch = 2, s.sequence = 23;
  VerifyOptions options;
  options.compute = {DType::kF32};
  std::vector<VerifyRow> rows;
  launch::run_ranks(launch::launch_threads(2), [&](comm::Communicator& world) {
    const auto found = verify_layouts(model, s, plan::layouts_of(model, s, 2, {"NO_SHARD", "FULL_SHARD"}),
                                      synthetic_samples(s, model.vocabulary), options, world, {});
    if (world.rank() == 0) rows = found;
  });
  ASSERT_GE(rows.size(), 2u);
  for (const VerifyRow& row : rows) {
    if (row.layout.find("pp 2") == std::string::npos) {
      EXPECT_GT(row.difference.gradients, 0.0) << row.layout;
    }
    EXPECT_LE(row.ratio(), 1.0) << row.layout;
    EXPECT_EQ(row.failure, "");
  }
}

TEST(RequireMemory, TheLargestLayoutOfAProofIsNamed) {
  program::Setting s;
  s.global_batch = s.micro_batch = 4;
  s.sequence = 64;
  VerifyOptions options;
  options.compute = {DType::kF32, DType::kF64};
  const launch::Launch launch = launch::launch_threads(2);
  const auto refusal = [&](const arch::Architecture& model) {
    std::string text;
    const auto layouts = plan::layouts_of(model, s, 2, {"FULL_SHARD", "NO_SHARD"});
    try {
      launch::run_ranks(launch, [&](comm::Communicator& world) {
        require_memory_of_layouts(model, s, layouts, options, launch.machine, world);
      });
    } catch (const UsageError& error) {
      text = error.what();
    }
    return text;
  };
  EXPECT_EQ(refusal(arch::preset("llama-tiny")), "");
  arch::Architecture wide = arch::preset("gpt-1t");  // has 128 layers
  wide.layers = 8;
  const std::string text = refusal(wide);  // needs 2 TB per rank
  EXPECT_EQ(text.rfind("the layout NO_SHARD", 0), 0u) << text;
  EXPECT_NE(text.find(" in fp64, with the tensors to compare, needs "), std::string::npos) << text;
  // On one host all ranks share the tensors that only rank 0 keeps.
  const auto layouts = plan::layouts_of(wide, s, 2, {"NO_SHARD"});
  s = std::ranges::find(layouts, "NO_SHARD", &plan::Layout::name)->setting;
  s.compute = s.master = s.reduce = DType::kF64, s.kernels = arch::Kernels::kReference;
  const OutcomeBytes outcome = outcome_bytes(wide);
  const Bytes need = plan::memory_needs(wide, s).front().total() + outcome.making + Bytes(outcome.made.value / 2);
  EXPECT_NE(text.find(fmt::format("needs {} of", human(need))), std::string::npos) << human(need) << "\n" << text;
}

// The outcome keeps 2 tensors of each parameter in fp64.
TEST(RequireMemory, OutcomesAreCounted) {
  const arch::Architecture a = arch::preset("llama-tiny");
  const OutcomeBytes bytes = outcome_bytes(a);
  EXPECT_EQ(bytes.made.value, 16 * arch::num_parameters(a));
  EXPECT_GT(bytes.making.value, bytes.made.value + 18 * arch::num_parameters(a));
}

}  // namespace
}  // namespace molen::prove
