// The unit of compute: a part of a layer that contains no collective. This file lists the parts. All else about
// a part is in its declaration (program/parts/part.h). The costs of a part are functions of sizes alone, so planner and
// simulator need no tensors, and tests compare the executor's kernels with these costs.
//
// Letters: B sequences of a micro-batch, S positions, N = B*S tokens, d hidden, h query heads, k KV heads, D head size,
// f FFN, V vocabulary, C tokens of one head chunk.
//
//   part           reads                       writes                     saved for backward
//   kEmbed         ids_N                       x_Nd                       ids_N
//   kNormQkv       x_Nd                        qkv_N(h+2k)D               x_Nd, rstd_N [mean_N: LayerNorm]
//   kQkNorm        qkv                         qkv normalised (elsewhere) qkv (models with norms of q and k only)
//   kRotate        qkv, cos and sin_SD/2       qkv turned, in place       nothing (models with RoPE only)
//   kAttention     qkv                         o_NhD, lse_BhS (fp32+)     qkv, o, lse
//   kOutProjection o_NhD, x_Nd                 mid_Nd = x + o Wo^T        o
//   kNormUp        mid_Nd                      up_N(2f|f)  (gate|up)      mid_Nd, rstd_N [mean_N]
//   kActivation    up                          a_Nf                       up
//   kDown          a_Nf, mid_Nd                y_Nd = mid + a Wd^T        a
//   Instead of the last three, a sparse layer (E experts, t of them for each token, w the width of one, M rows: one for
//   each of N*t slots that no capacity drops) has:
//   kRoute         mid_Nd, labels_N            y_Nd = norm(mid), scores   mid_Nd, rstd_N [mean_N], scores, lse, choice,
//                                              of experts, choice, weight  sums of each sequence
//   kSharedUp      y_Nd                        shared_up_N(2u|u)          y_Nd         (u: width of the shared experts,
//   kSharedActivation shared_up                shared_a_Nu                shared_up     in models that have them)
//   kSharedDown    shared_a_Nu, mid_Nd         s_Nd = mid + a Ws^T        shared_a_Nu
//   kLimit         labels_N, numbers of        choice_Nt, in place        nothing       (if context ranks share the
//                  choices of all ranks                                                 sequences of a capacity)
//   kDispatch      y_Nd, choice_Nt             y in expert order: in_Md   place_Nt
//   kExpertUp      in_Md                       up_M(2w|w)                 in_Md, offsets_E+1
//   kExpertActivation up                       a_Mw                       up
//   kExpertDown    a_Mw                        out_Md                     a, offsets
//   kCombine       out_Md, weight_Nt, mid_Nd   y_Nd = mid + sum weight out out_Md, weight, place
//                  with shared experts, s instead of mid
//   kBalance       sums of each sequence       adds the balance loss      -                (in training alone)
//   kFinalNorm     x_Nd                        y_Nd                       x_Nd, rstd_N [mean_N]
//   kHead          y_Cd, labels_C              loss sum, d_y_Cd, d_W +=   nothing: loss and gradient in one op a chunk
//   kHeadLogits, kHeadLoss: the head as two parts if tensor ranks share the vocabulary, with v rows on this rank:
//   kHeadLogits    y_Cd, labels_C              logits_Cv, sums_C2         logits_Cv
//   kHeadLoss      sums of all ranks, labels   loss sum, d_y_Cd, d_W +=   nothing
//
// Backward runs the parts in reverse on one residual gradient d_x_Nd, which each part reads and adds to in place:
//   kDown          d_x, a          -> d_a ; d_Wd
//   kActivation    d_a, up         -> d_up
//   kNormUp        d_up, mid, rstd -> d_x += ; d_W, d_norm      (the norm's output is computed again, not saved)
//   kCombine       d_x, out, weight-> d_out, d_weight
//   kExpertDown    d_out, a        -> d_a ; d_Wd
//   kExpertActivation d_a, up      -> d_up
//   kExpertUp      d_up, in        -> d_in ; d_W
//   kDispatch      d_in            -> d_y
//   kSharedDown    d_x, shared_a   -> d_shared_a ; d_Ws
//   kSharedActivation d_shared_a, shared_up -> d_shared_up
//   kSharedUp      d_shared_up, y  -> d_y += ; d_W
//   kRoute         d_y, d_weight, mid, rstd, ... -> d_x += ; d_router, d_norm      (with the losses of the router)
//   kOutProjection d_x, o          -> d_o ; d_Wo
//   kAttention     d_o, qkv, o, lse-> d_qkv
//   kRotate        d_qkv           -> d_qkv before RoPE, in place
//   kQkNorm        d_qkv, qkv      -> d_qkv before the norms, in place ; d_norms
//   kNormQkv       d_qkv, x, rstd  -> d_x += ; d_W, d_norm
//   kEmbed         d_x, ids        -> d_table
//
// Zero-bubble schedules (arXiv 2401.10241) split the backward of parts with matrices into two halves: first the
// gradient of the input, for which the previous stage waits, and later the gradient of the weights.
//   part           kBackwardInput                               kBackwardWeights
//   kDown          d_x -> d_a                                   d_x, a -> d_Wd
//   kNormUp        d_up, mid, rstd -> d_x += ; d_norm           d_up, mid, rstd -> d_W
//   kOutProjection d_x -> d_o                                   d_x, o -> d_Wo
//   kNormQkv       d_qkv, x, rstd -> d_x += ; d_norm            d_qkv, x, rstd -> d_W
// Both halves read the same d_x. Each half computes again the values of the norm that it needs. All other parts run
// entirely in the first half and do nothing in the second.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "arch/architecture.h"
#include "base/dtype.h"
#include "base/units.h"

namespace molen::arch {

enum class Part {
  kEmbed,
  kNormQkv,
  kQkNorm,
  kRotate,
  kAttention,
  kOutProjection,
  kNormUp,
  kActivation,
  kDown,
  kRoute,
  kLimit,
  kBalance,
  kSharedUp,
  kSharedActivation,
  kSharedDown,
  kDispatch,
  kExpertUp,
  kExpertActivation,
  kExpertDown,
  kCombine,
  kFinalNorm,
  kHead,
  kHeadLogits,
  kHeadLoss
};
struct PartName {
  Part part;
  std::string_view name;  // the name in the text form and in messages
};
inline constexpr std::array kPartNames{
    PartName{Part::kEmbed, "embed"},
    PartName{Part::kNormQkv, "norm_qkv"},
    PartName{Part::kQkNorm, "qk_norm"},
    PartName{Part::kRotate, "rotate"},
    PartName{Part::kAttention, "attention"},
    PartName{Part::kOutProjection, "out_projection"},
    PartName{Part::kNormUp, "norm_up"},
    PartName{Part::kActivation, "activation"},
    PartName{Part::kDown, "down"},
    PartName{Part::kRoute, "route"},
    PartName{Part::kLimit, "limit"},
    PartName{Part::kBalance, "balance"},
    PartName{Part::kSharedUp, "shared_up"},
    PartName{Part::kSharedActivation, "shared_act"},
    PartName{Part::kSharedDown, "shared_down"},
    PartName{Part::kDispatch, "dispatch"},
    PartName{Part::kExpertUp, "expert_up"},
    PartName{Part::kExpertActivation, "expert_activation"},
    PartName{Part::kExpertDown, "expert_down"},
    PartName{Part::kCombine, "combine"},
    PartName{Part::kFinalNorm, "final_norm"},
    PartName{Part::kHead, "head"},
    PartName{Part::kHeadLogits, "head_logits"},
    PartName{Part::kHeadLoss, "head_loss"},
};
static_assert([] {
  for (std::size_t i = 0; i < kPartNames.size(); ++i)
    if (kPartNames[i].part != static_cast<Part>(i)) return false;
  return kPartNames.back().part == Part::kHeadLoss;
}());
inline constexpr auto kAllParts = [] {
  std::array<Part, kPartNames.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = kPartNames[i].part;
  return all;
}();
constexpr std::string_view name_of(Part part) {
  return kPartNames.at(static_cast<std::size_t>(part)).name;
}

// A model is given by lists of parts: the parts before the layers, the parts of each layer in the order of their
// forwards, the parts between the layers and the head, and the parts of the head, each of which runs once for every
// chunk of the tokens. All code that iterates over the parts of a model uses these lists, so layers may differ.
using Parts = std::span<const Part>;
inline constexpr std::array kBefore{Part::kEmbed};
// A layer is a block of attention, followed by an MLP or experts.
template <std::size_t N, std::size_t M>
constexpr std::array<Part, N + M> joined(const std::array<Part, N>& block, const std::array<Part, M>& behind) {
  std::array<Part, N + M> all{};
  for (std::size_t i = 0; i < N; ++i) all[i] = block[i];
  for (std::size_t i = 0; i < M; ++i) all[N + i] = behind[i];
  return all;
}
inline constexpr std::array kMlpBlock{Part::kNormUp, Part::kActivation, Part::kDown};
// The context ranks of a model with a capacity insert kLimit after kRoute (program/build/passes_context.cpp). The
// balance loss comes last, so that the sum over context ranks for which it waits runs at the same time as the
// experts.
inline constexpr std::array kExpertsBlock{Part::kRoute,      Part::kDispatch, Part::kExpertUp, Part::kExpertActivation,
                                          Part::kExpertDown, Part::kCombine,  Part::kBalance};
inline constexpr std::array kSharingBlock{Part::kRoute,    Part::kSharedUp, Part::kSharedActivation, Part::kSharedDown,
                                          Part::kDispatch, Part::kExpertUp, Part::kExpertActivation, Part::kExpertDown,
                                          Part::kCombine,  Part::kBalance};
inline constexpr std::array kAttentionBlock{Part::kNormQkv, Part::kAttention, Part::kOutProjection};
inline constexpr std::array kRotatedBlock{Part::kNormQkv, Part::kRotate, Part::kAttention, Part::kOutProjection};
inline constexpr std::array kNormedBlock{Part::kNormQkv, Part::kQkNorm, Part::kAttention, Part::kOutProjection};
inline constexpr std::array kNormedRotatedBlock{Part::kNormQkv, Part::kQkNorm, Part::kRotate, Part::kAttention,
                                                Part::kOutProjection};
template <const auto& block>
inline constexpr auto kDenseLayer = joined(block, kMlpBlock);
template <const auto& block>
inline constexpr auto kSparseLayer = joined(block, kExpertsBlock);
template <const auto& block>
inline constexpr auto kSharingLayer = joined(block, kSharingBlock);
inline constexpr std::array kAfter{Part::kFinalNorm};
inline constexpr std::array kOfHead{Part::kHead};
inline constexpr std::array kOfSharedHead{Part::kHeadLogits, Part::kHeadLoss};
inline Parts parts_before(const Architecture&) {
  return kBefore;
}
template <const auto& block>
Parts layer_with(const Architecture& arch, std::int64_t layer) {
  if (!arch.sparse(layer)) return kDenseLayer<block>;
  return arch.shares_experts() ? Parts(kSharingLayer<block>) : Parts(kSparseLayer<block>);
}
inline Parts parts_of_layer(const Architecture& arch, std::int64_t layer) {
  const bool rotated = arch.position == Position::kRope;
  if (arch.norms_qk())
    return rotated ? layer_with<kNormedRotatedBlock>(arch, layer) : layer_with<kNormedBlock>(arch, layer);
  return rotated ? layer_with<kRotatedBlock>(arch, layer) : layer_with<kAttentionBlock>(arch, layer);
}
inline Parts parts_after(const Architecture&) {
  return kAfter;
}
// `shared`: tensor ranks share the rows of the vocabulary.
inline Parts parts_of_head(const Architecture&, bool shared) {
  return shared ? Parts(kOfSharedHead) : Parts(kOfHead);
}
// Returns the kinds of parts that one rank runs, each once, in the order of their first forwards.
std::vector<Part> parts_in_order(const Architecture& arch, bool shared_head = false);

// A pass of a part, or an action of a pipeline. A backward may run in two halves. kBackwardInput makes the gradient
// that the previous part waits for, and the gradients of norm weights. kBackwardWeights makes the gradients of matrices
// and their biases. kRecompute runs a forward again.
enum class Pass { kForward, kBackward, kBackwardInput, kBackwardWeights, kRecompute };
inline constexpr std::array kAllPasses{Pass::kForward, Pass::kBackward, Pass::kBackwardInput, Pass::kBackwardWeights,
                                       Pass::kRecompute};
// Whether the pass makes gradients.
constexpr bool is_backward(Pass pass) {
  return pass == Pass::kBackward || pass == Pass::kBackwardInput || pass == Pass::kBackwardWeights;
}

// The name of an implementation of a part. Each part lists the implementations that it has (program/parts/part.h);
// their scratch differs, their results do not (within rounding).
class Kernels {
 public:
  constexpr explicit Kernels(std::string_view literal) : name_(literal) {}
  constexpr std::string_view name() const { return name_; }
  friend constexpr bool operator==(Kernels, Kernels) = default;

  static const Kernels kReference;  // plain templates over the element type, without ATen
  static const Kernels kFused;      // this CPU's fast path
  static const Kernels kAten;       // device-generic ATen operators: CUDA, and 16-bit types on the CPU

 private:
  std::string_view name_;
};
constexpr std::string_view name_of(Kernels kernels) {
  return kernels.name();
}
inline constexpr Kernels Kernels::kReference{"reference"};
inline constexpr Kernels Kernels::kFused{"fused"};
inline constexpr Kernels Kernels::kAten{"aten"};
// The names of the implementations that every part has. A setting asks for one of them for the whole model.
inline constexpr std::array kAllKernels{Kernels::kReference, Kernels::kFused, Kernels::kAten};

// The sizes of one op of a part.
struct PartShape {
  std::int64_t batch = 1;     // B
  std::int64_t sequence = 1;  // S
  std::int64_t chunk = 0;     // C, for the head only: tokens of this chunk
  DType compute = DType::kF32;
  int threads = 1;
  Kernels kernels = Kernels::kFused;
  int tensor_ranks = 1;       // the architecture holds the local sizes of one of these ranks (arch/tensor_parallel.h)
  bool rows_sharded = false;  // each tensor rank keeps a part of the rows of the residual stream
  bool kv_copied = false;     // key and value weights are assembled for each use
  bool documents = false;     // attention stays within documents, which has its own kernels
  int expert_ranks = 1;       // ranks that share the experts of each layer
  // For a part of the experts: which of `expert_tiles` tiles the op computes; -1: all experts of the rank.
  std::int64_t expert_tile = -1, expert_tiles = 1;
  int context_ranks = 1;  // ranks that share each sequence, of which each has `sequence` tokens
  std::int64_t tokens() const { return batch * sequence; }
  Sequences sequences() const { return {batch, sequence, context_ranks}; }
};

struct PartCost {
  Flops flops;  // multiply and add count as two; attention counts the causal half only
  Bytes moved;  // bytes read and written if every operand crosses memory once
  // Bytes that the kernel takes from the op's scratch on a CPU. The number is exact, except for kAten's attention and
  // head in fp64, for which it is a bound.
  Bytes scratch;
};
// Returns the bytes that math::Scratch takes for `bytes`: whole lines of 64 bytes.
constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Bytes for each op of kAten: scalars that ATen wraps into tensors (math/allocation.h).
inline constexpr std::int64_t kAtenScalars = 1024;
// Number of 16-bit values that ATen's parts widen at once on the host: 1 MiB of fp32.
inline constexpr std::int64_t kWidenBlock = std::int64_t{1} << 18;
// Returns the number of rows of `columns` values that are widened at once.
std::int64_t widened_rows(std::int64_t rows, std::int64_t columns);
// The widest head of our own attention (math/attention.h).
inline constexpr std::int64_t kOwnAttentionMaxHead = 256;

// Returns the tokens of one head chunk, a choice of the program builder: at most 2^25 logits (128 MiB in fp32), 64 to
// 1024 tokens in steps of 64. Short and wide products are slower: the head of 2048 tokens x 512 x 32000 takes 0.60 s on
// two AVX-512 cores in chunks of 256 and 0.54 s in chunks of 1024. On a device, which has no cache to spare for logits,
// at most 2^28 logits and 2048 tokens: each chunk reads and writes the whole fp32 gradient of the table once.
std::int64_t head_chunk(std::int64_t vocabulary, bool device = false);

// The convention for the model FLOPs of one optimizer step over `tokens` tokens in sequences of S. kCausal: forward +
// backward with causal attention at half (Megatron-LM since 2025). kPalm: 6N + 12LhDS for each token (PaLM, appendix B
// of arXiv 2204.02311).
enum class FlopsConvention { kCausal, kPalm };
std::string_view name_of(FlopsConvention convention);               // "causal", "palm": the words of --mfu and of logs
std::string_view formula_of(FlopsConvention convention);            // FLOPs per token, for people
FlopsConvention flops_convention_from_name(std::string_view name);  // throws UsageError
Flops model_flops(const Architecture& arch, std::int64_t tokens, std::int64_t sequence, FlopsConvention convention);

}  // namespace molen::arch
