#include "comm/communicator.h"

#include <algorithm>

#include "base/error.h"
#include "comm/reduce.h"

namespace molen::comm {
namespace {

using Bytes = std::optional<std::int64_t>;

// Unknown when either operand is unknown.
Bytes sum(Bytes a, Bytes b) {
  return a && b ? Bytes(*a + *b) : std::nullopt;
}
Bytes difference(Bytes a, Bytes b) {
  return a && b ? Bytes(*a - *b) : std::nullopt;
}

}  // namespace

std::string_view name_of(CallKind kind) {
  static constexpr std::array<std::string_view, kAllCallKinds.size()> kNames{
      "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send", "recv"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::int64_t Blocks::offset(int rank) const {
  return offsets.empty() ? offset_of(counts, rank) : offsets[static_cast<std::size_t>(rank)];
}

std::int64_t Blocks::extent() const {
  std::int64_t extent = 0;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r)
    if (count(r) > 0) extent = std::max(extent, offset(r) + count(r));
  return extent;
}

std::int64_t Blocks::total(int ranks) const {
  if (!offsets.empty() && offsets.size() != counts.size())
    throw Error("{} offsets for {} counts", offsets.size(), counts.size());
  for (std::size_t r = 0; r < offsets.size(); ++r)
    if (offsets[r] < 0) throw Error("a block at element {} for rank {}", offsets[r], r);
  return total_of(counts, ranks);
}

Traffic& Traffic::operator+=(const Traffic& other) {
  calls += other.calls;
  bytes += other.bytes;
  wire_bytes = sum(wire_bytes, other.wire_bytes);
  wire_received = sum(wire_received, other.wire_received);
  return *this;
}

Traffic Traffic::operator-(const Traffic& earlier) const {
  return {calls - earlier.calls, bytes - earlier.bytes, difference(wire_bytes, earlier.wire_bytes),
          difference(wire_received, earlier.wire_received)};
}

Traffic Communicator::traffic() const {
  Traffic all{0, 0, 0, 0};
  for (const CallKind kind : kAllCallKinds) all += traffic_of(kind);
  return all;
}

}  // namespace molen::comm
