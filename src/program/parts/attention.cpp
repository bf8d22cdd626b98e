// Causal attention: o_NhD and lse_BhS from q|k|v.
#include <fmt/format.h>

#include <algorithm>

#include "program/ir/program.h"
#include "program/parts/context_attention.h"
#include "program/parts/part.h"
#include "program/values/operands.h"
#include "program/values/value_memory.h"

namespace molen::program::parts {
namespace {

// Two products of S x S x D per head, half of each below the diagonal.
Flops attention_flops(const Sizes& s, Pass pass) {
  return Flops(products_of(pass) * product(s.N * s.h, s.S, s.D));
}

i64 attention_moved(const Sizes& s, Pass pass) {
  const i64 lse = s.a * s.B * s.h * s.S, documents = s.documents ? 4 * s.N : 0,
            slopes = s.position == arch::Position::kAlibi ? 8 * s.h : 0;
  return s.e * s.N * (is_backward(pass) ? 2 * s.Q + 2 * s.q : s.Q + s.q) + lse + documents + slopes;
}

// The scratch of math/reference.h, whose accumulators have 8 bytes for fp32 and for fp64.
i64 attention_reference(const Sizes& s, Pass pass) {
  return aligned(8 * s.threads * (is_backward(pass) ? 2 * s.D : s.S + s.D));
}

// math/attention.h
i64 attention_fused(const Sizes& s, Pass pass) {
  const i64 w = (s.D + 15) / 16 * 16 + 16;
  return aligned(s.threads * 4 * (is_backward(pass) ? 96 * (2 * w + 290) + 646 * w : 288 * (2 * w + 162) + 256 * w));
}

// math/attention_narrow.h
i64 attention_narrow(const Sizes& s, Pass pass) {
  const auto width = [](i64 n) { return (n + 15) / 16 * 16 + 16; };
  const i64 w = width(s.D), a = width((s.D + 1) / 2);
  if (!is_backward(pass)) return aligned(s.threads * 4 * (416 * a + 352 * w + 4896));
  const i64 pieces = s.B * s.k, rounds = (pieces + s.threads - 1) / s.threads;
  const bool finely = 7 * pieces < 5 * rounds * s.threads && s.S > 128;
  return aligned(s.threads * 4 * (448 * a + 512 * w + 21696) +
                 (finely ? 0 : std::min(s.threads, pieces) * 4 * (s.h / s.k) * s.S * w));
}

// The scratch of model/attention.cpp: one head of q, k, v and the result, in backward also their gradients, and
// matrices of scores.
i64 attention_unfused(const Sizes& s, Pass pass) {
  const AtenScratch aten{s};
  const bool backward = is_backward(pass);
  return (backward ? 8 : 4) * aten.wide(s.S * s.D) + (backward ? 2 : 1) * aten.wide(s.S * s.S);
}

i64 attention_aten(const Sizes& s, Pass pass) {
  const AtenScratch aten{s};
  const bool backward = is_backward(pass);
  if (s.bf16 && !s.documents && s.D <= arch::kOwnAttentionMaxHead) return attention_narrow(s, pass);
  if (s.a == 4 && s.D <= arch::kOwnAttentionMaxHead)
    return (backward ? 2 : 1) * (aten.widened(s.N * s.Q) + aten.widened(s.N * s.q)) + attention_fused(s, pass);
  // ATen's own attention takes its results, tiles for each thread, and the mask of ALiBi, for which this is a bound.
  const i64 rows = std::min<i64>(s.S >= 768 ? 256 : s.S >= 192 ? 64 : 32, s.S), columns = std::min<i64>(512, s.S);
  const i64 mask = s.position == arch::Position::kAlibi ? 3 * aten.wide(s.h * s.S * s.S) + 4 * aten.wide(s.S * s.S) : 0;
  if (backward) return aten.wide(s.N * s.Q) + 128 + 2 * aten.wide(s.threads * rows * columns) + aten.wide(rows) + mask;
  return aten.wide(s.N * s.q) + aten.wide(s.N * s.h) + aten.wide(s.threads * (rows * columns + 2 * rows + rows * s.D)) +
         mask;
}

arch::PartCost attention_of_context(const arch::Architecture& arch, Pass pass, const arch::PartShape& shape,
                                    const ContextShare& share) {
  const Pass whole = is_backward(pass) ? Pass::kBackward : pass;
  if (share.ring) return ring_attention_cost(arch, whole, shape, share.sequence, share.ranks, share.step);
  return gathered_attention_cost(arch, whole, shape, share.sequence, share.ranks);
}

std::optional<std::string> wide_heads_refused(const KernelRequest& r) {
  if (!r.documents || r.cuda || r.head_dim <= arch::kOwnAttentionMaxHead) return std::nullopt;
  return fmt::format("heads of {} are more than the {} of attention in tiles within documents", r.head_dim,
                     arch::kOwnAttentionMaxHead);
}

// This implementation writes the scores out: on the host those of a head at once, on devices a limited number of them
// (model/device_attention.h), whose memory comes from the device's allocator.
Implementation unfused() {
  return {.name = arch::Kernels("unfused"),
          .scratch = attention_unfused,
          .in_this_part = [](const KernelRequest& r) -> std::optional<std::string> {
            if (r.context_ranks == 1) return std::nullopt;
            return "unfused attention needs whole sequences, which context ranks do not have";
          },
          .aten = true};
}

Implementation in_tiles(Implementation of) {
  of.flash = true;
  return of;
}

Operand in_step(const Compute& c, Value value, i64 step) {
  return {value, c.layer, Range::kAll, step};
}

// The last step finishes a sum in place, except for a sum that is wider than the result: it is rounded into another
// buffer.
std::vector<Operand> ring_forward(const Traits& t, const Compute& c) {
  const i64 l = c.layer, i = c.portion;
  const bool last = i + 1 == t.context_ranks();
  const Operand y = last ? Operand{Value::kAttention, l} : in_step(c, Value::kAttentionPart, i);
  const Operand lse = last ? Operand{Value::kLse, l} : in_step(c, Value::kLsePart, i);
  const Operand qkv = operand::reads(Arg::kQkv, {Value::kQkv, l});
  if (i == 0) return {qkv, operand::writes(Arg::kY, y), operand::writes(Arg::kLse, lse)};
  std::vector<Operand> operands{qkv, operand::reads(Arg::kKeys, in_step(c, Value::kKeys, i))};
  const Operand so_far = in_step(c, Value::kAttentionPart, i - 1);
  if (last && wide_partial(t, Value::kAttentionPart))
    operands.insert(operands.end(), {operand::consumes(Arg::kYSoFar, so_far), operand::writes(Arg::kY, y)});
  else
    operands.push_back(operand::turns(Arg::kY, so_far, y));
  operands.push_back(operand::turns(Arg::kLse, in_step(c, Value::kLsePart, i - 1), lse));
  return operands;
}

std::vector<Operand> ring_backward(const Compute& c) {
  const i64 l = c.layer, i = c.portion;
  std::vector<Operand> operands{
      operand::reads(Arg::kDY, {Value::kDAttention, l}), operand::reads(Arg::kQkv, {Value::kQkv, l}),
      operand::reads(Arg::kY, {Value::kAttention, l}), operand::reads(Arg::kLse, {Value::kLse, l})};
  const Operand d_query = in_step(c, Value::kDQuery, i);
  if (i == 0)
    operands.push_back(operand::writes(Arg::kDQkv, d_query));
  else
    operands.insert(operands.end(), {operand::reads(Arg::kKeys, in_step(c, Value::kKeys, i)),
                                     operand::turns(Arg::kDQkv, in_step(c, Value::kDQuery, i - 1), d_query)});
  operands.push_back(operand::writes(Arg::kDKeys, in_step(c, Value::kDKeys, i)));
  return operands;
}

std::vector<Operand> attention_step(const Program& p, const Traits& t, const Compute& c) {
  std::vector<Operand> operands = arch::is_backward(c.pass) ? ring_backward(c) : ring_forward(t, c);
  if (p.arch.position == arch::Position::kAlibi)
    operands.insert(operands.begin() + 1, operand::reads(Arg::kSlopes, {Value::kSlopes}));
  if (t.documents) operands.insert(operands.begin() + 1, operand::reads(Arg::kDocuments, {Value::kDocuments}));
  return operands;
}

// The types of attention over all heads of a rank. If context ranks share a sequence, the rows of a rank need the keys
// of all these ranks. The keys are either gathered (replicated), or each step of a ring has the keys of another rank;
// the sums are then pending until the last step. An op without keys of other ranks needs whole sequences.
std::vector<OperandRule> attention_types(const Compute& c, int context_ranks, bool keys) {
  const bool ring = c.portion >= 0, whole = !ring || c.portion + 1 == context_ranks;
  const auto partial = [](Arg arg, AxisType left) {
    return over_context(retypes(arg, kOfHeads, kOfHeads), kPartial, left);
  };
  OperandRule qkv = takes(Arg::kQkv, {kOfHeads});
  if (!ring && !keys) qkv.context = kReplicated;
  std::vector<OperandRule> rules{
      qkv, takes(Arg::kDocuments, {kInvariant}),
      over_context(takes(Arg::kKeys, {kOfHeads}), ring ? kVarying : kReplicated, ring ? kVarying : kReplicated)};
  if (arch::is_backward(c.pass))
    rules.insert(rules.end(), {takes(Arg::kDY, {kOfHeads}), takes(Arg::kY, {kOfHeads}), takes(Arg::kLse, {kOfHeads}),
                               partial(Arg::kDQkv, kPartial), partial(Arg::kDKeys, kPartial)});
  else
    rules.insert(rules.end(), {partial(Arg::kY, whole ? kOfTokens : kPartial),
                               partial(Arg::kLse, whole ? kOfTokens : kPartial), partial(Arg::kYSoFar, kPartial)});
  return rules;
}

}  // namespace

std::vector<PartDeclaration> attention() {
  const PartOperand qkv = reads(Arg::kQkv, Value::kQkv),
                    documents = only(When::kDocuments, reads(Arg::kDocuments, Value::kDocuments)),
                    slopes = only(When::kAlibi, reads(Arg::kSlopes, Value::kSlopes)),
                    keys = only(When::kKeysGathered, reads(Arg::kKeys, Value::kKeysAll));
  return {{
      .part = arch::Part::kAttention,
      .standing = Standing::kAttentionBlock,
      .forward = {qkv, documents, slopes, keys, writes(Arg::kY, Value::kAttention), writes(Arg::kLse, Value::kLse)},
      .backward = {reads(Arg::kDY, Value::kDAttention), documents, slopes, qkv, reads(Arg::kY, Value::kAttention),
                   reads(Arg::kLse, Value::kLse), keys, only(When::kKeysGathered, writes(Arg::kDQkv, Value::kDQuery)),
                   only(When::kKeysGathered, writes(Arg::kDKeys, Value::kDKeysAll)),
                   only(When::kKeysHere, writes(Arg::kDQkv, Value::kDQkv))},
      .ring_step = attention_step,
      .context_types = attention_types,
      .own_flops = attention_flops,
      .moved = attention_moved,
      .kernels = {in_tiles(fused(attention_fused, wide_heads_refused)),
                  in_tiles(aten(attention_aten, wide_heads_refused)), unfused(), reference(attention_reference)},
      .context_cost = attention_of_context,
  }};
}

}  // namespace molen::program::parts
