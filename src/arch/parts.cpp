#include "arch/parts.h"

#include <algorithm>

#include "arch/parameters.h"
#include "base/error.h"

namespace molen::arch {

std::vector<Part> parts_in_order(const Architecture& arch, bool shared_head) {
  std::vector<Part> all;
  const auto add = [&](Parts parts) {
    for (const Part part : parts)
      if (std::find(all.begin(), all.end(), part) == all.end()) all.push_back(part);
  };
  add(parts_before(arch));
  for (std::int64_t l = 0; l < arch.layers; ++l) add(parts_of_layer(arch, l));
  add(parts_after(arch));
  add(parts_of_head(arch, shared_head));
  return all;
}

std::int64_t widened_rows(std::int64_t rows, std::int64_t columns) {
  return std::clamp<std::int64_t>(kWidenBlock / std::max<std::int64_t>(1, columns), 1, std::max<std::int64_t>(1, rows));
}

std::int64_t head_chunk(std::int64_t vocabulary, bool device) {
  constexpr std::int64_t kStep = 64;
  const std::int64_t logits = std::int64_t{1} << (device ? 28 : 25), most = device ? 2048 : 1024;
  return std::clamp(logits / std::max<std::int64_t>(1, vocabulary) / kStep * kStep, kStep, most);
}

std::string_view name_of(FlopsConvention convention) {
  return convention == FlopsConvention::kCausal ? "causal" : "palm";
}

std::string_view formula_of(FlopsConvention convention) {
  return convention == FlopsConvention::kCausal
             ? "6 N (matrices, no input embedding) + 6 L h D s, causal attention"
             : "6 N (all parameters that a token meets) + 12 L h D s, whole attention";
}

FlopsConvention flops_convention_from_name(std::string_view name) {
  for (const auto convention : {FlopsConvention::kCausal, FlopsConvention::kPalm})
    if (name == name_of(convention)) return convention;
  throw UsageError("'{}' is no way to count model FLOPs; causal and palm are", name);
}

namespace {

// Returns the summed other size (beside the hidden size) of the matrices of a layer's MLP or experts and of its router,
// counted once for each token of a sequence that uses them. With a capacity, experts count at most for the tokens that
// they take.
std::int64_t mlp_columns(const Architecture& arch, std::int64_t layer, std::int64_t sequence) {
  if (!arch.sparse(layer)) return sequence * (arch.up_size() + arch.ffn);
  const Experts& e = arch.sparse_experts();
  return most_rows_of_experts(e, {1, sequence}, 1) * (arch.expert_up_size() + e.ffn) +
         sequence * (e.count + arch.shared_up_size() + arch.shared_ffn());
}

}  // namespace

Flops model_flops(const Architecture& arch, std::int64_t tokens, std::int64_t sequence, FlopsConvention convention) {
  const auto n = static_cast<double>(tokens);
  const double attention =
      static_cast<double>(arch.layers) * static_cast<double>(arch.query_size()) * static_cast<double>(sequence);
  if (convention == FlopsConvention::kPalm)
    return Flops(n * (6.0 * static_cast<double>(num_active_parameters(arch)) + 12.0 * attention));
  // The summed columns of products with rows of the hidden size, over a sequence.
  std::int64_t columns = sequence * (arch.vocabulary + arch.layers * (arch.qkv_size() + arch.query_size()));
  for (std::int64_t l = 0; l < arch.layers; ++l) columns += mlp_columns(arch, l, sequence);
  const double matrices =
      static_cast<double>(columns) / static_cast<double>(sequence) * static_cast<double>(arch.hidden);
  return Flops(n * (6.0 * matrices + 6.0 * attention));
}

}  // namespace molen::arch
