#include "launch/traffic.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace molen::launch {

Traffic traffic_of(const exec::Executor& executor) {
  Traffic all;
  for (const program::Axis axis : program::kAllAxes)
    for (const comm::CallKind kind : comm::kAllCallKinds)
      if (const comm::Traffic moved = executor.traffic(axis, kind); moved.calls > 0) all[{axis, kind}] = moved;
  return all;
}

Traffic since(const Traffic& before, const Traffic& now) {
  Traffic all;
  for (const auto& [key, moved] : now) {
    const auto earlier = before.find(key);
    const comm::Traffic more = earlier == before.end() ? moved : moved - earlier->second;
    if (more.calls > 0) all[key] = more;
  }
  return all;
}

void require_planned(const Traffic& moved, const program::CallsByAxis& planned) {
  std::map<std::pair<program::Axis, std::string>, program::CallBytes> counted;
  for (const auto& [key, t] : moved) counted[{key.first, std::string(comm::name_of(key.second))}] = {t.calls, t.bytes};
  const auto require = [](const auto& key, const program::CallBytes& was, const program::CallBytes& plan) {
    // The bytes of an all_to_all are not compared: how many rows go to the ranks of their experts depends on the data.
    if (was.calls != plan.calls || (was.bytes != plan.bytes && key.second != comm::name_of(comm::CallKind::kAllToAll)))
      throw Error("over {}: {} moved {} bytes in {} calls where the program has {} bytes in {}",
                  program::name_of(key.first), key.second, was.bytes, was.calls, plan.bytes, plan.calls);
  };
  for (const auto& [key, plan] : planned) require(key, counted[key], plan);
  for (const auto& [key, was] : counted)
    if (!planned.contains(key)) require(key, was, {});
}

void require_planned_exchanges(const Traffic& moved, const program::CallsByAxis& planned, bool at_most,
                               comm::Communicator& world) {
  constexpr auto kCall = comm::CallKind::kAllToAll;
  std::int64_t bytes[2] = {0, 0};
  for (const auto& [key, t] : moved)
    if (key.second == kCall) bytes[0] += t.bytes;
  for (const auto& [key, plan] : planned)
    if (key.second == comm::name_of(kCall)) bytes[1] += plan.bytes;
  world.all_reduce(bytes, 2, DType::kI64, comm::Reduce::kSum);
  if (bytes[0] != bytes[1] && !(at_most && bytes[0] < bytes[1]))
    throw Error("{} moved {} bytes over all ranks where their programs have {}{}", comm::name_of(kCall), bytes[0],
                at_most ? "at most " : "", bytes[1]);
}

Json to_json(const Traffic& traffic) {
  Json rows = Json::array();
  for (const auto& [key, t] : traffic)
    rows.push_back({{"axis", program::name_of(key.first)},
                    {"op", comm::name_of(key.second)},
                    {"calls", t.calls},
                    {"payload_bytes", t.bytes},
                    {"wire_bytes", t.wire_bytes ? Json(*t.wire_bytes) : Json()}});
  return rows;
}

Communication::Communication(const exec::Executor& executor) : executor_(executor), before_(traffic_of(executor)) {}

void Communication::add(const program::Timeline& timeline, bool skipped) {
  Traffic now = traffic_of(executor_);
  const Traffic step = since(before_, now);
  before_ = std::move(now);
  if (skipped) return;
  traffic_ = step;
  if (++steps_ == 2) overlap_.clear();
  for (const program::Axis axis : program::kAllAxes) {
    const program::Overlap more = program::overlap_of(executor_.ops(), timeline, axis);
    if (more.seconds <= 0.0) continue;
    overlap_[axis].seconds += more.seconds;
    overlap_[axis].hidden_s += more.hidden_s;
  }
}

Json Communication::axes() const {
  Json rows = Json::array();
  for (const auto& [axis, sum] : overlap_)
    rows.push_back({{"axis", program::name_of(axis)}, {"seconds", seconds_of_a_step(sum)}, {"hidden", sum.share()}});
  return rows;
}

std::string Communication::text() const {
  std::string text;
  for (const auto& [axis, sum] : overlap_)
    text += fmt::format("{}{} {}, {:.1f}% hidden", text.empty() ? "" : "; ", program::name_of(axis),
                        human(Seconds(seconds_of_a_step(sum))), 100 * sum.share());
  return text;
}

double Communication::seconds_of_a_step(const program::Overlap& sum) const {
  return sum.seconds / static_cast<double>(std::max<std::int64_t>(1, steps_ - 1));
}

}  // namespace molen::launch
