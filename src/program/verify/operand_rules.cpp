#include "program/verify/operand_rules.h"

#include <string>
#include <utility>

#include "program/parts/operands.h"
#include "program/parts/part.h"
#include "program/values/of_op.h"
#include "program/values/optimizer.h"
#include "program/values/value_memory.h"

namespace molen::program {
namespace {

using enum Arg;
using Operands = std::vector<Operand>;
using namespace operand;

// A share of a unit: the whole unit, a rank's part of sharded gradients and parameters, or the part whose optimizer
// state a rank keeps.
enum class PartOfUnit { kWhole, kShard, kOwn };

// The buffers and ranges that hold the shares of a unit. A share without a buffer of its own is a range of the buffer
// of the next larger share. If the share is all of that buffer, the range is kAll.
class SharesOfUnit {
 public:
  SharesOfUnit(const Traits& t, int unit) : t_(t), unit_(unit) {}

  Operand gradient(PartOfUnit share) const {
    if (t_.sharded_gradients() && share != PartOfUnit::kWhole) return in_shard(Value::kGradShard, share);
    return {Value::kGrad, unit_, share == PartOfUnit::kWhole ? Range::kAll : own()};
  }
  Operand parameters(PartOfUnit share) const {
    if (t_.sharded_parameters() && share != PartOfUnit::kWhole) return in_shard(Value::kParamShard, share);
    const bool part =
        share == PartOfUnit::kShard && t_.owns_part_of_shard();  // larger than the share that the rank owns
    return {Value::kParam, unit_, share == PartOfUnit::kWhole ? Range::kAll : part ? Range::kShard : own()};
  }
  // `step` distinguishes messages between sharding ranks from messages between replicas, and terms from sums.
  Operand message(PartOfUnit share, std::int64_t step) const {
    const bool part = t_.sharded_gradients() && !(share == PartOfUnit::kOwn && t_.owns_part_of_shard());
    return {Value::kGradCommunication, unit_,
            share == PartOfUnit::kWhole ? Range::kAll
            : part                      ? Range::kShard
                                        : own(),
            step};
  }

 private:
  Range own() const { return t_.owns_part() ? Range::kOwn : Range::kAll; }
  Operand in_shard(Value value, PartOfUnit share) const {
    return {value, unit_, share == PartOfUnit::kOwn && t_.owns_part_of_shard() ? Range::kOwn : Range::kAll};
  }

  const Traits& t_;
  int unit_;
};

// The two shares of a reduction of gradients over an axis, from the larger to the smaller. Gathering parameters goes
// from the smaller share to the larger.
struct Way {
  PartOfUnit larger{}, smaller{};
};
Way way_over(Axis axis) {
  switch (without_experts(axis)) {
    case Axis::kShard:
      return {PartOfUnit::kWhole, PartOfUnit::kShard};
    case Axis::kReplicate:
      return {PartOfUnit::kShard, PartOfUnit::kOwn};
    default:
      return {PartOfUnit::kWhole, PartOfUnit::kOwn};
  }
}

// Returns the gradient of the next value in the residual stream. That gradient is a term of the given one.
Operand place_after(Value gradient, std::int64_t layer) {
  return gradient == Value::kDMid ? Operand{Value::kDResidual, layer + 1} : Operand{Value::kDMid, layer};
}

Operands on_piece(Operands operands, std::int64_t chunk) {
  for (Operand& o : operands)
    if (!of_unit(o.value) && o.value != Value::kScalars) o.portion = chunk;
  return operands;
}

// Rows in the order of experts are exchanged and computed tile by tile.
Operands on_tile(Operands operands, std::int64_t tile) {
  for (Operand& o : operands)
    if (in_expert_order(o.value)) o.portion = tile;
  return operands;
}

// If both operands are in one buffer, the op makes or gathers a part within that buffer. If they are in two buffers,
// the op may add its sums to earlier ones.
Operands between(Operand from, Operand to, bool sums) {
  if (from.value == to.value)
    to.within = kFrom;
  else
    to.may_add = sums;
  return {sums ? consumes(kFrom, from) : reads(kFrom, from), writes(kTo, to)};
}

class OperandRules {
 public:
  OperandRules(const Program& p, const Traits& t, int unit) : p_(p), t_(t), unit_(unit), shares_(t, unit) {}

  Operands operator()(const Compute& c) const {
    Operands declared = operands_of(p_, t_, c, unit_of_part(p_, c.part, c.layer));
    if (by_tiles(t_.rows, c.part)) return on_tile(std::move(declared), c.portion);
    return by_pieces(t_.rows, c.part) ? on_piece(std::move(declared), c.portion) : declared;
  }
  Operands operator()(const LoadBatch&) const {
    Operands batch{writes(kIds, {Value::kIds}), writes(kLabels, {Value::kLabels}),
                   updates(kScalars, {Value::kScalars})};
    if (t_.documents) batch.push_back(writes(kDocuments, {Value::kDocuments}));
    return batch;
  }
  Operands operator()(const ZeroFill&) const {
    return {writes(kTo, unit_ < 0 ? Operand{Value::kScalars} : shares_.gradient(PartOfUnit::kWhole))};
  }
  // Squares are summed over the gradient of all micro-batches, in the place where that gradient is.
  Operands operator()(const SumSquares&) const {
    return {reads(kGrad, t_.offload.gradients ? host(Value::kGradHost) : shares_.gradient(PartOfUnit::kOwn)),
            updates(kScalars, {Value::kScalars})};
  }
  Operands operator()(const ClipScale&) const { return {updates(kScalars, {Value::kScalars})}; }
  Operands operator()(const ReduceScalars&) const { return {updates(kScalars, {Value::kScalars})}; }
  Operands operator()(const SetFlag&) const { return {reads(kScalars, {Value::kScalars})}; }
  Operands operator()(const SetClock&) const { return {}; }

  Operands operator()(const AllReduce& o) const {
    if (o.payload == Payload::kLoad) return {updates(kTo, {Value::kLoad, o.layer})};
    if (o.payload != Payload::kUnit)
      return {turns(kTo, {exchanged(o.payload).sum, o.layer}, {exchanged(o.payload).kept, o.layer})};
    if (o.axis == Axis::kTp) return {updates(kTo, {Value::kGrad, unit_, Range::kReplicated})};
    // The sum is made in place: in the whole gradient, or in the shard if gradients are sharded.
    const bool replicas = o.axis == Axis::kReplicate;
    if (t_.narrow_over(o.axis)) {
      const PartOfUnit share = replicas ? PartOfUnit::kShard : PartOfUnit::kWhole;
      return {turns(kTo, shares_.message(share, replicas ? 2 : 0), shares_.message(share, replicas ? 3 : 1))};
    }
    return {updates(kTo, shares_.gradient(t_.sharded_gradients() ? PartOfUnit::kShard : PartOfUnit::kWhole))};
  }
  Operands operator()(const ReduceScatter& o) const {
    if (o.payload == Payload::kDKeys)
      return {consumes(kFrom, {Value::kDKeysAll, o.layer}),
              turns(kTo, {Value::kDQuery, o.layer}, {Value::kDQkv, o.layer})};
    if (o.payload != Payload::kUnit) return on_piece(sums_of_rows(o), o.portion);
    const Way way = way_over(o.axis);
    const std::int64_t step = o.axis == Axis::kReplicate ? 2 : 0;
    if (t_.narrow_over(o.axis))
      return between(shares_.message(way.larger, step), shares_.message(way.smaller, step + 1), true);
    return between(shares_.gradient(way.larger), shares_.gradient(way.smaller), true);
  }
  Operands operator()(const AllGather& o) const {
    if (o.payload == Payload::kHead) return copied({Value::kHeadSums, o.layer}, {Value::kHeadSumsAll, o.layer});
    if (o.payload == Payload::kKeys) return copied({Value::kQkv, o.layer}, {Value::kKeysAll, o.layer});
    if (o.payload == Payload::kCounts) return copied({Value::kCounts, o.layer}, {Value::kCountsAll, o.layer});
    if (o.payload == Payload::kOffsets) return copied({Value::kOffsets, o.layer}, {Value::kOffsetsAll, o.layer});
    if (o.payload != Payload::kUnit)
      return on_piece(copied({exchanged(o.payload).kept, o.layer}, {exchanged(o.payload).rows, o.layer}), o.portion);
    if (o.axis == Axis::kTp) return copied({Value::kDirection, unit_}, {Value::kDirectionAll, unit_});
    const Way way = way_over(o.axis);
    return between(shares_.parameters(way.smaller), shares_.parameters(way.larger), false);
  }
  // The rows that a rank has for its experts are in the order of these experts. The first exchange also writes the row
  // at which each expert begins. If rows are exchanged tile by tile, the first tile does that for all of them.
  Operands operator()(const AllToAll& o) const {
    auto [from, to] = rows_of_experts(o.payload);
    if (o.home()) std::swap(from, to);
    Operands operands{reads(kFrom, {from, o.layer}), reads(kOffsets, {Value::kOffsetsAll, o.layer}),
                      writes(kTo, {to, o.layer})};
    const bool first = o.payload == Payload::kExpertRows && o.portion <= 0;
    if (first) operands.push_back(writes(kExpertOffsets, {Value::kExpertOffsets, o.layer}));
    return on_tile(std::move(operands), o.portion);
  }
  Operands operator()(const Send& o) const { return {reads(kFrom, {exchanged(o.payload).kept, o.layer})}; }
  Operands operator()(const Receive& o) const { return {writes(kTo, {exchanged(o.payload).kept, o.layer})}; }
  Operands operator()(const RingExchange& o) const {
    return o.payload == Payload::kKeys ? keys_on(o) : gradients_on(o);
  }

  Operands operator()(const Cast& o) const {
    const Way way = way_over(o.over);
    const std::int64_t step = o.over == Axis::kReplicate ? 2 : 0;
    if (o.back)
      return {consumes(kFrom, shares_.message(way.smaller, step + 1)), adds(kTo, shares_.gradient(way.smaller))};
    // The cast consumes a whole gradient that goes into sharded sums.
    const bool leaves = t_.sharded_gradients() && way.larger == PartOfUnit::kWhole;
    const Operand from = shares_.gradient(way.larger), to = shares_.message(way.larger, step);
    return {leaves ? consumes(kFrom, from) : reads(kFrom, from), writes(kTo, to)};
  }
  Operands operator()(const CopyToHost& o) const {
    if (o.payload != Payload::kUnit) return copied({kept_value(o.payload), o.layer}, on_host(o.payload, o.layer));
    // If gradients are offloaded and not sharded, the copy consumes the gradient of a micro-batch in the buffer in
    // which it was made.
    const Operand from = shares_.gradient(PartOfUnit::kOwn);
    const bool leaves = t_.offload.gradients && !t_.sharded_gradients();
    return {leaves ? consumes(kFrom, from) : reads(kFrom, from), adds(kTo, host(Value::kGradHost))};
  }
  Operands operator()(const CopyToDevice& o) const {
    if (o.payload != Payload::kUnit) return copied(on_host(o.payload, o.layer), {kept_value(o.payload), o.layer});
    if (t_.offload.parameters)
      return copied(host(Value::kParamHost),
                    shares_.parameters(t_.sharded_parameters() ? PartOfUnit::kShard : PartOfUnit::kWhole));
    return copied(updated_parameters(), shares_.parameters(PartOfUnit::kOwn));
  }
  Operands operator()(const OptimizerStep& o) const {
    const Optimizer& rule = optimizer_named(o.kind);
    const bool master = t_.master != t_.compute;
    Operands operands{reads(kGrad, t_.offload.optimizer ? host(Value::kGradHost) : shares_.gradient(PartOfUnit::kOwn)),
                      reads(kScalars, {Value::kScalars})};
    const auto add = [&](const Operand& operand) { operands.push_back(operand); };
    if (o.stage == UpdateStage::kDirection) {
      if (!rule.whole_parameters)
        add(updates(rule.states.front().arg, {rule.states.front().value, unit_}));
      else
        add(master ? reads(kMaster, {Value::kMaster, unit_}) : reads(kParam, updated_parameters()));
      add(writes(kDirection, {Value::kDirection, unit_}));
      return operands;
    }
    add(master ? writes(kParam, updated_parameters()) : updates(kParam, updated_parameters()));
    if (o.stage == UpdateStage::kApply) add(reads(kDirection, {Value::kDirectionAll, unit_}));
    for (const OptimizerState& state : rule.states) add(updates(state.arg, {state.value, unit_}));
    if (master) add(updates(kMaster, {Value::kMaster, unit_}));
    return operands;
  }

 private:
  static Operands copied(const Operand& from, const Operand& to) { return {reads(kFrom, from), writes(kTo, to)}; }
  static Operand on_host(Payload kept, std::int64_t layer) { return {kept_value(kept), layer, Range::kAll, 0, true}; }
  Operand host(Value value) const { return {value, unit_}; }

  // An update on the host writes the parameters there. They are in the copy that the device reads or, if there is no
  // copy, in the master weights, which then have the same type.
  Operand updated_parameters() const {
    if (!t_.offload.optimizer) return shares_.parameters(PartOfUnit::kOwn);
    return host(t_.offload.parameters || t_.master != t_.compute ? Value::kParamHost : Value::kMaster);
  }

  // Sums the rows that the rank keeps. A gradient is added to the gradient of the next value in the residual stream, in
  // the same buffer. If the second half of a backward still reads the other gradient, the sum goes to another buffer.
  Operands sums_of_rows(const ReduceScatter& o) const {
    const Exchanged& e = exchanged(o.payload);
    const Operand from{e.sum, o.layer}, to{e.kept, o.layer};
    const bool gradient = e.kept == Value::kDMid || e.kept == Value::kDResidual;
    if (!gradient || (e.kept == Value::kDResidual && o.layer == p_.arch.layers))
      return {consumes(kFrom, from), writes(kTo, to)};
    const Operand so_far = place_after(e.kept, o.layer);
    if (t_.halves) return {consumes(kFrom, from), reads(kSoFar, so_far), writes(kTo, to)};
    return {consumes(kFrom, from), turns(kTo, so_far, to)};
  }

  static Operand hop(Value value, std::int64_t layer, std::int64_t step) { return {value, layer, Range::kAll, step}; }

  // The rank's own keys, side by side, are step 0 of the ring.
  static Operands keys_on(const RingExchange& o) {
    const Operand to = hop(Value::kKeys, o.layer, o.step);
    if (o.step > 1) return copied(hop(Value::kKeys, o.layer, o.step - 1), to);
    return {reads(kFrom, {Value::kQkv, o.layer}), writes(kOwn, hop(Value::kKeys, o.layer, 0)), writes(kTo, to)};
  }
  // A step consumes this rank's term of the gradients of the keys, adds it and passes the sum on. After as many hops as
  // there are ranks, the sum has returned to the rank of the keys, where it is stored beside the gradient of the
  // queries.
  Operands gradients_on(const RingExchange& o) const {
    const Operand came = hop(Value::kDKeysIn, o.layer, o.step), before = hop(Value::kDKeysIn, o.layer, o.step - 1);
    Operands operands{consumes(kFrom, hop(Value::kDKeys, o.layer, o.step - 1)),
                      o.step == 1 ? writes(kTo, came) : turns(kTo, before, came)};
    if (o.step < t_.context_ranks()) return operands;
    const Operand queries = hop(Value::kDQuery, o.layer, o.step - 1), all{Value::kDQkv, o.layer};
    if (!wide_partial(t_, Value::kDQuery)) {
      operands.push_back(turns(kDQkv, queries, all));
    } else {
      operands.push_back(reads(kDQkvSoFar, queries));
      operands.push_back(writes(kDQkv, all));
    }
    return operands;
  }

  const Program& p_;
  const Traits& t_;
  int unit_;
  SharesOfUnit shares_;
};

}  // namespace

std::vector<Operand> operands_needed(const Program& program, const Traits& traits, const Op& op, int unit) {
  return std::visit(OperandRules(program, traits, unit), op);
}

}  // namespace molen::program
