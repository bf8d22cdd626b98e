// Compares the cost of each part in each pass, for small models on each kind of kernel, with
// tests/golden/arch/costs.txt. Hand-worked figures (part_cost_test.cpp) and the real use of kernels (model/*_test.cpp)
// verify the figures themselves; this file shows which figures a change of a formula changes. MOLEN_UPDATE_GOLDEN=1
// rewrites it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "arch/context_parallel.h"
#include "arch/tensor_parallel.h"
#include "base/file.h"
#include "program/parts/context_attention.h"
#include "program/parts/part.h"

namespace molen::program {
namespace {

using arch::Architecture;
using arch::Kernels;
using arch::Part;
using arch::PartCost;
using arch::PartShape;
using arch::Pass;
using arch::Position;

struct Variant {
  const char* name;
  Kernels kernels;
  DType compute;
  int ranks;
};

// Returns a model whose sizes are pairwise different, so that a mix-up of two sizes shows.
Architecture small_model(const char* like, int kv_heads, Position position) {
  Architecture a = arch::preset(like);
  a.name = "custom", a.layers = 3, a.hidden = 136, a.ffn = 228, a.heads = 12, a.kv_heads = kv_heads, a.head_dim = 20;
  a.vocabulary = 1021, a.position = position;
  return a;
}

std::string row(std::string_view what, const PartCost& c) {
  return fmt::format(" {} {:.0f}/{}/{}", what, c.flops.value, c.moved.value, c.scratch.value);
}

// Returns whether the model lacks a part of an MLP because it has no experts, no shared experts or no dense MLP.
bool left_out(const Architecture& a, Part part) {
  if (part == Part::kLimit) return !a.experts;
  const auto has = [&](arch::Parts parts) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
  return (has(arch::kMlpBlock) || has(arch::kSharingBlock)) && !has(arch::parts_of_layer(a, 0));
}

std::string costs_of(const char* name, const Architecture& whole, const Variant& run) {
  std::string text = fmt::format("{}, {}: flops/moved/scratch\n", name, run.name);
  const Architecture a = arch::tensor_local(whole, run.ranks);
  PartShape shape;
  shape.batch = 3, shape.sequence = 80, shape.compute = run.compute, shape.threads = 2, shape.kernels = run.kernels;
  shape.tensor_ranks = run.ranks, shape.kv_copied = run.ranks > 1 && arch::kv_replicated(whole, run.ranks);
  for (const Part part : arch::kAllParts) {
    if (left_out(a, part)) continue;
    shape.chunk = of_head(part) ? 64 : 0;
    text += fmt::format("  {}:", name_of(part));
    for (const auto& [what, pass] :
         {std::pair{"forward", Pass::kForward}, std::pair{"backward", Pass::kBackward},
          std::pair{"input", Pass::kBackwardInput}, std::pair{"weights", Pass::kBackwardWeights}})
      text += row(what, part_cost(a, part, pass, shape));
    text += "\n";
  }
  if (run.ranks > 1) return text;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    PartShape share = shape;
    share.chunk = 0, share.sequence = arch::context_rows(80, 0, 3);
    text += pass == Pass::kForward ? "  context, forward:" : "  context, backward:";
    text += row("gathered", gathered_attention_cost(a, pass, share, 80, 3));
    for (int step = -1; step < 3; ++step)
      text += row(fmt::format("ring {}", step), ring_attention_cost(a, pass, share, 80, 3, step));
    text += "\n";
  }
  return text;
}

TEST(PartCost, OfEveryPartIsTheGoldenOne) {
  constexpr Variant kRuns[] = {{"reference fp32", Kernels::kReference, DType::kF32, 1},
                               {"reference fp64", Kernels::kReference, DType::kF64, 1},
                               {"fused fp32", Kernels::kFused, DType::kF32, 1},
                               {"aten fp32", Kernels::kAten, DType::kF32, 1},
                               {"aten bf16", Kernels::kAten, DType::kBF16, 1},
                               {"aten fp16", Kernels::kAten, DType::kF16, 1},
                               {"aten fp64", Kernels::kAten, DType::kF64, 1},
                               {"fused fp32, 4 tensor ranks", Kernels::kFused, DType::kF32, 4},
                               {"aten bf16, 4 tensor ranks", Kernels::kAten, DType::kBF16, 4}};
  std::string text;
  for (const Variant& run : kRuns) {
    text += costs_of("llama", small_model("llama-tiny", 3, Position::kRope), run);
    text += costs_of("gpt", small_model("gpt2", 12, Position::kLearned), run);
    Architecture all = small_model("llama-tiny", 3, Position::kRope);
    all.qk_norm = arch::QkNorm::kAll;
    if (run.ranks == 1) text += costs_of("llama with norms over all heads", all, run);
    Architecture sparse = small_model("llama-tiny", 3, Position::kRope);
    sparse.experts = arch::Experts{.count = 11, .per_token = 3, .ffn = 44};
    if (run.ranks == 1) text += costs_of("llama with experts", sparse, run);
    sparse.experts->shared = 2, sparse.experts->bias_rate = 0.001;
    if (run.ranks == 1) text += costs_of("llama with shared experts and biases of the router", sparse, run);
    text += costs_of("gpt with ALiBi", small_model("gpt2", 6, Position::kAlibi), run);
  }
  const std::filesystem::path golden = "tests/golden/arch/costs.txt";
  if (std::getenv("MOLEN_UPDATE_GOLDEN")) write_file_atomic(golden, text);
  EXPECT_EQ(text, read_file(golden));
}

}  // namespace
}  // namespace molen::program
