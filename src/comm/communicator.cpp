#include "comm/communicator.h"

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
