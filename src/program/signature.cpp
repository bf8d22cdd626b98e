#include "program/signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/match.h"
#include "program/value_memory.h"

namespace molen::program {
namespace {

using arch::Part;

int unit_with(const Program& program, std::int64_t layer, Blocks block) {
  for (std::size_t u = 0; u < program.units.size(); ++u)
    if (program.units[u].has(layer, block)) return static_cast<int>(u);
  return -1;
}

bool has_norm_weights(const Program& program) {
  return program.arch.norm != arch::Norm::kLayerPlain;
}

// The residual stream and its gradient between the parts. A single rank has whole values. Tensor ranks leave partial
// sums; under sequence parallelism they keep rows, and gather all rows for a product.
struct Residuals {
  bool tensor, rows;
  explicit Residuals(const Setting& s) : tensor(s.tensor()), rows(s.sharded_rows()) {}
  Operand in(Value kept, Value all, std::int64_t l) const { return {rows ? all : kept, l}; }
  Operand out(Value kept, Value sum, std::int64_t l) const { return {tensor ? sum : kept, l}; }
  Operand x_in(std::int64_t l) const { return in(Value::kResidual, Value::kResidualRows, l); }
  Operand mid_in(std::int64_t l) const { return in(Value::kMid, Value::kMidRows, l); }
  Operand d_x_in(std::int64_t l) const { return in(Value::kDResidual, Value::kDResidualRows, l); }
  Operand d_mid_in(std::int64_t l) const { return in(Value::kDMid, Value::kDMidRows, l); }
  Operand x_out(std::int64_t l) const { return out(Value::kResidual, Value::kResidualSum, l); }
  Operand mid_out(std::int64_t l) const { return out(Value::kMid, Value::kMidSum, l); }
  Operand d_x_out(std::int64_t l) const { return out(Value::kDResidual, Value::kDResidualSum, l); }
  Operand d_mid_out(std::int64_t l) const { return out(Value::kDMid, Value::kDMidSum, l); }
};

using enum Arg;

Operand with(Arg arg, Access access, Operand o) {
  o.arg = arg;
  o.access = access;
  return o;
}
Operand reads(Arg arg, Operand o) {
  return with(arg, Access::kRead, o);
}
Operand consumes(Arg arg, Operand o) {
  return with(arg, Access::kConsume, o);
}
Operand writes(Arg arg, Operand o) {
  return with(arg, Access::kWrite, o);
}
Operand updates(Arg arg, Operand o) {
  return with(arg, Access::kUpdate, o);
}
// Overwrites it, or adds to it, as the step says.
Operand adds(Arg arg, Operand o) {
  o.may_add = true;
  return writes(arg, o);
}
// Makes `after` of `before`, in place.
Operand turns(Arg arg, const Operand& before, Operand after) {
  after.before = {before.value, before.layer, before.step};
  return updates(arg, after);
}

// Step c.chunk of the ring. A sum that is wider than the result is not finished in place: the last step rounds it.
Signature ring_forward(const Program& p, const Compute& c) {
  const std::int64_t l = c.layer, i = c.chunk;
  const auto part = [l](Value v, std::int64_t step) { return Operand{v, l, Range::kAll, step}; };
  const bool last = i + 1 == p.setting.context_ranks();
  const Operand y = last ? Operand{Value::kAttention, l} : part(Value::kAttentionPart, i);
  const Operand lse = last ? Operand{Value::kLse, l} : part(Value::kLsePart, i);
  Signature s{{reads(kQkv, {Value::kQkv, l})}};
  auto& operands = s.operands;
  if (i == 0) {
    operands.insert(operands.end(), {writes(kY, y), writes(kLse, lse)});
    return s;
  }
  operands.push_back(reads(kKeys, part(Value::kKeys, i)));
  const Operand so_far = part(Value::kAttentionPart, i - 1);
  if (last && wide_partial(p, Value::kAttentionPart))
    operands.insert(operands.end(), {consumes(kYSoFar, so_far), writes(kY, y)});
  else
    operands.push_back(turns(kY, so_far, y));
  operands.push_back(turns(kLse, part(Value::kLsePart, i - 1), lse));
  return s;
}
std::vector<Operand> of_attention_backward(std::int64_t l) {
  return {reads(kDY, {Value::kDAttention, l}), reads(kQkv, {Value::kQkv, l}), reads(kY, {Value::kAttention, l}),
          reads(kLse, {Value::kLse, l})};
}
Signature ring_backward(const Compute& c) {
  const std::int64_t l = c.layer, i = c.chunk;
  const auto part = [l](Value v, std::int64_t step) { return Operand{v, l, Range::kAll, step}; };
  Signature s{of_attention_backward(l)};
  auto& operands = s.operands;
  if (i == 0)
    operands.push_back(writes(kDQkv, part(Value::kDQuery, 0)));
  else
    operands.insert(operands.end(), {reads(kKeys, part(Value::kKeys, i)),
                                     turns(kDQkv, part(Value::kDQuery, i - 1), part(Value::kDQuery, i))});
  operands.push_back(writes(kDKeys, part(Value::kDKeys, i)));
  return s;
}
// The first step of keys also leaves the rank's own keys side by side. A step of gradients adds the received gradients
// to this rank's own for the same keys, which are used up, and passes the sum on. The last step brings the sum home,
// into q|k|v beside the gradients of the queries.
Signature shift(const Program& p, const Shift& o) {
  const std::int64_t l = o.layer, i = o.step;
  const auto part = [l](Value v, std::int64_t step) { return Operand{v, l, Range::kAll, step}; };
  if (o.moves == Moves::kKeys) {
    if (i == 1)
      return {
          {reads(kFrom, {Value::kQkv, l}), writes(kOwn, part(Value::kKeys, 0)), writes(kTo, part(Value::kKeys, 1))}};
    return {{reads(kFrom, part(Value::kKeys, i - 1)), writes(kTo, part(Value::kKeys, i))}};
  }
  const Operand came = part(Value::kDKeysIn, i);
  Signature s{{consumes(kFrom, part(Value::kDKeys, i - 1)),
               i > 1 ? turns(kTo, part(Value::kDKeysIn, i - 1), came) : writes(kTo, came)}};
  if (i < p.setting.context_ranks()) return s;
  const Operand queries = part(Value::kDQuery, i - 1), whole{Value::kDQkv, l};
  if (wide_partial(p, Value::kDQuery))
    s.operands.insert(s.operands.end(), {reads(kDQkvSoFar, queries), writes(kDQkv, whole)});
  else
    s.operands.push_back(turns(kDQkv, queries, whole));
  return s;
}

Signature forward(const Program& p, const Compute& c, int unit) {
  const Residuals stream(p.setting);
  const std::int64_t l = c.layer, last = p.arch.layers;
  const Operand param = reads(kParam, {Value::kParam, unit});
  const Operand losses = writes(kLosses, {Value::kLosses}), scalars = updates(kScalars, {Value::kScalars});
  switch (c.part) {
    case Part::kEmbed:
      return {{reads(kIds, {Value::kIds}), param, writes(kY, stream.x_out(0))}};
    case Part::kNormQkv:
      return {{reads(kX, stream.x_in(l)), param, writes(kY, {Value::kQkv, l}), writes(kStats, {Value::kStats1, l})}};
    case Part::kAttention: {
      if (c.chunk >= 0) return ring_forward(p, c);
      Signature s{{reads(kQkv, {Value::kQkv, l})}};
      if (p.setting.context() && !p.setting.ring()) s.operands.push_back(reads(kKeys, {Value::kKeysAll, l}));
      s.operands.insert(s.operands.end(), {writes(kY, {Value::kAttention, l}), writes(kLse, {Value::kLse, l})});
      return s;
    }
    case Part::kOutProjection:
      return {{reads(kX, {Value::kAttention, l}), reads(kResidual, {Value::kResidual, l}), param,
               writes(kY, stream.mid_out(l))}};
    case Part::kNormUp:
      return {{reads(kX, stream.mid_in(l)), param, writes(kY, {Value::kUp, l}), writes(kStats, {Value::kStats2, l})}};
    case Part::kActivation:
      return {{reads(kX, {Value::kUp, l}), writes(kY, {Value::kActivation, l})}};
    case Part::kDown:
      return {{reads(kX, {Value::kActivation, l}), reads(kResidual, {Value::kMid, l}), param,
               writes(kY, stream.x_out(l + 1))}};
    case Part::kFinalNorm: {
      Signature s{{reads(kX, stream.x_in(last))}};
      if (unit >= 0) s.operands.push_back(param);
      s.operands.insert(s.operands.end(), {writes(kY, {Value::kNormed}), writes(kStats, {Value::kStatsFinal})});
      return s;
    }
    case Part::kHead:
      return {{reads(kX, {Value::kNormed}), reads(kLabels, {Value::kLabels}), param, losses, scalars}};
    case Part::kHeadLogits:
      return {{reads(kX, {Value::kNormed}), reads(kLabels, {Value::kLabels}), param,
               writes(kLogits, {Value::kLogits, c.chunk}), writes(kSums, {Value::kHeadSums, c.chunk})}};
    case Part::kHeadLoss:
      return {{reads(kSums, {Value::kHeadSumsAll, c.chunk}), reads(kLabels, {Value::kLabels}), losses, scalars}};
  }
  throw Error("unknown part {}", static_cast<int>(c.part));
}

// The residual gradient to which a norm's backward adds its d_x: `so_far` in place, or from another buffer when halves
// of backwards still have to read it. Under sequence parallelism the reduction adds instead, to the rows that are kept.
void add_residual_gradient(const Program& p, Operand so_far, const Operand& result, Signature& s) {
  if (p.setting.sharded_rows())
    s.operands.push_back(writes(kDX, result));
  else if (p.setting.pipeline.halves)
    s.operands.insert(s.operands.end(), {reads(kDResidual, so_far), writes(kDX, result)});
  else
    s.operands.push_back(turns(kDX, so_far, result));
}

// The backward of a norm with the product behind it. `half`: the input's half of kNormQkv turns the gradient back to
// before RoPE, for the weights' half to read; the whole backward only uses it up.
Signature backward_norm(const Program& p, const Compute& c, int unit, bool half) {
  const Residuals stream(p.setting);
  const std::int64_t l = c.layer;
  const bool qkv = c.part == Part::kNormQkv;
  Signature s;
  if (!qkv)
    s = {{reads(kDY, {Value::kDUp, l}), reads(kX, stream.mid_in(l)), reads(kStats, {Value::kStats2, l})}};
  else if (half)
    s = {{reads(kX, stream.x_in(l)), reads(kStats, {Value::kStats1, l})}};
  else
    s = {{consumes(kDY, {Value::kDQkv, l}), reads(kX, stream.x_in(l)), reads(kStats, {Value::kStats1, l})}};
  s.operands.push_back(reads(kParam, {Value::kParam, unit}));
  if (qkv)
    add_residual_gradient(p, {Value::kDMid, l}, stream.d_x_out(l), s);
  else
    add_residual_gradient(p, {Value::kDResidual, l + 1}, stream.d_mid_out(l), s);
  if (!half || has_norm_weights(p)) s.operands.push_back(adds(kGrad, {Value::kGrad, unit}));
  if (qkv && half) s.operands.push_back(turns(kDProjected, {Value::kDQkv, l}, {Value::kDProjected, l}));
  return s;
}

Signature backward(const Program& p, const Compute& c, int unit) {
  const Residuals stream(p.setting);
  const std::int64_t l = c.layer, last = p.arch.layers;
  const Operand param = reads(kParam, {Value::kParam, unit}), grad = adds(kGrad, {Value::kGrad, unit});
  const Operand losses = writes(kLosses, {Value::kLosses}), scalars = updates(kScalars, {Value::kScalars});
  switch (c.part) {
    case Part::kEmbed:
      return {{reads(kIds, {Value::kIds}), reads(kDY, stream.d_x_in(0)), grad}};
    case Part::kNormQkv:
    case Part::kNormUp:
      return backward_norm(p, c, unit, false);
    case Part::kAttention: {
      if (c.chunk >= 0) return ring_backward(c);
      Signature s{of_attention_backward(l)};
      if (p.setting.context() && !p.setting.ring())
        s.operands.insert(s.operands.end(), {reads(kKeys, {Value::kKeysAll, l}), writes(kDQkv, {Value::kDQuery, l}),
                                             writes(kDKeys, {Value::kDKeysAll, l})});
      else
        s.operands.push_back(writes(kDQkv, {Value::kDQkv, l}));
      return s;
    }
    case Part::kOutProjection:
      return {{reads(kDY, stream.d_mid_in(l)), reads(kX, {Value::kAttention, l}), param,
               writes(kDX, {Value::kDAttention, l}), grad}};
    case Part::kActivation:
      return {{reads(kDY, {Value::kDActivation, l}), reads(kX, {Value::kUp, l}), writes(kDX, {Value::kDUp, l})}};
    case Part::kDown:
      return {{reads(kDY, stream.d_x_in(l + 1)), reads(kX, {Value::kActivation, l}), param,
               writes(kDX, {Value::kDActivation, l}), grad}};
    case Part::kFinalNorm: {
      Signature s{{reads(kDY, {Value::kDNormed}), reads(kX, stream.x_in(last)), reads(kStats, {Value::kStatsFinal})}};
      if (unit >= 0) s.operands.push_back(param);
      s.operands.push_back(writes(kDX, stream.d_x_out(last)));
      if (unit >= 0) s.operands.push_back(grad);
      return s;
    }
    case Part::kHead:
      return {{reads(kX, {Value::kNormed}), reads(kLabels, {Value::kLabels}), param, losses, scalars,
               writes(kDX, {Value::kDNormed}), grad}};
    case Part::kHeadLoss:
      return {{reads(kSums, {Value::kHeadSumsAll, c.chunk}), reads(kLabels, {Value::kLabels}),
               consumes(kLogits, {Value::kLogits, c.chunk}), reads(kX, {Value::kNormed}), param, losses, scalars,
               writes(kDX, {Value::kDNormed}), grad}};
    case Part::kHeadLogits:
      break;
  }
  throw Error("part {} has no backward", arch::name_of(c.part));
}

// The half of a backward that the part before waits for: the gradient of its input, and of norm weights.
Signature backward_input(const Program& p, const Compute& c, int unit) {
  const Residuals stream(p.setting);
  const std::int64_t l = c.layer;
  const Operand param = reads(kParam, {Value::kParam, unit});
  switch (c.part) {
    case Part::kOutProjection:
      return {{reads(kDY, stream.d_mid_in(l)), param, writes(kDX, {Value::kDAttention, l})}};
    case Part::kDown:
      return {{reads(kDY, stream.d_x_in(l + 1)), param, writes(kDX, {Value::kDActivation, l})}};
    case Part::kNormQkv:
    case Part::kNormUp:
      return backward_norm(p, c, unit, true);
    default:
      return backward(p, c, unit);
  }
}

// The half that makes the gradients of matrices, from activations and the gradients that the first half left.
Signature backward_weights(const Program& p, const Compute& c, int unit) {
  const Residuals stream(p.setting);
  const std::int64_t l = c.layer;
  const Operand param = reads(kParam, {Value::kParam, unit}), grad = adds(kGrad, {Value::kGrad, unit});
  switch (c.part) {
    case Part::kNormQkv:
      return {{reads(kDY, {Value::kDProjected, l}), reads(kX, stream.x_in(l)), reads(kStats, {Value::kStats1, l}),
               param, grad}};
    case Part::kOutProjection:
      return {{reads(kDY, stream.d_mid_in(l)), reads(kX, {Value::kAttention, l}), grad}};
    case Part::kNormUp:
      return {
          {reads(kDY, {Value::kDUp, l}), reads(kX, stream.mid_in(l)), reads(kStats, {Value::kStats2, l}), param, grad}};
    case Part::kDown:
      return {{reads(kDY, stream.d_x_in(l + 1)), reads(kX, {Value::kActivation, l}), grad}};
    default:
      throw Error("part {} has no weights' half of its backward", arch::name_of(c.part));
  }
}

Signature compute(const Program& p, const Compute& c, int unit) {
  switch (c.pass) {
    case ComputePass::kBackward:
      return backward(p, c, unit);
    case ComputePass::kInput:
      return backward_input(p, c, unit);
    case ComputePass::kWeights:
      return backward_weights(p, c, unit);
    default:
      return forward(p, c, unit);
  }
}

// The three states of a residual value that tensor ranks exchange.
struct Exchanged {
  Value kept, sum, rows;
};
Exchanged exchanged(Moves moves) {
  switch (moves) {
    case Moves::kResidual:
      return {Value::kResidual, Value::kResidualSum, Value::kResidualRows};
    case Moves::kMid:
      return {Value::kMid, Value::kMidSum, Value::kMidRows};
    case Moves::kDResidual:
      return {Value::kDResidual, Value::kDResidualSum, Value::kDResidualRows};
    case Moves::kDMid:
      return {Value::kDMid, Value::kDMidSum, Value::kDMidRows};
    default:
      break;
  }
  throw Error("tensor ranks exchange no {} so", name_of(moves));
}

// Returns the part of a unit's gradient or parameters that this rank updates, in the buffers of the device.
Operand owned(const Program& p, bool gradient, int unit) {
  const Setting& s = p.setting;
  if (gradient ? s.sharded_gradients() : s.sharded_parameters())
    return {gradient ? Value::kGradShard : Value::kParamShard, unit, s.own_over_dp ? Range::kOwn : Range::kAll};
  return {gradient ? Value::kGrad : Value::kParam, unit, s.owns_part() ? Range::kOwn : Range::kAll};
}

// Returns the message of a unit for the reduction over an axis or, when `summed`, this rank's part of the sums after
// it. Steps 0 and 1 are message and sums over the ranks that share a unit, 2 and 3 over the replicas.
Operand message(const Program& p, Axis over, bool summed, int unit) {
  const Setting& s = p.setting;
  const bool replicas = over == Axis::kReplicate;
  Range range = replicas ? Range::kShard : Range::kAll;
  if (summed && over == Axis::kShard) range = Range::kShard;
  if (summed && (replicas ? s.own_over_dp : over == Axis::kDp && s.owns_part())) range = Range::kOwn;
  return {Value::kGradMessage, unit, range, (replicas ? 2 : 0) + (summed ? 1 : 0)};
}

Signature moved(const Operand& from, const Operand& to) {
  return {{reads(kFrom, from), writes(kTo, to)}};
}

// A reduce-scatter or an all-gather of a unit: of one value, the part lies in the buffer of the whole.
Signature scattered(const Operand& from, const Operand& to) {
  Signature s{{consumes(kFrom, from), writes(kTo, to)}};
  if (from.value == to.value)
    s.operands.back().within = kFrom;
  else
    s.operands.back().may_add = true;
  return s;
}
Signature gathered(const Operand& from, const Operand& to) {
  Signature s = moved(from, to);
  if (from.value == to.value) s.operands.back().within = kFrom;
  return s;
}

Signature cast(const Program& p, const Cast& o, int unit) {
  const Setting& s = p.setting;
  const bool replicas = o.over == Axis::kReplicate;
  if (!o.back) {
    const Operand sum{replicas ? Value::kGradShard : Value::kGrad, unit};
    const bool leaves = s.sharded_gradients() && !replicas;  // the whole gradient of a micro-batch
    return {{leaves ? consumes(kFrom, sum) : reads(kFrom, sum), writes(kTo, message(p, o.over, false, unit))}};
  }
  const bool shard = replicas || o.over == Axis::kShard, own = replicas ? s.own_over_dp : !shard && s.owns_part();
  const Operand sum{shard ? Value::kGradShard : Value::kGrad, unit, own ? Range::kOwn : Range::kAll};
  return {{consumes(kFrom, message(p, o.over, true, unit)), adds(kTo, sum)}};
}

// Returns the signature on one piece of the rows; parameters, gradients and scalars have no pieces.
Signature piece_of(Signature s, std::int64_t chunk) {
  for (Operand& o : s.operands)
    if (!of_unit(o.value) && o.value != Value::kScalars) o.chunk = chunk;
  return s;
}

// The sums of the rows that this rank keeps. They join the residual gradient so far: that of the layer above joins the
// middle's, and the middle's joins the input's. The first of them, behind the final norm, joins none.
Signature scatter_rows(const Program& p, const ReduceScatter& o) {
  const Exchanged e = exchanged(o.moves);
  Signature s{{consumes(kFrom, {e.sum, o.layer})}};
  const Operand kept{e.kept, o.layer};
  const bool joins = o.moves == Moves::kDMid || (o.moves == Moves::kDResidual && o.layer < p.arch.layers);
  const Operand so_far =
      o.moves == Moves::kDMid ? Operand{Value::kDResidual, o.layer + 1} : Operand{Value::kDMid, o.layer};
  if (!joins)
    s.operands.push_back(writes(kTo, kept));
  else if (p.setting.pipeline.halves)
    s.operands.insert(s.operands.end(), {reads(kSoFar, so_far), writes(kTo, kept)});
  else
    s.operands.push_back(turns(kTo, so_far, kept));
  return piece_of(std::move(s), o.chunk);
}

// A reduce-scatter makes its sums in what it consumes.
Signature reduce_scatter(const Program& p, const ReduceScatter& o, int unit) {
  if (o.moves == Moves::kDKeys)
    return {
        {consumes(kFrom, {Value::kDKeysAll, o.layer}), turns(kTo, {Value::kDQuery, o.layer}, {Value::kDQkv, o.layer})}};
  if (o.moves != Moves::kUnit) return scatter_rows(p, o);
  if (p.setting.narrow_over(o.axis)) return scattered(message(p, o.axis, false, unit), message(p, o.axis, true, unit));
  if (!p.setting.sharded_gradients()) return scattered({Value::kGrad, unit}, {Value::kGrad, unit, Range::kOwn});
  if (o.axis == Axis::kReplicate) return scattered({Value::kGradShard, unit}, {Value::kGradShard, unit, Range::kOwn});
  return scattered({Value::kGrad, unit}, {Value::kGradShard, unit});
}

Signature all_reduce(const Program& p, const AllReduce& o, int unit) {
  if (o.moves != Moves::kUnit) {
    const Exchanged e = exchanged(o.moves);
    return {{turns(kTo, {e.sum, o.layer}, {e.kept, o.layer})}};
  }
  if (o.axis == Axis::kTp) return {{updates(kTo, {Value::kGrad, unit, Range::kReplicated})}};
  if (p.setting.narrow_over(o.axis))
    return {{turns(kTo, message(p, o.axis, false, unit), message(p, o.axis, true, unit))}};
  return {{updates(kTo, {p.setting.sharded_gradients() ? Value::kGradShard : Value::kGrad, unit})}};
}

// Gathers parameters: from the updated part to the shard, and from shards to the whole.
Signature all_gather(const Program& p, const AllGather& o, int unit) {
  if (o.moves == Moves::kHead) return moved({Value::kHeadSums, o.layer}, {Value::kHeadSumsAll, o.layer});
  if (o.moves == Moves::kKeys) return moved({Value::kQkv, o.layer}, {Value::kKeysAll, o.layer});
  if (o.moves != Moves::kUnit) {
    const Exchanged e = exchanged(o.moves);
    return piece_of(moved({e.kept, o.layer}, {e.rows, o.layer}), o.chunk);
  }
  const Setting& s = p.setting;
  if (s.sharded_parameters()) {
    if (o.axis == Axis::kReplicate)
      return gathered({Value::kParamShard, unit, Range::kOwn}, {Value::kParamShard, unit});
    return gathered({Value::kParamShard, unit}, {Value::kParam, unit});
  }
  if (o.axis == Axis::kReplicate)
    return gathered({Value::kParam, unit, Range::kOwn}, {Value::kParam, unit, Range::kShard});
  return gathered({Value::kParam, unit, s.own_over_dp ? Range::kShard : Range::kOwn}, {Value::kParam, unit});
}

// The parameters that an update leaves in the compute type.
Operand updated(const Program& p, int unit) {
  const Setting& s = p.setting;
  if (!s.offload.optimizer) return owned(p, false, unit);
  if (s.offload.parameters) return {Value::kParamHost, unit};
  return {s.master == s.compute ? Value::kMaster : Value::kParamHost, unit};
}

// A master weight is updated in the place of the parameter, which is a rounded copy of it.
Signature optimizer(const Program& p, int unit) {
  const Operand grad = p.setting.offload.optimizer ? Operand{Value::kGradHost, unit} : owned(p, true, unit);
  const Operand param = updated(p, unit);
  const bool master = p.setting.master != p.setting.compute;
  Signature s{{reads(kGrad, grad), reads(kScalars, {Value::kScalars}),
               master ? writes(kParam, param) : updates(kParam, param), updates(kMoment1, {Value::kMoment1, unit}),
               updates(kMoment2, {Value::kMoment2, unit})}};
  if (master) s.operands.push_back(updates(kMaster, {Value::kMaster, unit}));
  return s;
}

Signature copy_to_host(const Program& p, const CopyToHost& o, int unit) {
  if (o.moves != Moves::kUnit)
    return moved({kept_value(o.moves), o.layer}, {kept_value(o.moves), o.layer, Range::kAll, 0, true});
  const Operand grad = owned(p, true, unit);
  const bool leaves = p.setting.offload.gradients && grad.value == Value::kGrad;  // from where backward made it
  return {{leaves ? consumes(kFrom, grad) : reads(kFrom, grad), adds(kTo, {Value::kGradHost, unit})}};
}

// Copies a kept value, parameters for their use, or updated parameters.
Signature copy_to_device(const Program& p, const CopyToDevice& o, int unit) {
  if (o.moves != Moves::kUnit)
    return moved({kept_value(o.moves), o.layer, Range::kAll, 0, true}, {kept_value(o.moves), o.layer});
  if (!p.setting.offload.parameters) return moved(updated(p, unit), owned(p, false, unit));
  return moved({Value::kParamHost, unit}, {p.setting.sharded_parameters() ? Value::kParamShard : Value::kParam, unit});
}

}  // namespace

int unit_of_part(const Program& program, Part part, std::int64_t layer) {
  switch (part) {
    case Part::kEmbed:
      return program.find_unit("embed");
    case Part::kHead:
    case Part::kHeadLogits:
    case Part::kHeadLoss:
      return program.find_unit(program.arch.tied ? "embed" : "final");
    case Part::kFinalNorm:
      return has_norm_weights(program) ? program.find_unit("final") : -1;
    case Part::kAttention:
    case Part::kActivation:
      return -1;
    case Part::kNormQkv:
    case Part::kOutProjection:
      return unit_with(program, layer, Blocks::kAttention);
    case Part::kNormUp:
    case Part::kDown:
      return unit_with(program, layer, Blocks::kMlp);
  }
  throw Error("no such part");
}

namespace {

template <class O>
std::string accesses_text(const std::vector<O>& operands) {
  std::string text;
  for (const Access access : kAllAccesses) {
    std::vector<std::string_view> names;
    for (const O& o : operands)
      if (o.access == access) names.push_back(name_of(o.arg));
    if (!names.empty())
      text += fmt::format("{}{} {}", text.empty() ? "" : "; ", name_of(access), fmt::join(names, ", "));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

std::string text_of(const std::vector<Operand>& operands) {
  return accesses_text(operands);
}
std::string text_of(const std::vector<Use>& operands) {
  return accesses_text(operands);
}

Operand Operand::as_found() const {
  if (!before) return *this;
  Operand found = *this;
  found.value = before->value;
  found.layer = before->layer;
  found.step = before->step;
  return found;
}

const Operand& Signature::operand(Arg arg) const {
  const auto at = std::find_if(operands.begin(), operands.end(), [&](const Operand& o) { return o.arg == arg; });
  MOLEN_CHECK(at != operands.end(), "no operand '{}'", name_of(arg));
  return *at;
}

Signature signature(const Program& program, const Op& op, int unit) {
  const Operand scalars{Value::kScalars};
  return std::visit(
      Match{
          [&](const Compute& c) {
            Signature s = compute(program, c, unit_of_part(program, c.part, c.layer));
            if (c.part == Part::kAttention && program.setting.document_mask)
              s.operands.insert(s.operands.begin() + 1, reads(kDocuments, {Value::kDocuments}));
            return by_chunks(program.setting, c.part) ? piece_of(std::move(s), c.chunk) : s;
          },
          [&](const LoadBatch&) {
            Signature s{{writes(kIds, {Value::kIds}), writes(kLabels, {Value::kLabels}), updates(kScalars, scalars)}};
            if (program.setting.document_mask) s.operands.push_back(writes(kDocuments, {Value::kDocuments}));
            return s;
          },
          [&](const ZeroFill&) {
            return Signature{{writes(kTo, unit >= 0 ? Operand{Value::kGrad, unit} : scalars)}};
          },
          [&](const SumSquares&) {
            const bool host = program.setting.offload.gradients;
            return Signature{{reads(kGrad, host ? Operand{Value::kGradHost, unit} : owned(program, true, unit)),
                              updates(kScalars, scalars)}};
          },
          [&](const ClipScale&) { return Signature{{updates(kScalars, scalars)}}; },
          [&](const OptimizerStep&) { return optimizer(program, unit); },
          [&](const AllReduce& o) { return all_reduce(program, o, unit); },
          [&](const ReduceScatter& o) { return reduce_scatter(program, o, unit); },
          [&](const AllGather& o) { return all_gather(program, o, unit); },
          [&](const Send& o) {
            return Signature{{reads(kFrom, {exchanged(o.moves).kept, o.layer})}};
          },
          [&](const Receive& o) {
            return Signature{{writes(kTo, {exchanged(o.moves).kept, o.layer})}};
          },
          [&](const Shift& o) { return shift(program, o); },
          [&](const CopyToHost& o) { return copy_to_host(program, o, unit); },
          [&](const CopyToDevice& o) { return copy_to_device(program, o, unit); },
          [&](const Cast& o) { return cast(program, o, unit); },
          [&](const ReduceScalars&) { return Signature{{updates(kScalars, scalars)}}; },
          [&](const Agree&) { return Signature{{reads(kScalars, scalars)}}; },
      },
      op);
}

bool by_chunks(const Setting& setting, Part part) {
  return setting.chunked_rows() && arch::has_halves(part);
}

Value kept_value(Moves moves) {
  switch (moves) {
    case Moves::kResidual:
      return Value::kResidual;
    case Moves::kMid:
      return Value::kMid;
    case Moves::kQkv:
      return Value::kQkv;
    case Moves::kAttention:
      return Value::kAttention;
    case Moves::kUp:
      return Value::kUp;
    case Moves::kActivation:
      return Value::kActivation;
    default:
      break;
  }
  throw Error("no layer keeps {} for backward", name_of(moves));
}

Stream stream_of(const Program& program, const Op& op) {
  const Offload& offload = program.setting.offload;
  // The casts of messages run beside the reductions: backward waits for neither.
  if (is_communication(op) || std::holds_alternative<Cast>(op)) return Stream::kDpComm;
  if (std::holds_alternative<CopyToHost>(op)) return Stream::kToHost;
  if (std::holds_alternative<CopyToDevice>(op)) return Stream::kToDevice;
  // These two run where their gradients are. The step's sums, a few bytes, stay where they are.
  const bool host = (std::holds_alternative<OptimizerStep>(op) && offload.optimizer) ||
                    (std::holds_alternative<SumSquares>(op) && offload.gradients);
  return host ? Stream::kHost : Stream::kCompute;
}

int unit_of_step(const Program& program, const Step& step) {
  for (const Use& use : step.operands)
    if (const int unit = program.unit_of_buffer(use.buffer); unit >= 0) return unit;
  return -1;
}

}  // namespace molen::program
