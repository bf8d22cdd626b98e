#include "train/observe/phase_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/error.h"
#include "program/parts/part.h"
#include "program/values/of_op.h"

namespace molen::train {
namespace {

constexpr const char *kEmbed = "embed", *kFinal = "final";

std::string group_of_layer(const program::Program& program, std::int64_t layer) {
  const std::int64_t layers = program.arch.layers, unit = std::max<std::int64_t>(program.setting.unit_layers, 1);
  if (layer < 0) return kEmbed;
  if (layer >= layers) return kFinal;
  const std::int64_t least = (layers + kLayerGroups - 1) / kLayerGroups;
  const std::int64_t size = (least + unit - 1) / unit * unit;
  const std::int64_t first = layer / size * size, last = std::min(first + size, layers) - 1;
  return first == last ? fmt::format("layer {}", first) : fmt::format("layers {}-{}", first, last);
}

std::string group_of_part(const program::Program& program, const program::Compute& part) {
  if (part.layer >= 0) return group_of_layer(program, part.layer);
  return program::declaration_of(part.part).standing == program::Standing::kBefore ? kEmbed : kFinal;
}

// Returns the layer that an exchange of rows counts for. The value x.L is the input of layer L and what layer L-1
// makes; its gradient is what layer L makes. So what is summed or sent is of the layer that made it, and what is
// gathered or received is of the layer that needs it.
template <class O>
std::int64_t layer_of_exchange(const O& op) {
  constexpr bool made = std::is_same_v<O, program::AllReduce> || std::is_same_v<O, program::ReduceScatter> ||
                        std::is_same_v<O, program::Send>;
  constexpr bool needed = std::is_same_v<O, program::AllGather> || std::is_same_v<O, program::Receive>;
  if (op.payload == program::Payload::kResidual && made) return op.layer - 1;
  if (op.payload == program::Payload::kDResidual && needed) return op.layer - 1;
  return op.layer;
}

std::string group_of_unit(const program::Program& program, const program::Step& step) {
  const int unit = program::unit_of_step(program, step);
  if (unit < 0) return "other";
  const program::Unit& u = program.units.at(static_cast<std::size_t>(unit));
  return u.of_layers() ? group_of_layer(program, u.first) : u.name;
}

std::string group_of(const program::Program& program, const program::Step& step) {
  return std::visit(
      [&](const auto& op) -> std::string {
        using O = std::decay_t<decltype(op)>;
        if constexpr (std::is_same_v<O, program::Compute>) {
          return group_of_part(program, op);
        } else if constexpr (requires { op.payload, op.layer; }) {
          if (op.payload == program::Payload::kUnit) return group_of_unit(program, step);
          if (op.payload == program::Payload::kHead) return kFinal;
          return group_of_layer(program, layer_of_exchange(op));
        } else {
          return group_of_unit(program, step);
        }
      },
      step.op);
}

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// Seconds or joules by the name of a part.
using ByName = std::map<std::string, double>;

double sum_of(const ByName& parts) {
  double sum = 0.0;
  for (const auto& [name, value] : parts) sum += value;
  return sum;
}

// Adds the seconds that a rank has of a phase in one of its tables.
void add(ByName& sum, const Json& table, const std::string& phase) {
  if (const auto parts = table.find(phase); parts != table.end())
    for (const auto& [name, s] : parts->items()) sum[name] += s.get<double>();
}

// Returns joules in proportion to seconds; nothing where there are none.
ByName shares(const ByName& parts, double joules) {
  const double all = sum_of(parts);
  ByName divided;
  if (!(all > 0)) return divided;
  for (const auto& [name, s] : parts)
    if (s > 0) divided[name] = joules * (s / all);
  return divided;
}

std::vector<std::string> phases_of(std::string_view entry) {
  std::vector<std::string> phases;
  for (std::size_t at = 0; at <= entry.size();) {
    const std::size_t end = std::min(entry.find('+', at), entry.size());
    phases.emplace_back(entry.substr(at, end - at));
    at = end + 1;
  }
  return phases;
}

}  // namespace

OpParts parts_of(const program::Program& program, const program::Step& step) {
  OpParts parts{energy_phase_of(step), program::kind_of(step.op), group_of(program, step)};
  const std::string phase = energy_phases().at(static_cast<std::size_t>(parts.phase)) + " ";
  if (parts.kind.starts_with(phase)) parts.kind.erase(0, phase.size());
  return parts;
}

void PhaseParts::add_step(const program::Program& program, const std::vector<program::Expanded>& ops,
                          const std::vector<std::int64_t>& op_ns) {
  if (part_of_.empty()) {
    stage_ = program.setting.pipeline.stage;
    std::map<const program::Step*, std::size_t> known;  // micro-batches repeat the steps of a body
    for (const program::Expanded& op : ops) {
      const auto [at, is_new] = known.emplace(op.step, 0);
      if (is_new) {
        const OpParts named = parts_of(program, *op.step);
        at->second = static_cast<std::size_t>(std::ranges::find(parts_, named) - parts_.begin());
        if (at->second == parts_.size()) parts_.push_back(named);
      }
      part_of_.push_back(at->second);
    }
    ns_.resize(parts_.size());
  }
  MOLEN_CHECK(op_ns.size() == part_of_.size(), "times of {} ops for a program of {}", op_ns.size(), part_of_.size());
  for (std::size_t i = 0; i < op_ns.size(); ++i) ns_[part_of_[i]] += op_ns[i];
}

Json PhaseParts::to_json() const {
  std::map<std::string, ByName> ops, layers;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::string& phase = energy_phases().at(static_cast<std::size_t>(parts_[i].phase));
    ops[phase][parts_[i].kind] += seconds(ns_[i]);
    layers[phase][parts_[i].group] += seconds(ns_[i]);
  }
  ByName phases;
  for (std::size_t i = 0; i < phase_ns_.size(); ++i)
    if (phase_ns_[i] > 0) phases[energy_phases()[i]] = seconds(phase_ns_[i]);
  return {{"stage", stage_}, {"phases", phases}, {"ops", ops}, {"layers", layers}};
}

void divide_phases(Json& account, const std::vector<Json>& ranks) {
  ByName layers, stages;
  for (auto& [name, entry] : account["entries"].items()) {
    const double joules = entry["joules"].get<double>();
    ByName of_ops, of_layers, of_stages, without_ops;
    for (const Json& rank : ranks) {
      double& stage = of_stages[std::to_string(rank["stage"].get<int>())];
      for (const std::string& phase : phases_of(name)) {
        const double in_phase = rank["phases"].value(phase, 0.0);
        stage += in_phase;
        add(of_ops, rank["ops"], phase);
        add(of_layers, rank["layers"], phase);
        if (!rank["ops"].contains(phase)) without_ops[phase] += in_phase;
      }
    }
    for (const auto& [stage, j] : shares(of_stages, joules)) stages[stage] += j;
    if (sum_of(of_ops) <= 0.0) continue;
    for (const auto& [phase, s] : without_ops) of_ops[phase] += s, of_layers["other"] += s;
    entry["ops"] = shares(of_ops, joules);
    for (const auto& [group, j] : shares(of_layers, joules)) layers[group] += j;
  }
  account["layers"] = layers;
  account["stages"] = stages;
}

}  // namespace molen::train
