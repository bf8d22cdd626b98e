#include "program/layout.h"

#include <algorithm>

#include "base/error.h"
#include "program/program.h"

namespace molen::program {
namespace {

constexpr std::int64_t kAlign = 16;  // elements: 64 bytes in fp32

// Parameters that continue the matrix or vector before them.
bool continues(arch::Role role) {
  using arch::Role;
  return role == Role::kKey || role == Role::kValue || role == Role::kKeyBias || role == Role::kValueBias ||
         role == Role::kUp;
}

bool starts_fused(const std::vector<arch::Parameter>& parameters, std::size_t i) {
  // `up` follows `gate` only in gated models.
  return continues(parameters[i].role) && i > 0 &&
         !(parameters[i].role == arch::Role::kUp && parameters[i - 1].role != arch::Role::kGate);
}

std::string unit_name(const arch::Parameter& p) {
  if (p.layer >= 0) return "layer." + std::to_string(p.layer);
  return p.role == arch::Role::kEmbedding || p.role == arch::Role::kPositions ? "embed" : "final";
}

std::int64_t align(std::int64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

std::vector<Unit> make_units(const arch::Architecture& arch, const std::vector<arch::Parameter>& parameters) {
  std::vector<Unit> units;
  const auto unit_of = [&](const std::string& name, std::int64_t layer) -> Unit& {
    for (auto& u : units)
      if (u.name == name) return u;
    units.push_back(Unit{name, layer, 0, {}});
    return units.back();
  };
  unit_of("embed", -1);
  for (std::int64_t l = 0; l < arch.layers; ++l) unit_of("layer." + std::to_string(l), l);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& p = parameters[i];
    Unit& unit = unit_of(unit_name(p), p.layer);
    if (!starts_fused(parameters, i)) unit.elements = align(unit.elements);
    unit.entries.push_back({static_cast<int>(i), unit.elements});
    unit.elements += p.elements();
  }
  for (auto& u : units) u.elements = align(u.elements);
  // A tied model with a plain final norm has nothing outside embedding and layers.
  std::erase_if(units, [](const Unit& u) { return u.entries.empty(); });
  return units;
}

std::pair<std::int64_t, std::int64_t> owned_range(std::int64_t elements, int rank, int ranks) {
  MOLEN_CHECK(rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  const std::int64_t blocks = align(elements) / kAlign;
  const std::int64_t base = blocks / ranks, extra = blocks % ranks;
  const std::int64_t first = rank * base + std::min<std::int64_t>(rank, extra);
  const std::int64_t last = first + base + (rank < extra ? 1 : 0);
  return {std::min(first * kAlign, elements), std::min(last * kAlign, elements)};
}

namespace {

using Bounds = std::pair<std::int64_t, std::int64_t>;

// Part `rank` of `ranks` of a range.
Bounds part_of(Bounds range, int rank, int ranks) {
  const auto [first, last] = owned_range(range.second - range.first, rank, ranks);
  return {range.first + first, range.first + last};
}

}  // namespace

Bounds unit_tile(const Setting& s, const mesh::PerAxis& at, std::int64_t elements) {
  const int shard = at[mesh::Axis::kDpShard], replica = at[mesh::Axis::kDpReplicate];
  // Below stage 2 every rank holds all of a unit; by its number in dp, so that stage 1 saves what it owns.
  if (s.zero < 2) return owned_range(elements, replica * s.shards() + shard, s.data_ranks());
  return part_of(owned_range(elements, shard, s.shards()), replica, s.replicas());
}

Bounds unit_range(const Setting& s, const mesh::PerAxis& at, std::int64_t elements, Range range) {
  if (range == Range::kAll || s.zero == 0 || (range == Range::kShard && s.zero == 1)) return {0, elements};
  if (s.zero == 1 || (range == Range::kOwn && s.own_over_dp)) return unit_tile(s, at, elements);
  return owned_range(elements, at[mesh::Axis::kDpShard], s.shards());
}

}  // namespace molen::program
