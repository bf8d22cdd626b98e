// For the tests of attention: kernels, dtypes, and operands of whole sequences.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "model/context.h"
#include "model/test_model.h"

namespace molen::model {

using Runs = std::vector<PositionRun>;

struct AttentionPath {
  const char* name;
  arch::Kernels kernels;
  DType compute;
  double roundoff;
};
inline const AttentionPath kAttentionOracle{"reference_fp64", arch::Kernels::kReference, DType::kF64, 0x1p-53};
inline const AttentionPath kAttentionPaths[] = {kAttentionOracle,
                                                {"reference_fp32", arch::Kernels::kReference, DType::kF32, 0x1p-24},
                                                {"fused_fp32", arch::Kernels::kFused, DType::kF32, 0x1p-24},
                                                {"aten_fp64", arch::Kernels::kAten, DType::kF64, 0x1p-53},
                                                {"aten_fp32", arch::Kernels::kAten, DType::kF32, 0x1p-24},
                                                {"aten_bf16", arch::Kernels::kAten, DType::kBF16, 0x1p-8},
                                                {"aten_fp16", arch::Kernels::kAten, DType::kF16, 0x1p-11}};

inline at::ScalarType wide_of(const AttentionPath& path) {
  return path.compute == DType::kF64 ? at::kDouble : at::kFloat;
}
inline bool narrow(const AttentionPath& path) {
  return path.compute == DType::kBF16 || path.compute == DType::kF16;
}
inline std::vector<double> doubles_of(const at::Tensor& t) {
  const at::Tensor wide = t.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

// Operands of whole sequences, rounded to the path's dtype.
struct AttentionOperands {
  AttentionOperands(const arch::Architecture& a, const AttentionPath& path, std::int64_t batch, std::int64_t sequence,
                    bool documents)
      : B(batch), S(sequence) {
    const at::ScalarType type = scalar_type(path.compute);
    qkv = random_normal({B * S, a.qkv_size()}, "context qkv", 1.0).to(type);
    d_o = random_normal({B * S, a.query_size()}, "context d_o", 1.0).to(type);
    if (!documents) return;
    starts = at::zeros({B * S}, at::kInt);
    for (std::int64_t b = 0, start = 0, left = 0; b < B; ++b, left = 0)
      for (std::int64_t i = 0; i < S; ++i, --left) {
        if (left == 0) start = i, left = 1 + (i * 7 + b * 5 + 3) % (S / 2);
        starts.data_ptr<std::int32_t>()[b * S + i] = static_cast<std::int32_t>(start);
      }
  }
  std::int64_t B, S;
  at::Tensor qkv, d_o, starts;
};

}  // namespace molen::model
