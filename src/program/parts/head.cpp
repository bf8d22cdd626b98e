// The head of a chunk of C tokens, with the loss. It is one op, or two ops if tensor ranks share the vocabulary. The
// backward of the whole head is one op with its forward.
#include <algorithm>

#include "program/parts/part.h"

namespace molen::program::parts {
namespace {

MatrixProduct head_product(const Sizes& s) {
  return {s.C, s.V, s.d};
}

i64 head_moved(const Sizes& s, Pass pass) {
  const i64 forward = s.e * (s.C * s.d + s.V * s.d) + (4 + s.a) * s.C;
  return is_backward(pass) ? forward + s.e * s.C * s.d + 2 * s.g * s.V * s.d : forward;
}

i64 head_logits_moved(const Sizes& s, Pass) {
  return s.e * (s.C * s.d + s.V * s.d) + s.a * s.C * s.V + (4 + 2 * s.a) * s.C;
}

i64 head_loss_moved(const Sizes& s, Pass pass) {
  const i64 sums = (4 + s.a + 2 * s.a * s.ranks) * s.C;
  return is_backward(pass) ? sums + 2 * s.a * s.C * s.V + s.e * (2 * s.C * s.d + s.V * s.d) + 2 * s.g * s.V * s.d
                           : sums;
}

i64 logits_backward_aten(const Sizes& s) {
  constexpr i64 kLongProduct = 8192;  // the limit of math/gemm_narrow.h
  const AtenScratch aten{s};
  const i64 input =
      s.bf16 && s.V >= kLongProduct ? aligned(aten.own_product(s.d, s.V) + (s.C * s.d + 15) / 16 * 64) : 0;
  return std::max(input, aten.weight_gradient(s.d, s.V, s.C));
}

i64 head_aten(const Sizes& s, Pass pass) {
  const AtenScratch aten{s};
  const i64 gradient = is_backward(pass) ? logits_backward_aten(s) : 0;
  const i64 rows = s.bf16 ? s.threads : arch::widened_rows(s.C, s.V);
  if (s.rounds) return aten.narrow(s.C * s.V) + std::max(aten.wide(rows * s.V), gradient);
  // In fp64 the losses use ATen's own operators, for which this is a bound.
  return aten.wide(s.C * s.V) + (s.a == 8 ? aten.wide(s.C * s.V) + 8 * aten.wide(s.C) : 0);
}

i64 rounded_logits(const Sizes& s) {
  return s.rounds ? AtenScratch{s}.narrow(s.C * s.V) : 0;
}

i64 head_loss_aten(const Sizes& s, Pass pass) {
  return is_backward(pass) ? rounded_logits(s) + logits_backward_aten(s) : 0;
}

// The log of the sum and the scale of each row, and the labels, counted as rows of the rank's own table.
i64 head_loss_shared(const Sizes& s, Pass pass) {
  return is_backward(pass) ? 2 * aligned(s.a * s.C) + aligned(4 * s.C) : 0;
}

PartDeclaration whole_head() {
  const PartOperand y = reads(Arg::kX, Value::kNormed), labels = reads(Arg::kLabels, Value::kLabels),
                    losses = writes(Arg::kLosses, Value::kLosses);
  return {
      .part = arch::Part::kHead,
      .standing = Standing::kHead,
      .roles = {arch::Role::kHead},
      .tied = {arch::Role::kEmbedding},
      .sums = {kLossSum},
      .forward = {y, labels, parameters(), losses, step_sums()},
      .backward = {y, labels, parameters(), losses, step_sums(), writes(Arg::kDX, Value::kDNormed), gradient()},
      .forward_types = {takes(Arg::kX, {kReplicated}), takes(Arg::kLabels, {kInvariant}),
                        leaves(Arg::kLosses, kInvariant)},
      .backward_types = {takes(Arg::kX, {kReplicated}), takes(Arg::kLabels, {kInvariant}),
                         leaves(Arg::kLosses, kInvariant), leaves(Arg::kDX, kInvariant)},
      .whole_parameters = true,
      .product = head_product,
      .products = [](Pass pass) { return is_backward(pass) ? 3 : 1; },
      .moved = head_moved,
      .kernels = {fused([](const Sizes& s, Pass) { return aligned(4 * s.C * s.V); }), aten(head_aten),
                  reference([](const Sizes& s, Pass) { return aligned(s.e * s.C * s.V); })},
  };
}

PartDeclaration head_logits() {
  PartOperand sums = writes(Arg::kSums, Value::kHeadSums);
  sums.exchange = Exchange::kSideBySide;
  return {
      .part = arch::Part::kHeadLogits,
      .standing = Standing::kHead,
      .roles = {arch::Role::kHead},
      .tied = {arch::Role::kEmbedding},
      .forward = {reads(Arg::kX, Value::kNormed), reads(Arg::kLabels, Value::kLabels), parameters(),
                  writes(Arg::kLogits, Value::kLogits), sums},
      .forward_types = {takes(Arg::kX, {kReplicated}), takes(Arg::kLabels, {kInvariant}),
                        leaves(Arg::kLogits, kOfVocabulary), leaves(Arg::kSums, kVarying)},
      .product = head_product,
      .products = [](Pass) { return 1; },
      .moved = head_logits_moved,
      .kernels = {fused(), aten([](const Sizes& s, Pass) { return rounded_logits(s); }), reference()},
  };
}

PartDeclaration head_loss() {
  const PartOperand sums = reads(Arg::kSums, Value::kHeadSumsAll), labels = reads(Arg::kLabels, Value::kLabels),
                    losses = writes(Arg::kLosses, Value::kLosses);
  return {
      .part = arch::Part::kHeadLoss,
      .standing = Standing::kHead,
      .roles = {arch::Role::kHead},
      .tied = {arch::Role::kEmbedding},
      .sums = {kLossSum},
      .forward = {sums, labels, losses, step_sums()},
      .backward = {sums, labels, consumes(Arg::kLogits, Value::kLogits), reads(Arg::kX, Value::kNormed), parameters(),
                   losses, step_sums(), writes(Arg::kDX, Value::kDNormed), gradient()},
      .forward_types = {takes(Arg::kSums, {kReplicated}), takes(Arg::kLabels, {kInvariant}),
                        leaves(Arg::kLosses, kInvariant)},
      .backward_types = {takes(Arg::kSums, {kReplicated}), takes(Arg::kLabels, {kInvariant}),
                         takes(Arg::kLogits, {kOfVocabulary}), takes(Arg::kX, {kReplicated}),
                         leaves(Arg::kLosses, kInvariant), leaves(Arg::kDX, kPartial)},
      .product = head_product,
      .products = [](Pass pass) { return is_backward(pass) ? 2 : 0; },
      .moved = head_loss_moved,
      .kernels = {fused(), aten(head_loss_aten), reference()},
      .shared_scratch = head_loss_shared,
  };
}

}  // namespace

std::vector<PartDeclaration> heads() {
  return {whole_head(), head_logits(), head_loss()};
}

}  // namespace molen::program::parts
