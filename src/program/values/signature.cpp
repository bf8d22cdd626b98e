#include "program/values/signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/match.h"
#include "program/parts/operands.h"
#include "program/parts/part.h"
#include "program/values/operands.h"
#include "program/values/optimizer.h"
#include "program/values/value_memory.h"

namespace molen::program {
namespace {

using enum Arg;

using namespace operand;

// The first step that passes keys on also writes the rank's own keys side by side. A step that passes gradients on
// consumes this rank's own gradients, adds them to the received ones for the same keys, and sends the sum. The last
// step returns the sum to the rank of the keys, where it is stored in the gradient of q|k|v beside the gradients of the
// queries.
Signature shift(const Traits& t, const RingExchange& o) {
  const std::int64_t l = o.layer, i = o.step;
  const auto part = [l](Value v, std::int64_t step) { return Operand{v, l, Range::kAll, step}; };
  if (o.payload == Payload::kKeys) {
    if (i == 1)
      return {
          {reads(kFrom, {Value::kQkv, l}), writes(kOwn, part(Value::kKeys, 0)), writes(kTo, part(Value::kKeys, 1))}};
    return {{reads(kFrom, part(Value::kKeys, i - 1)), writes(kTo, part(Value::kKeys, i))}};
  }
  const Operand came = part(Value::kDKeysIn, i);
  Signature s{{consumes(kFrom, part(Value::kDKeys, i - 1)),
               i > 1 ? turns(kTo, part(Value::kDKeysIn, i - 1), came) : writes(kTo, came)}};
  if (i < t.context_ranks()) return s;
  const Operand queries = part(Value::kDQuery, i - 1), whole{Value::kDQkv, l};
  if (wide_partial(t, Value::kDQuery))
    s.operands.insert(s.operands.end(), {reads(kDQkvSoFar, queries), writes(kDQkv, whole)});
  else
    s.operands.push_back(turns(kDQkv, queries, whole));
  return s;
}

// Returns the part of a unit's gradient or parameters that this rank updates, in the buffers of the device.
Operand owned(const Traits& t, bool gradient, int unit) {
  if (gradient ? t.sharded_gradients() : t.sharded_parameters())
    return {gradient ? Value::kGradShard : Value::kParamShard, unit,
            t.owns_part_of_shard() ? Range::kOwn : Range::kAll};
  return {gradient ? Value::kGrad : Value::kParam, unit, t.owns_part() ? Range::kOwn : Range::kAll};
}

// Returns the message of a unit for the reduction over an axis or, when `summed`, this rank's part of the sums after
// the reduction. Step 0 is the message over the ranks that share a unit, and step 1 its sums; steps 2 and 3 are the
// message and the sums over the replicas.
Operand message(const Traits& t, Axis over, bool summed, int unit) {
  const Axis of = without_experts(over);
  const bool replicas = of == Axis::kReplicate;
  Range range = replicas ? Range::kShard : Range::kAll;
  if (summed && of == Axis::kShard) range = Range::kShard;
  if (summed && (replicas ? t.owns_part_of_shard() : of == Axis::kDp && t.owns_part())) range = Range::kOwn;
  return {Value::kGradCommunication, unit, range, (replicas ? 2 : 0) + (summed ? 1 : 0)};
}

Signature moved(const Operand& from, const Operand& to) {
  return {{reads(kFrom, from), writes(kTo, to)}};
}

// The signatures of a reduce-scatter and of an all-gather of a unit. If both operands are the same value, the part lies
// in the buffer of the whole.
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

Signature cast(const Traits& t, const Cast& o, int unit) {
  const bool replicas = o.over == Axis::kReplicate;
  if (!o.back) {
    const Operand sum{replicas ? Value::kGradShard : Value::kGrad, unit};
    const bool leaves = t.sharded_gradients() && !replicas;  // the whole gradient of a micro-batch is consumed
    return {{leaves ? consumes(kFrom, sum) : reads(kFrom, sum), writes(kTo, message(t, o.over, false, unit))}};
  }
  const bool shard = replicas || without_experts(o.over) == Axis::kShard,
             own = replicas ? t.owns_part_of_shard() : !shard && t.owns_part();
  const Operand sum{shard ? Value::kGradShard : Value::kGrad, unit, own ? Range::kOwn : Range::kAll};
  return {{consumes(kFrom, message(t, o.over, true, unit)), adds(kTo, sum)}};
}

// Returns the signature on one piece of the rows; parameters, gradients and scalars have no pieces.
Signature piece_of(Signature s, std::int64_t chunk) {
  for (Operand& o : s.operands)
    if (!of_unit(o.value) && o.value != Value::kScalars) o.portion = chunk;
  return s;
}

// Sums the rows that this rank keeps. A gradient is added to the residual gradient so far: the middle's to that of the
// next layer's input, and the input's to that of the middle. The first gradient, after the final norm's backward, is
// added to none.
Signature scatter_rows(const Program& p, const Traits& t, const ReduceScatter& o) {
  const Exchanged e = exchanged(o.payload);
  Signature s{{consumes(kFrom, {e.sum, o.layer})}};
  const Operand kept{e.kept, o.layer};
  const bool joins = o.payload == Payload::kDMid || (o.payload == Payload::kDResidual && o.layer < p.arch.layers);
  const Operand so_far =
      o.payload == Payload::kDMid ? Operand{Value::kDResidual, o.layer + 1} : Operand{Value::kDMid, o.layer};
  if (!joins)
    s.operands.push_back(writes(kTo, kept));
  else if (t.halves)
    s.operands.insert(s.operands.end(), {reads(kSoFar, so_far), writes(kTo, kept)});
  else
    s.operands.push_back(turns(kTo, so_far, kept));
  return piece_of(std::move(s), o.portion);
}

// A reduce-scatter makes its sums in the operand that it consumes.
Signature reduce_scatter(const Program& p, const Traits& t, const ReduceScatter& o, int unit) {
  if (o.payload == Payload::kDKeys)
    return {
        {consumes(kFrom, {Value::kDKeysAll, o.layer}), turns(kTo, {Value::kDQuery, o.layer}, {Value::kDQkv, o.layer})}};
  if (o.payload != Payload::kUnit) return scatter_rows(p, t, o);
  if (t.narrow_over(o.axis)) return scattered(message(t, o.axis, false, unit), message(t, o.axis, true, unit));
  if (!t.sharded_gradients()) return scattered({Value::kGrad, unit}, {Value::kGrad, unit, Range::kOwn});
  if (o.axis == Axis::kReplicate) return scattered({Value::kGradShard, unit}, {Value::kGradShard, unit, Range::kOwn});
  return scattered({Value::kGrad, unit}, {Value::kGradShard, unit});
}

Signature all_reduce(const Traits& t, const AllReduce& o, int unit) {
  if (o.payload == Payload::kLoad) return {{updates(kTo, {Value::kLoad, o.layer})}};
  if (o.payload != Payload::kUnit) {
    const Exchanged e = exchanged(o.payload);
    return {{turns(kTo, {e.sum, o.layer}, {e.kept, o.layer})}};
  }
  if (o.axis == Axis::kTp) return {{updates(kTo, {Value::kGrad, unit, Range::kReplicated})}};
  if (t.narrow_over(o.axis)) return {{turns(kTo, message(t, o.axis, false, unit), message(t, o.axis, true, unit))}};
  return {{updates(kTo, {t.sharded_gradients() ? Value::kGradShard : Value::kGrad, unit})}};
}

// Gathers parameters: from the updated part to the shard, and from shards to the whole.
Signature all_gather(const Traits& t, const AllGather& o, int unit) {
  if (o.payload == Payload::kHead) return moved({Value::kHeadSums, o.layer}, {Value::kHeadSumsAll, o.layer});
  if (o.payload == Payload::kKeys) return moved({Value::kQkv, o.layer}, {Value::kKeysAll, o.layer});
  if (o.payload == Payload::kCounts) return moved({Value::kCounts, o.layer}, {Value::kCountsAll, o.layer});
  if (o.payload == Payload::kOffsets) return moved({Value::kOffsets, o.layer}, {Value::kOffsetsAll, o.layer});
  if (o.payload != Payload::kUnit) {
    const Exchanged e = exchanged(o.payload);
    return piece_of(moved({e.kept, o.layer}, {e.rows, o.layer}), o.portion);
  }
  if (o.axis == Axis::kTp) return moved({Value::kDirection, unit}, {Value::kDirectionAll, unit});
  if (t.sharded_parameters()) {
    if (o.axis == Axis::kReplicate)
      return gathered({Value::kParamShard, unit, Range::kOwn}, {Value::kParamShard, unit});
    return gathered({Value::kParamShard, unit}, {Value::kParam, unit});
  }
  if (o.axis == Axis::kReplicate)
    return gathered({Value::kParam, unit, Range::kOwn}, {Value::kParam, unit, Range::kShard});
  return gathered({Value::kParam, unit, t.owns_part_of_shard() ? Range::kShard : Range::kOwn}, {Value::kParam, unit});
}

// Returns the signature on one tile of the experts; values that are not in the order of experts have no tiles.
Signature of_tile(Signature s, std::int64_t tile) {
  for (Operand& o : s.operands)
    if (!of_unit(o.value) && in_expert_order(o.value)) o.portion = tile;
  return s;
}

// The rows that a rank has for its experts are in the order of these experts. The first exchange also writes the row at
// which each expert begins.
Signature all_to_all(const AllToAll& o) {
  const auto [here, there] = rows_of_experts(o.payload);
  const Operand offsets{Value::kOffsetsAll, o.layer};
  Signature s{{reads(kFrom, {o.home() ? there : here, o.layer}), reads(kOffsets, offsets),
               writes(kTo, {o.home() ? here : there, o.layer})}};
  if (o.payload == Payload::kExpertRows && o.portion <= 0)
    s.operands.push_back(writes(kExpertOffsets, {Value::kExpertOffsets, o.layer}));
  return of_tile(std::move(s), o.portion);
}

// Returns the parameters in the compute type that an update writes.
Operand updated(const Traits& t, int unit) {
  if (!t.offload.optimizer) return owned(t, false, unit);
  if (t.offload.parameters) return {Value::kParamHost, unit};
  return {t.master == t.compute ? Value::kMaster : Value::kParamHost, unit};
}

// If there are master weights, they are updated, and the parameter is written as a rounded copy of them.
Signature optimizer(const Traits& t, const OptimizerStep& o, int unit) {
  const Optimizer& rule = optimizer_named(o.kind);
  const Operand grad = t.offload.optimizer ? Operand{Value::kGradHost, unit} : owned(t, true, unit);
  const Operand param = updated(t, unit);
  const bool master = t.master != t.compute;
  if (o.stage == UpdateStage::kDirection && rule.whole_parameters)
    return {{reads(kGrad, grad), reads(kScalars, {Value::kScalars}),
             master ? reads(kMaster, {Value::kMaster, unit}) : reads(kParam, param),
             writes(kDirection, {Value::kDirection, unit})}};
  if (o.stage == UpdateStage::kDirection) {
    const OptimizerState& momentum = rule.states.front();
    return {{reads(kGrad, grad), reads(kScalars, {Value::kScalars}), updates(momentum.arg, {momentum.value, unit}),
             writes(kDirection, {Value::kDirection, unit})}};
  }
  Signature s{{reads(kGrad, grad), reads(kScalars, {Value::kScalars}),
               master ? writes(kParam, param) : updates(kParam, param)}};
  if (o.stage == UpdateStage::kApply) s.operands.push_back(reads(kDirection, {Value::kDirectionAll, unit}));
  for (const OptimizerState& state : rule.states) s.operands.push_back(updates(state.arg, {state.value, unit}));
  if (master) s.operands.push_back(updates(kMaster, {Value::kMaster, unit}));
  return s;
}

Signature copy_to_host(const Traits& t, const CopyToHost& o, int unit) {
  if (o.payload != Payload::kUnit)
    return moved({kept_value(o.payload), o.layer}, {kept_value(o.payload), o.layer, Range::kAll, 0, true});
  const Operand grad = owned(t, true, unit);
  const bool leaves = t.offload.gradients && grad.value == Value::kGrad;  // from where backward made it
  return {{leaves ? consumes(kFrom, grad) : reads(kFrom, grad), adds(kTo, {Value::kGradHost, unit})}};
}

// Copies a kept value, parameters that ops are about to use, or updated parameters.
Signature copy_to_device(const Traits& t, const CopyToDevice& o, int unit) {
  if (o.payload != Payload::kUnit)
    return moved({kept_value(o.payload), o.layer, Range::kAll, 0, true}, {kept_value(o.payload), o.layer});
  if (!t.offload.parameters) return moved(updated(t, unit), owned(t, false, unit));
  return moved({Value::kParamHost, unit}, {t.sharded_parameters() ? Value::kParamShard : Value::kParam, unit});
}

}  // namespace

const Operand& Signature::operand(Arg arg) const {
  const auto at = std::find_if(operands.begin(), operands.end(), [&](const Operand& o) { return o.arg == arg; });
  MOLEN_CHECK(at != operands.end(), "no operand '{}'", name_of(arg));
  return *at;
}

Signature signature(const Program& program, const Traits& traits, const Op& op, int unit) {
  const Operand scalars{Value::kScalars};
  return std::visit(
      Match{
          [&](const Compute& c) {
            Signature s{operands_of(program, traits, c, unit_of_part(program, c.part, c.layer))};
            if (by_tiles(traits.rows, c.part)) return of_tile(std::move(s), c.portion);
            return by_pieces(traits.rows, c.part) ? piece_of(std::move(s), c.portion) : s;
          },
          [&](const LoadBatch&) {
            Signature s{{writes(kIds, {Value::kIds}), writes(kLabels, {Value::kLabels}), updates(kScalars, scalars)}};
            if (traits.documents) s.operands.push_back(writes(kDocuments, {Value::kDocuments}));
            return s;
          },
          [&](const ZeroFill&) {
            return Signature{{writes(kTo, unit >= 0 ? Operand{Value::kGrad, unit} : scalars)}};
          },
          [&](const SumSquares&) {
            const bool host = traits.offload.gradients;
            return Signature{{reads(kGrad, host ? Operand{Value::kGradHost, unit} : owned(traits, true, unit)),
                              updates(kScalars, scalars)}};
          },
          [&](const ClipScale&) { return Signature{{updates(kScalars, scalars)}}; },
          [&](const OptimizerStep& o) { return optimizer(traits, o, unit); },
          [&](const AllReduce& o) { return all_reduce(traits, o, unit); },
          [&](const ReduceScatter& o) { return reduce_scatter(program, traits, o, unit); },
          [&](const AllGather& o) { return all_gather(traits, o, unit); },
          [&](const AllToAll& o) { return all_to_all(o); },
          [&](const Send& o) {
            return Signature{{reads(kFrom, {exchanged(o.payload).kept, o.layer})}};
          },
          [&](const Receive& o) {
            return Signature{{writes(kTo, {exchanged(o.payload).kept, o.layer})}};
          },
          [&](const RingExchange& o) { return shift(traits, o); },
          [&](const CopyToHost& o) { return copy_to_host(traits, o, unit); },
          [&](const CopyToDevice& o) { return copy_to_device(traits, o, unit); },
          [&](const Cast& o) { return cast(traits, o, unit); },
          [&](const ReduceScalars&) { return Signature{{updates(kScalars, scalars)}}; },
          [&](const SetFlag&) { return Signature{{reads(kScalars, scalars)}}; },
          [&](const SetClock&) { return Signature{}; },
      },
      op);
}

}  // namespace molen::program
