#include "sim/collectives.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace molen::sim {
namespace {

bool reduces_to_all(const std::string& kind) {
  return kind == "all_reduce";
}

// Returns how often the buffer passes each rank: an all-reduce is a reduce-scatter and an all-gather.
double rounds_of_kind(const std::string& kind) {
  return reduces_to_all(kind) ? 2.0 : 1.0;
}

// Returns the seconds in which `n` ranks of `rate` move the parts of a buffer from neighbour to neighbour.
double moving(double rounds, double bytes, double n, double rate) {
  return rounds * bytes * (n - 1.0) / n / rate;
}

// All of a node's members have a ring of their own through the network, so the group uses the links of all of them.
double rate_of_rings(const CollectiveRanks& r) {
  if (r.nodes() == 1.0) return r.inside;
  return r.in_node > 1 ? std::min(r.inside, r.between * r.in_node) : r.between;
}

double ring_s(const std::string& kind, double bytes, const CollectiveRanks& r) {
  const double rounds = rounds_of_kind(kind), nodes = r.nodes();
  const double latency = (r.ranks - nodes) * r.near_s + (nodes > 1.0 ? nodes * r.far_s : 0.0);
  return r.start_s + moving(rounds, bytes, r.ranks, rate_of_rings(r)) + rounds * latency;
}

double tree_s(double bytes, const CollectiveRanks& r) {
  const double depth = std::ceil(std::log2(r.in_node)) * r.near_s + std::ceil(std::log2(r.nodes())) * r.far_s;
  return r.start_s + moving(2.0, bytes, r.ranks, rate_of_rings(r)) + 2.0 * depth;
}

// Between nodes, few bytes of an all-reduce take a tree here as well.
double levels_s(const std::string& kind, double bytes, const CollectiveRanks& r) {
  const double rounds = rounds_of_kind(kind), nodes = r.nodes(), of_node = r.in_node;
  const double within = moving(rounds, bytes, of_node, r.inside) + rounds * (of_node - 1.0) * r.near_s;
  const double steps = reduces_to_all(kind) ? std::min(nodes - 1.0, std::ceil(std::log2(nodes))) : nodes - 1.0;
  const double across = moving(rounds, bytes / of_node, nodes, r.between) + rounds * steps * r.far_s;
  return (rounds + 1.0) * r.start_s + within + across;
}

}  // namespace

double CollectiveRanks::nodes() const {
  return std::ceil(static_cast<double>(ranks) / in_node);
}

std::optional<double> seconds_of(Algorithm algorithm, const std::string& kind, double bytes, const CollectiveRanks& r) {
  const bool by_levels = reduces_to_all(kind) || kind == "reduce_scatter" || kind == "all_gather";
  switch (algorithm) {
    case Algorithm::kRing:
      return ring_s(kind, bytes, r);
    case Algorithm::kTree:
      return reduces_to_all(kind) ? std::optional(tree_s(bytes, r)) : std::nullopt;
    case Algorithm::kHierarchical:
      if (!by_levels || r.in_node < 2 || r.ranks == r.in_node || r.ranks % r.in_node != 0) return std::nullopt;
      return levels_s(kind, bytes, r);
  }
  throw Error("unknown algorithm");
}

double fastest_of(std::span<const Algorithm> algorithms, const std::string& kind, double bytes,
                  const CollectiveRanks& ranks) {
  std::optional<double> least;
  for (const Algorithm algorithm : algorithms)
    if (const auto seconds = seconds_of(algorithm, kind, bytes, ranks); seconds && (!least || *seconds < *least))
      least = seconds;
  MOLEN_CHECK(least, "none of {} algorithms does a {}", algorithms.size(), kind);
  return *least;
}

}  // namespace molen::sim
