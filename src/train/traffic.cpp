#include "train/traffic.h"

#include "base/error.h"

namespace molen::train {

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

void require_planned(const Traffic& moved, const program::Payloads& planned) {
  std::map<std::pair<program::Axis, std::string>, program::Payload> counted;
  for (const auto& [key, t] : moved) counted[{key.first, std::string(comm::name_of(key.second))}] = {t.calls, t.bytes};
  const auto require = [](const auto& key, const program::Payload& was, const program::Payload& plan) {
    if (was != plan)
      throw Error("over {}: {} moved {} bytes in {} calls where the program has {} bytes in {}",
                  program::name_of(key.first), key.second, was.bytes, was.calls, plan.bytes, plan.calls);
  };
  for (const auto& [key, plan] : planned) require(key, counted[key], plan);
  for (const auto& [key, was] : counted)
    if (!planned.contains(key)) require(key, was, {});
}

}  // namespace molen::train
