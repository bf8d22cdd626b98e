// The rules of communication, copies and casts, which change types as SPMD types do. P is partial, I invariant, R
// replicated, S sharded and V varying.
#include <fmt/format.h>

#include <algorithm>

#include "program/types/type_checker.h"

namespace molen::program {
namespace {

constexpr AxisType kPartOfUnit = sharded(Dimension::kUnit), kOwnRows = sharded(Dimension::kRows),
                   kOwnTokens = sharded(Dimension::kTokens), kOwnSamples = sharded(Dimension::kBatch),
                   kOwnExperts = sharded(Dimension::kExperts);

bool is_gradient(Payload payload) {
  return payload == Payload::kDResidual || payload == Payload::kDMid || payload == Payload::kDKeys;
}

// Returns the type of a value that is the same on all ranks: a gradient without a pending sum, or an activation whose
// gradient will consist of terms of a sum.
AxisType whole_of(Payload payload) {
  return is_gradient(payload) ? kInvariant : kReplicated;
}

}  // namespace

bool TypeChecker::both_of_parameters(const Use& from, const Use& to) {
  const bool first = of_parameters(buffer_of(from)), second = of_parameters(buffer_of(to));
  if (first && second && buffer_of(from).unit == buffer_of(to).unit) return true;
  if (first || second) error(to, 0, fmt::format("and {} are not of one unit", buffer_of(from).name));
  return false;
}

void TypeChecker::move(const Use& from, const Use& to, Axis group, AxisType before, AxisType after) {
  const auto moved = [&](std::size_t segment, MeshType type) {
    for (const mesh::Axis axis : axes(group)) {
      expect(from, segment, type, axis, {before});
      type[axis] = after;
    }
    return type;
  };
  if (both_of_parameters(from, to)) {
    for (const std::size_t segment : segments_of(from)) put(to, segment, moved(segment, found(from, segment)));
  } else {
    const MeshType type = moved(first_of(from), found(from));
    for (const std::size_t segment : segments_of(to)) put(to, segment, type);
  }
}

// P -> I; for an activation, P -> R.
void TypeChecker::rule(const AllReduce& o) {
  const Use* sum = find(Arg::kTo);
  if (!sum) return;
  const Segments segments = segments_of(*sum);
  if (segments.empty()) error(*sum, 0, "has no element of which a sum is pending over " + std::string(name_of(o.axis)));
  for (const std::size_t segment : segments) {
    MeshType type = found(*sum, segment);
    for (const mesh::Axis axis : axes(o.axis)) {
      expect(*sum, segment, type, axis, {kPartial});
      type[axis] = o.payload == Payload::kUnit ? kInvariant : whole_of(o.payload);
    }
    leave(*sum, segment, type);
  }
}

// P -> S.
void TypeChecker::rule(const ReduceScatter& o) {
  const Use *from = find(Arg::kFrom), *to = find(Arg::kTo);
  if (!from || !to) return;
  if (o.payload == Payload::kUnit)
    move(*from, *to, o.axis, kPartial, kPartOfUnit);
  else if (o.payload == Payload::kDKeys)
    scatter_keys(o, *from, *to);
  else
    scatter_rows(o, *from, *to);
}

// The sum may also include the residual gradient so far. The rank must have the same rows of that gradient.
void TypeChecker::scatter_rows(const ReduceScatter& o, const Use& from, const Use& to) {
  move(from, to, o.axis, kPartial, kOwnRows);
  const Use* so_far = find(Arg::kSoFar);
  if (!so_far) return;
  const MeshType type = found(*so_far), wanted = state(to, first_of(to)).type;
  for (const mesh::Axis axis : kMeshAxes) expect(*so_far, first_of(*so_far), type, axis, {wanted[axis]});
}

// Returns the gradients of keys to their ranks, next to the gradients of the queries, which until then have the type of
// a pending sum over context ranks.
void TypeChecker::scatter_keys(const ReduceScatter& o, const Use& from, const Use& to) {
  MeshType type = found(to);
  const MeshType keys = found(from);
  for (const mesh::Axis axis : axes(o.axis)) {
    expect(from, first_of(from), keys, axis, {kPartial});
    expect(to, first_of(to), type, axis, {kPartial});
    type[axis] = kOwnTokens;
  }
  leave(to, type);
}

// S -> R or I. V -> R when the gathered parts lie rank after rank.
void TypeChecker::rule(const AllGather& o) {
  const Use *from = find(Arg::kFrom), *to = find(Arg::kTo);
  if (!from || !to) return;
  if (o.payload == Payload::kUnit && of_directions(buffer_of(*from))) return gather_directions(o, *from, *to);
  const AxisType part = o.payload == Payload::kUnit      ? kPartOfUnit
                        : o.payload == Payload::kHead    ? kVarying
                        : o.payload == Payload::kKeys    ? kOwnTokens
                        : o.payload == Payload::kCounts  ? kOwnTokens
                        : o.payload == Payload::kOffsets ? kOwnSamples
                                                         : kOwnRows;
  move(*from, *to, o.axis, part, whole_of(o.payload));
}

// S -> I: afterwards every tensor rank has the directions of all parts of a matrix, one after another. A matrix that
// all tensor ranks hold in full already has one direction on all of them.
void TypeChecker::gather_directions(const AllGather& o, const Use& from, const Use& to) {
  if (!both_of_parameters(from, to)) return;
  for (const std::size_t segment : segments_of(from)) {
    const MeshType home = parameter_type(p_, buffer_of(from).unit, parameter_of(from.buffer, segment));
    MeshType type = found(from, segment);
    for (const mesh::Axis axis : axes(o.axis)) {
      expect(from, segment, type, axis, {home[axis] == kReplicated ? kInvariant : home[axis]});
      type[axis] = kInvariant;
    }
    leave(to, segment, type);
  }
}

// Rows go from the rank of their token to the rank of their expert, or back. Every rank has the offsets of all ranks.
void TypeChecker::rule(const AllToAll& o) {
  const Use *from = find(Arg::kFrom), *to = find(Arg::kTo), *offsets = find(Arg::kOffsets);
  if (!from || !to || !offsets) return;
  move(*from, *to, o.axis, o.home() ? kOwnExperts : kOwnSamples, o.home() ? kOwnSamples : kOwnExperts);
  const MeshType type = found(*offsets), wanted = own_rows(kReplicated, kOwnTokens, kReplicated);
  for (const mesh::Axis axis : kMeshAxes) expect(*offsets, first_of(*offsets), type, axis, {wanted[axis]});
  if (const Use* begin = find(Arg::kExpertOffsets)) leave(*begin, own_rows(kReplicated, kOwnTokens, kOwnExperts));
}

// Returns the type of a layer's input or its gradient, as stages send it to each other: all rows of the rank's tokens,
// or under sequence parallelism the rows that the rank keeps.
MeshType TypeChecker::message_type(Payload payload) const {
  return own_rows(step_->attributes.rows.sharded ? kOwnRows : whole_of(payload));
}

void TypeChecker::rule(const Send& o) {
  const Use* from = find(Arg::kFrom);
  if (!from) return;
  const MeshType type = found(*from), wanted = message_type(o.payload);
  for (const mesh::Axis axis : kMeshAxes) expect(*from, first_of(*from), type, axis, {wanted[axis]});
}

void TypeChecker::rule(const Receive& o) {
  if (const Use* to = find(Arg::kTo)) leave(*to, message_type(o.payload));
}

// Keys of another rank are varying over the ring. Their gradients are terms of a sum until they are back on the rank of
// the keys, and so is the gradient of q|k|v.
void TypeChecker::rule(const RingExchange& o) {
  const Use *from = find(Arg::kFrom), *to = find(Arg::kTo);
  if (!from || !to) return;
  if (o.payload == Payload::kDKeys) {
    pass_gradients_on(o, *from, *to);
    return;
  }
  if (const Use* own = find(Arg::kOwn)) leave(*own, found(*from));
  move(*from, *to, o.axis, o.step == 1 ? kOwnTokens : kVarying, kVarying);
}

void TypeChecker::pass_gradients_on(const RingExchange& o, const Use& from, const Use& to) {
  move(from, to, o.axis, kPartial, kPartial);
  const Use *queries = find(Arg::kDQkvSoFar), *whole = find(Arg::kDQkv);
  if (!whole) return;
  const Use& so_far = queries ? *queries : *whole;
  MeshType type = found(so_far);
  for (const mesh::Axis axis : axes(o.axis)) {
    expect(so_far, first_of(so_far), type, axis, {kPartial});
    type[axis] = kOwnTokens;
  }
  leave(*whole, type);
}

// A copy or a cast does not change the type.
void TypeChecker::copy() {
  const Use *from = find(Arg::kFrom), *to = find(Arg::kTo);
  if (!from || !to) return;
  if (both_of_parameters(*from, *to)) {
    for (const std::size_t segment : segments_of(*from)) put(*to, segment, found(*from, segment));
  } else {
    const MeshType type = found(*from);
    for (const std::size_t segment : segments_of(*to)) put(*to, segment, type);
  }
}
void TypeChecker::rule(const CopyToHost&) {
  copy();
}
void TypeChecker::rule(const CopyToDevice&) {
  copy();
}
void TypeChecker::rule(const Cast&) {
  copy();
}

void TypeChecker::rule(const ReduceScalars& o) {
  const Use* scalars = sums();
  if (!scalars) return;
  for (std::int64_t i = o.first; i < o.first + o.count && i < kNumScalars; ++i) {
    const auto segment = static_cast<std::size_t>(i);
    MeshType type = found(*scalars, segment);
    for (const mesh::Axis axis : axes(o.axis)) {
      expect(*scalars, segment, type, axis, {kPartial});
      type[axis] = kInvariant;
    }
    leave(*scalars, segment, type);
  }
}

}  // namespace molen::program
