#include "program/signature.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/match.h"

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

Operand as(Arg arg, Operand o) {
  o.arg = arg;
  return o;
}

Operand consumed(Operand o) {
  o.consumed = true;
  return o;
}

// The signature of the ring's step c.chunk.
Signature ring_forward(const Program& p, const Compute& c) {
  const std::int64_t l = c.layer, i = c.chunk;
  const auto at = [l](Value v, std::int64_t step) { return Operand{v, l, Range::kAll, step}; };
  Signature s{{as(kQkv, {Value::kQkv, l})}, {as(kY, at(Value::kAttentionPart, i)), as(kLse, at(Value::kLsePart, i))}};
  // The last step finishes in the buffer of the partial output, even when that is wider than the result.
  if (i > 0)
    s.reads.insert(s.reads.end(),
                   {as(kKeys, at(Value::kKeys, i)), as(kYSoFar, consumed(at(Value::kAttentionPart, i - 1))),
                    as(kLseSoFar, at(Value::kLsePart, i - 1))});
  if (i + 1 == p.setting.context_ranks()) s.writes = {as(kY, {Value::kAttention, l}), as(kLse, {Value::kLse, l})};
  return s;
}
Signature attention_gradient(std::int64_t l) {
  return {{as(kDY, {Value::kDAttention, l}), as(kQkv, {Value::kQkv, l}), as(kY, {Value::kAttention, l}),
           as(kLse, {Value::kLse, l})},
          {as(kDQkv, {Value::kDQkv, l})}};
}
Signature ring_backward(const Compute& c) {
  const std::int64_t l = c.layer, i = c.chunk;
  const auto at = [l](Value v, std::int64_t step) { return Operand{v, l, Range::kAll, step}; };
  Signature s{attention_gradient(l).reads, {as(kDQkv, at(Value::kDQuery, i)), as(kDKeys, at(Value::kDKeys, i))}};
  if (i > 0) s.reads.insert(s.reads.end(), {as(kKeys, at(Value::kKeys, i)), as(kDQkvSoFar, at(Value::kDQuery, i - 1))});
  return s;
}
// The first step of keys also leaves the rank's own keys side by side. A step of gradients adds the received gradients
// to this rank's own for the same keys, which are used up, and passes the sum on. The last step brings the sum home,
// into q|k|v beside the gradients of the queries.
Signature shift(const Program& p, const Shift& o) {
  const std::int64_t l = o.layer, i = o.step;
  const auto at = [l](Value v, std::int64_t step) { return Operand{v, l, Range::kAll, step}; };
  if (o.moves == Moves::kKeys) {
    if (i == 1) return {{as(kFrom, {Value::kQkv, l})}, {as(kOwn, at(Value::kKeys, 0)), as(kTo, at(Value::kKeys, 1))}};
    return {{as(kFrom, at(Value::kKeys, i - 1))}, {as(kTo, at(Value::kKeys, i))}};
  }
  Signature s{{as(kFrom, consumed(at(Value::kDKeys, i - 1)))}, {as(kTo, at(Value::kDKeysIn, i))}};
  if (i > 1) s.reads.push_back(as(kSoFar, at(Value::kDKeysIn, i - 1)));
  if (i == p.setting.context_ranks()) {
    s.reads.push_back(as(kDQkvSoFar, at(Value::kDQuery, i - 1)));
    s.writes.push_back(as(kDQkv, {Value::kDQkv, l}));
  }
  return s;
}

Signature forward(const Program& p, const Compute& c, int unit) {
  const Residuals stream(p.setting);
  const std::int64_t l = c.layer, last = p.arch.layers;
  const Operand param = as(kParam, {Value::kParam, unit});
  switch (c.part) {
    case Part::kEmbed:
      return {{as(kIds, {Value::kIds}), param}, {as(kY, stream.x_out(0))}};
    case Part::kNormQkv:
      return {{as(kX, stream.x_in(l)), param}, {as(kY, {Value::kQkv, l}), as(kStats, {Value::kStats1, l})}};
    case Part::kAttention: {
      if (c.chunk >= 0) return ring_forward(p, c);
      Signature s{{as(kQkv, {Value::kQkv, l})}, {as(kY, {Value::kAttention, l}), as(kLse, {Value::kLse, l})}};
      if (p.setting.context() && !p.setting.ring()) s.reads.push_back(as(kKeys, {Value::kKeysAll, l}));
      return s;
    }
    case Part::kOutProjection:
      return {{as(kX, {Value::kAttention, l}), as(kResidual, {Value::kResidual, l}), param},
              {as(kY, stream.mid_out(l))}};
    case Part::kNormUp:
      return {{as(kX, stream.mid_in(l)), param}, {as(kY, {Value::kUp, l}), as(kStats, {Value::kStats2, l})}};
    case Part::kActivation:
      return {{as(kX, {Value::kUp, l})}, {as(kY, {Value::kActivation, l})}};
    case Part::kDown:
      return {{as(kX, {Value::kActivation, l}), as(kResidual, {Value::kMid, l}), param}, {as(kY, stream.x_out(l + 1))}};
    case Part::kFinalNorm: {
      Signature s{{as(kX, stream.x_in(last))}, {as(kY, {Value::kNormed}), as(kStats, {Value::kStatsFinal})}};
      if (unit >= 0) s.reads.push_back(param);
      return s;
    }
    case Part::kHead:
      return {{as(kX, {Value::kNormed}), as(kLabels, {Value::kLabels}), param},
              {as(kLosses, {Value::kLosses}), as(kScalars, {Value::kScalars})}};
    case Part::kHeadLogits:
      return {{as(kX, {Value::kNormed}), as(kLabels, {Value::kLabels}), param},
              {as(kLogits, {Value::kLogits, c.chunk}), as(kSums, {Value::kHeadSums, c.chunk})}};
    case Part::kHeadLoss:
      return {{as(kSums, {Value::kHeadSumsAll, c.chunk}), as(kLabels, {Value::kLabels})},
              {as(kLosses, {Value::kLosses}), as(kScalars, {Value::kScalars})}};
  }
  throw Error("unknown part {}", static_cast<int>(c.part));
}

// Parts that add to the residual gradient: they add in place, except under sequence parallelism, where the reduction
// adds.
Signature backward_norm(const Residuals& stream, Operand d_out, Operand in, Operand stats, int unit, Value kept,
                        std::int64_t kept_layer, Operand result) {
  Signature s{{as(kDY, d_out), as(kX, in), as(kStats, stats), as(kParam, {Value::kParam, unit})},
              {as(kDX, result), as(kGrad, {Value::kGrad, unit})}};
  if (!stream.rows) s.reads.push_back(as(kDResidual, {kept, kept_layer}));
  return s;
}

Signature backward(const Program& p, const Compute& c, int unit) {
  const Residuals stream(p.setting);
  const std::int64_t l = c.layer, last = p.arch.layers;
  const Operand param = as(kParam, {Value::kParam, unit}), grad = as(kGrad, {Value::kGrad, unit});
  switch (c.part) {
    case Part::kEmbed:
      return {{as(kIds, {Value::kIds}), as(kDY, stream.d_x_in(0))}, {grad}};
    case Part::kNormQkv:
      // The inverse RoPE of the gradient runs in place.
      return backward_norm(stream, consumed({Value::kDQkv, l}), stream.x_in(l), {Value::kStats1, l}, unit, Value::kDMid,
                           l, stream.d_x_out(l));
    case Part::kAttention: {
      if (c.chunk >= 0) return ring_backward(c);
      Signature s = attention_gradient(l);
      if (p.setting.context() && !p.setting.ring()) {
        s.reads.push_back(as(kKeys, {Value::kKeysAll, l}));
        s.writes = {as(kDQkv, {Value::kDQuery, l}), as(kDKeys, {Value::kDKeysAll, l})};
      }
      return s;
    }
    case Part::kOutProjection:
      return {{as(kDY, stream.d_mid_in(l)), as(kX, {Value::kAttention, l}), param},
              {as(kDX, {Value::kDAttention, l}), grad}};
    case Part::kNormUp:
      return backward_norm(stream, {Value::kDUp, l}, stream.mid_in(l), {Value::kStats2, l}, unit, Value::kDResidual,
                           l + 1, stream.d_mid_out(l));
    case Part::kActivation:
      return {{as(kDY, {Value::kDActivation, l}), as(kX, {Value::kUp, l})}, {as(kDX, {Value::kDUp, l})}};
    case Part::kDown:
      return {{as(kDY, stream.d_x_in(l + 1)), as(kX, {Value::kActivation, l}), param},
              {as(kDX, {Value::kDActivation, l}), grad}};
    case Part::kFinalNorm: {
      Signature s{{as(kDY, {Value::kDNormed}), as(kX, stream.x_in(last)), as(kStats, {Value::kStatsFinal})},
                  {as(kDX, stream.d_x_out(last))}};
      if (unit >= 0) {
        s.reads.push_back(param);
        s.writes.push_back(grad);
      }
      return s;
    }
    case Part::kHead:
      return {{as(kX, {Value::kNormed}), as(kLabels, {Value::kLabels}), param},
              {as(kLosses, {Value::kLosses}), as(kScalars, {Value::kScalars}), as(kDX, {Value::kDNormed}), grad}};
    case Part::kHeadLoss:
      return {{as(kSums, {Value::kHeadSumsAll, c.chunk}), as(kLabels, {Value::kLabels}),
               as(kLogits, consumed({Value::kLogits, c.chunk})), as(kX, {Value::kNormed}), param},
              {as(kLosses, {Value::kLosses}), as(kScalars, {Value::kScalars}), as(kDX, {Value::kDNormed}), grad}};
    case Part::kHeadLogits:
      break;
  }
  throw Error("part {} has no backward", arch::name_of(c.part));
}

// The half that the part before waits for. It reads the residual gradient from one buffer and writes it to another.
Signature backward_input(const Program& p, const Compute& c, int unit) {
  const Residuals stream(p.setting);
  const std::int64_t l = c.layer;
  const Operand param = as(kParam, {Value::kParam, unit});
  Signature s = backward(p, c, unit);
  switch (c.part) {
    case Part::kOutProjection:
      return {{as(kDY, stream.d_mid_in(l)), param}, {as(kDX, {Value::kDAttention, l})}};
    case Part::kDown:
      return {{as(kDY, stream.d_x_in(l + 1)), param}, {as(kDX, {Value::kDActivation, l})}};
    case Part::kNormQkv:
    case Part::kNormUp:
      if (!has_norm_weights(p)) s.writes.pop_back();
      if (c.part == Part::kNormQkv) {
        s.reads.front().consumed = false;
        s.writes.push_back(as(kDProjected, {Value::kDProjected, l}));
      }
      return s;
    default:
      return s;
  }
}

// The half for the weights of products. It reads values that forward kept and values that the first half left.
Signature backward_weights(const Program& p, const Compute& c, int unit) {
  const Residuals stream(p.setting);
  const std::int64_t l = c.layer;
  const Operand param = as(kParam, {Value::kParam, unit}), grad = as(kGrad, {Value::kGrad, unit});
  switch (c.part) {
    case Part::kNormQkv:
      return {{as(kDY, {Value::kDProjected, l}), as(kX, stream.x_in(l)), as(kStats, {Value::kStats1, l}), param},
              {grad}};
    case Part::kOutProjection:
      return {{as(kDY, stream.d_mid_in(l)), as(kX, {Value::kAttention, l})}, {grad}};
    case Part::kNormUp:
      return {{as(kDY, {Value::kDUp, l}), as(kX, stream.mid_in(l)), as(kStats, {Value::kStats2, l}), param}, {grad}};
    case Part::kDown:
      return {{as(kDY, stream.d_x_in(l + 1)), as(kX, {Value::kActivation, l})}, {grad}};
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

// The three states of a value that tensor ranks exchange.
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

Signature moved(Operand from, Operand to) {
  return {{as(kFrom, from)}, {as(kTo, to)}};
}

Signature cast(const Program& p, const Cast& o, int unit) {
  const Setting& s = p.setting;
  const bool replicas = o.over == Axis::kReplicate;
  if (!o.back) return moved({replicas ? Value::kGradShard : Value::kGrad, unit}, message(p, o.over, false, unit));
  const bool shard = replicas || o.over == Axis::kShard, own = replicas ? s.own_over_dp : !shard && s.owns_part();
  return moved(message(p, o.over, true, unit),
               {shard ? Value::kGradShard : Value::kGrad, unit, own ? Range::kOwn : Range::kAll});
}

// Returns the signature on one piece of the rows; parameters, gradients and scalars have no pieces.
Signature piece_of(Signature s, std::int64_t chunk) {
  for (auto* operands : {&s.reads, &s.writes})
    for (Operand& o : *operands)
      if (!of_unit(o.value) && o.value != Value::kScalars) o.chunk = chunk;
  return s;
}

// Reduces this rank's whole partial sums to the part that it keeps or updates.
Signature reduce_scatter(const Program& p, const ReduceScatter& o, int unit) {
  if (o.moves == Moves::kDKeys)
    return {{as(kFrom, consumed({Value::kDKeysAll, o.layer})), as(kDQkvSoFar, {Value::kDQuery, o.layer})},
            {as(kTo, {Value::kDQkv, o.layer})}};
  if (o.moves != Moves::kUnit) {
    const Exchanged e = exchanged(o.moves);
    Signature s = moved(consumed({e.sum, o.layer}), {e.kept, o.layer});
    // The residual gradient so far: for the middle, that of the layer above; for the input, that of the middle.
    if (o.accumulate)
      s.reads.push_back(as(
          kSoFar, o.moves == Moves::kDMid ? Operand{Value::kDResidual, o.layer + 1} : Operand{Value::kDMid, o.layer}));
    return piece_of(std::move(s), o.chunk);
  }
  if (p.setting.narrow_over(o.axis))
    return moved(consumed(message(p, o.axis, false, unit)), message(p, o.axis, true, unit));
  if (!p.setting.sharded_gradients()) return moved(consumed({Value::kGrad, unit}), {Value::kGrad, unit, Range::kOwn});
  if (o.axis == Axis::kReplicate)
    return moved(consumed({Value::kGradShard, unit}), {Value::kGradShard, unit, Range::kOwn});
  return moved(consumed({Value::kGrad, unit}), {Value::kGradShard, unit});
}

Signature all_reduce(const Program& p, const AllReduce& o, int unit) {
  if (o.moves != Moves::kUnit) {
    const Exchanged e = exchanged(o.moves);
    return moved({e.sum, o.layer}, {e.kept, o.layer});
  }
  if (o.axis == Axis::kTp)
    return moved({Value::kGrad, unit, Range::kReplicated}, {Value::kGrad, unit, Range::kReplicated});
  if (p.setting.narrow_over(o.axis)) return moved(message(p, o.axis, false, unit), message(p, o.axis, true, unit));
  const Value value = p.setting.sharded_gradients() ? Value::kGradShard : Value::kGrad;
  return moved({value, unit}, {value, unit});
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
    if (o.axis == Axis::kReplicate) return moved({Value::kParamShard, unit, Range::kOwn}, {Value::kParamShard, unit});
    return moved({Value::kParamShard, unit}, {Value::kParam, unit});
  }
  if (o.axis == Axis::kReplicate)
    return moved({Value::kParam, unit, Range::kOwn}, {Value::kParam, unit, Range::kShard});
  return moved({Value::kParam, unit, s.own_over_dp ? Range::kShard : Range::kOwn}, {Value::kParam, unit});
}

// Returns the operand of the updated parameters in the compute type.
Operand updated(const Program& p, int unit) {
  const Setting& s = p.setting;
  if (!s.offload.optimizer) return owned(p, false, unit);
  if (s.offload.parameters) return {Value::kParamHost, unit};
  return {s.master == s.compute ? Value::kMaster : Value::kParamHost, unit};
}

Signature optimizer(const Program& p, int unit) {
  const Operand grad = p.setting.offload.optimizer ? Operand{Value::kGradHost, unit} : owned(p, true, unit);
  Signature s{
      {as(kGrad, grad), as(kScalars, {Value::kScalars})},
      {as(kParam, updated(p, unit)), as(kMoment1, {Value::kMoment1, unit}), as(kMoment2, {Value::kMoment2, unit})}};
  if (p.setting.master != p.setting.compute) s.writes.push_back(as(kMaster, {Value::kMaster, unit}));
  return s;
}

Signature copy_to_host(const Program& p, const CopyToHost& o, int unit) {
  if (o.moves != Moves::kUnit)
    return moved({kept_value(o.moves), o.layer}, {kept_value(o.moves), o.layer, Range::kAll, 0, true});
  return moved(owned(p, true, unit), {Value::kGradHost, unit});
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

const Operand& found(const std::vector<Operand>& operands, Arg arg) {
  const auto at = std::find_if(operands.begin(), operands.end(), [&](const Operand& o) { return o.arg == arg; });
  MOLEN_CHECK(at != operands.end(), "no operand '{}'", name_of(arg));
  return *at;
}

}  // namespace

const Operand& Signature::read(Arg arg) const {
  return found(reads, arg);
}
const Operand& Signature::write(Arg arg) const {
  return found(writes, arg);
}

Signature signature(const Program& program, const Op& op, int unit) {
  const Operand scalars = as(kScalars, {Value::kScalars});
  return std::visit(
      Match{
          [&](const Compute& c) {
            Signature s = compute(program, c, unit_of_part(program, c.part, c.layer));
            if (c.part == Part::kAttention && program.setting.document_mask)
              s.reads.push_back(as(kDocuments, {Value::kDocuments}));
            return by_chunks(program.setting, c.part) ? piece_of(std::move(s), c.chunk) : s;
          },
          [&](const LoadBatch&) {
            Signature s{{}, {as(kIds, {Value::kIds}), as(kLabels, {Value::kLabels}), scalars}};
            if (program.setting.document_mask) s.writes.push_back(as(kDocuments, {Value::kDocuments}));
            return s;
          },
          [&](const ZeroFill&) {
            return Signature{{}, {unit >= 0 ? as(kTo, {Value::kGrad, unit}) : as(kTo, {Value::kScalars})}};
          },
          [&](const SumSquares&) {
            const bool host = program.setting.offload.gradients;
            return Signature{{as(kGrad, host ? Operand{Value::kGradHost, unit} : owned(program, true, unit))},
                             {scalars}};
          },
          [&](const ClipScale&) {
            return Signature{{}, {scalars}};
          },
          [&](const OptimizerStep&) { return optimizer(program, unit); },
          [&](const AllReduce& o) { return all_reduce(program, o, unit); },
          [&](const ReduceScatter& o) { return reduce_scatter(program, o, unit); },
          [&](const AllGather& o) { return all_gather(program, o, unit); },
          [&](const Send& o) {
            return Signature{{as(kFrom, {exchanged(o.moves).kept, o.layer})}, {}};
          },
          [&](const Receive& o) {
            return Signature{{}, {as(kTo, {exchanged(o.moves).kept, o.layer})}};
          },
          [&](const Shift& o) { return shift(program, o); },
          [&](const CopyToHost& o) { return copy_to_host(program, o, unit); },
          [&](const CopyToDevice& o) { return copy_to_device(program, o, unit); },
          [&](const Cast& o) { return cast(program, o, unit); },
          [&](const ReduceScalars&) {
            return Signature{{}, {scalars}};
          },
          [&](const Agree&) {
            return Signature{{scalars}, {}};
          },
      },
      op);
}

bool consumes(const Program& program, const Step& step, Arg read) {
  const Signature s = signature(program, step.op, unit_of_step(program, step));
  return std::any_of(s.reads.begin(), s.reads.end(), [&](const Operand& o) { return o.arg == read && o.consumed; });
}

bool by_chunks(const Setting& setting, Part part) {
  return setting.chunked_rows() && arch::has_halves(part);
}

bool chunk_apart(const Program& program, const Operand& o) {
  const ValueClass of = class_of(o.value);
  if (o.chunk < 0 || (of != ValueClass::kSum && of != ValueClass::kRows)) return false;
  const bool of_table = (o.value == Value::kResidualSum || o.value == Value::kDResidualRows) && o.layer == 0;
  const bool of_norm =
      (o.value == Value::kResidualRows || o.value == Value::kDResidualSum) && o.layer == program.arch.layers;
  return !of_table && !of_norm;
}

bool wide_partial(const Program& program, Value value) {
  const bool partial =
      value == Value::kAttentionPart || value == Value::kDQuery || value == Value::kDKeys || value == Value::kDKeysIn;
  return partial && program.setting.ring() && size_of(program.setting.compute) < 4;
}

bool in_place(const Program& program, const Op& op, const Operand& write, const Operand& read) {
  // Partial outputs of attention are continued in place, except from a wide to a narrow type.
  const auto goes_on = [&](Value part, Value whole) {
    return read.value == part && (write.value == part || (write.value == whole && !wide_partial(program, part)));
  };
  if (read.value == Value::kDQkv && write.value == Value::kDProjected) return true;
  if (goes_on(Value::kAttentionPart, Value::kAttention) || goes_on(Value::kLsePart, Value::kLse) ||
      goes_on(Value::kDQuery, Value::kDQkv) || (read.value == Value::kDKeysIn && write.value == Value::kDKeysIn))
    return true;
  if (std::holds_alternative<Shift>(op)) return false;  // one value is sent while the next is received
  const bool apart = program.setting.pipeline.halves;
  const auto gradient = [](Value v) { return v == Value::kDResidual || v == Value::kDMid; };
  if (std::holds_alternative<Compute>(op))  // the residual gradient is added to in place
    return !apart && gradient(read.value) &&
           (gradient(write.value) || write.value == Value::kDResidualSum || write.value == Value::kDMidSum);
  if (const auto* reduce = std::get_if<AllReduce>(&op))
    return reduce->moves != Moves::kUnit || write.value == read.value;
  if (const auto* scatter = std::get_if<ReduceScatter>(&op); scatter && scatter->moves != Moves::kUnit) {
    return !apart && gradient(write.value) && gradient(read.value);
  }
  return is_communication(op) && write.value == read.value;
}

Range extent_of(const Program& program, Value value) {
  switch (value) {
    case Value::kParamShard:
    case Value::kGradShard:
      return Range::kShard;
    case Value::kParamHost:
      if (program.setting.offload.parameters) return program.setting.sharded_parameters() ? Range::kShard : Range::kAll;
      [[fallthrough]];
    case Value::kGradHost:
    case Value::kMoment1:
    case Value::kMoment2:
    case Value::kMaster:
      return program.setting.owns_part() ? Range::kOwn : Range::kAll;
    default:
      return Range::kAll;
  }
}

std::int64_t elements_of(const Program& program, const Operand& operand) {
  const auto& a = program.local;
  const Setting& s = program.setting;
  const std::int64_t n = s.tokens();
  const auto [first_row, end_row] = chunk_rows(s, chunk_apart(program, operand) ? operand.chunk : -1);
  const std::int64_t stats = a.norm == arch::Norm::kRms ? n : 2 * n;
  switch (operand.value) {
    case Value::kIds:
    case Value::kLabels:
    case Value::kDocuments:
    case Value::kLosses:
      return n;
    case Value::kResidual:
    case Value::kMid:
    case Value::kDResidual:
    case Value::kDMid:
      return kept_rows(s, {}) * a.hidden;
    case Value::kNormed:
    case Value::kDNormed:
      return n * a.hidden;
    case Value::kResidualSum:
    case Value::kMidSum:
    case Value::kDResidualSum:
    case Value::kDMidSum:
    case Value::kResidualRows:
    case Value::kMidRows:
    case Value::kDResidualRows:
    case Value::kDMidRows:
      return (end_row - first_row) * a.hidden;
    case Value::kLogits:
      return s.head_chunk_tokens(0) * a.vocabulary;
    case Value::kHeadSums:
      return s.head_chunk_tokens(0) * 2;
    case Value::kHeadSumsAll:
      return s.head_chunk_tokens(0) * 2 * s.tensor_ranks();
    case Value::kStats1:
    case Value::kStats2:
    case Value::kStatsFinal:
      return stats;
    case Value::kQkv:
    case Value::kDQkv:
    case Value::kDProjected:
      return n * a.qkv_size();
    case Value::kDQuery:  // becomes q|k|v in place, unless it is wider
      return n * (wide_partial(program, Value::kDQuery) ? a.query_size() : a.qkv_size());
    case Value::kKeys:
    case Value::kDKeys:
    case Value::kDKeysIn:
      return n * 2 * a.kv_heads * a.head_dim;
    case Value::kKeysAll:
    case Value::kDKeysAll:
      return s.context_ranks() * n * 2 * a.kv_heads * a.head_dim;
    case Value::kLse:
    case Value::kLsePart:
      return n * a.heads;
    case Value::kAttention:
    case Value::kAttentionPart:
    case Value::kDAttention:
      return n * a.query_size();
    case Value::kUp:
    case Value::kDUp:
      return n * a.up_size();
    case Value::kActivation:
    case Value::kDActivation:
      return n * a.ffn;
    case Value::kParam:
    case Value::kGrad:
    case Value::kParamShard:
    case Value::kGradShard:
    case Value::kGradHost:
    case Value::kParamHost:
    case Value::kGradMessage:
    case Value::kMoment1:
    case Value::kMoment2:
    case Value::kMaster: {
      const Unit& unit = program.units.at(static_cast<std::size_t>(operand.layer));
      const auto [first, last] = unit_range(s, {}, unit, extent_of(program, operand.value));
      return last - first;
    }
    case Value::kScalars:
      return kNumScalars;
  }
  throw Error("unknown value {}", static_cast<int>(operand.value));
}

DType dtype_of(const Program& program, Value value) {
  const Setting& s = program.setting;
  const DType accurate = s.compute == DType::kF64 ? DType::kF64 : DType::kF32;
  if (wide_partial(program, value)) return accurate;
  switch (value) {
    case Value::kIds:
    case Value::kLabels:
    case Value::kDocuments:
      return DType::kI32;
    case Value::kStats1:
    case Value::kStats2:
    case Value::kStatsFinal:
    case Value::kLse:
    case Value::kLsePart:
    case Value::kLosses:
    case Value::kLogits:
    case Value::kHeadSums:
    case Value::kHeadSumsAll:
    case Value::kGrad:
    case Value::kGradShard:
    case Value::kGradHost:
    case Value::kMoment1:
    case Value::kMoment2:
      return accurate;
    case Value::kGradMessage:
      return s.reduce;
    case Value::kMaster:
      return s.master;
    case Value::kScalars:
      return DType::kF64;
    default:
      return s.compute;
  }
}

Lifetime lifetime_of(const Program& program, Value value) {
  const Setting& s = program.setting;
  if (value == Value::kParam && s.parameters_come()) return Lifetime::kTransient;
  if (value == Value::kParamShard && s.offload.parameters) return Lifetime::kTransient;
  if (value == Value::kGrad && s.gradients_leave()) return Lifetime::kTransient;
  if (value == Value::kGradShard && s.offload.gradients) return Lifetime::kTransient;
  if (value == Value::kGradMessage) return Lifetime::kTransient;
  const bool parameters = value == Value::kParam || value == Value::kParamShard || value == Value::kParamHost;
  if (parameters && s.purpose == Purpose::kEvaluate) return Lifetime::kExternal;
  const bool persistent = of_unit(value) || value == Value::kScalars;
  return persistent ? Lifetime::kPersistent : Lifetime::kTransient;
}

Place place_of(const Program& program, const Operand& operand) {
  if (operand.host) return Place::kHost;
  switch (operand.value) {
    case Value::kGradHost:
    case Value::kParamHost:
      return Place::kHost;
    case Value::kMoment1:
    case Value::kMoment2:
    case Value::kMaster:
      return program.setting.offload.optimizer ? Place::kHost : Place::kDevice;
    default:
      return Place::kDevice;
  }
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
  for (const auto* uses : {&step.reads, &step.writes})
    for (const Use& use : *uses)
      if (const int unit = program.unit_of_buffer(use.buffer); unit >= 0) return unit;
  return -1;
}

}  // namespace molen::program
