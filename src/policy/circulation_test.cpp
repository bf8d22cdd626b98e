#include "policy/circulation.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace molen::policy {
namespace {

struct Network {
  struct Arc {
    int from = 0, to = 0;
    std::vector<Circulation::Piece> pieces;
    std::size_t number = 0;
  };
  int nodes = 2;
  std::vector<Arc> arcs;
};

// Bounded arcs of any cost: with all prices 0, no unbounded arc has a negative one.
rc::Gen<Network> random_network() {
  return rc::gen::exec([] {
    Network network;
    network.nodes = *rc::gen::inRange(2, 9);
    const int arcs = *rc::gen::inRange(1, 25);
    for (int a = 0; a < arcs; ++a) {
      const int from = *rc::gen::inRange(0, network.nodes);
      Network::Arc arc{from, (from + *rc::gen::inRange(1, network.nodes)) % network.nodes, {}, 0};
      std::int64_t cost = *rc::gen::inRange(-20, 20);
      const int pieces = *rc::gen::inRange(1, 4);
      for (int p = 0; p < pieces; ++p) {
        arc.pieces.push_back({*rc::gen::inRange(1, 10), cost});
        cost += *rc::gen::inRange(1, 8);
      }
      network.arcs.push_back(arc);
    }
    return network;
  });
}

// Finds cycles of negative cost among what is left of each piece (Bellman and Ford).
bool has_cheaper(const Network& network, const Circulation& circulation, std::int64_t arc_discount) {
  std::vector<std::int64_t> distance(static_cast<std::size_t>(network.nodes), 0);
  for (int round = 0; round <= network.nodes; ++round) {
    bool changed = false;
    const auto relax = [&](int from, int to, std::int64_t cost) {
      const std::int64_t through = distance[static_cast<std::size_t>(from)] + cost + arc_discount;
      if (through >= distance[static_cast<std::size_t>(to)]) return;
      distance[static_cast<std::size_t>(to)] = through;
      changed = true;
    };
    for (const auto& arc : network.arcs) {
      std::int64_t before = 0;
      const std::int64_t flow = circulation.flow(arc.number);
      for (const auto& piece : arc.pieces) {
        if (flow < before + piece.capacity) relax(arc.from, arc.to, piece.cost);
        if (flow > before) relax(arc.to, arc.from, -piece.cost);
        before += piece.capacity;
      }
    }
    if (!changed) return false;
  }
  return true;
}

RC_GTEST_PROP(Circulation, NoCycleLowersTheCostByMoreThanOneAnArc, ()) {
  Network network = *random_network();
  Circulation circulation(static_cast<std::size_t>(network.nodes));
  for (auto& arc : network.arcs) arc.number = circulation.add_arc(arc.from, arc.to, arc.pieces, false);
  circulation.solve(std::vector<std::int64_t>(static_cast<std::size_t>(network.nodes), 0));
  std::vector<std::int64_t> balance(static_cast<std::size_t>(network.nodes), 0);
  for (const auto& arc : network.arcs) {
    const std::int64_t flow = circulation.flow(arc.number);
    std::int64_t room = 0;
    for (const auto& piece : arc.pieces) room += piece.capacity;
    RC_ASSERT(flow >= 0 && flow <= room);
    balance[static_cast<std::size_t>(arc.from)] -= flow;
    balance[static_cast<std::size_t>(arc.to)] += flow;
  }
  RC_ASSERT(std::all_of(balance.begin(), balance.end(), [](std::int64_t b) { return b == 0; }));
  RC_ASSERT(!has_cheaper(network, circulation, 1));
}

// With costs that are multiples of more than the nodes, an error of 1 an arc is none: the cost is exactly the least.
RC_GTEST_PROP(Circulation, LargeCostsGiveTheLeastCost, ()) {
  Network network = *random_network();
  for (auto& arc : network.arcs)
    for (auto& piece : arc.pieces) piece.cost *= network.nodes + 1;
  Circulation circulation(static_cast<std::size_t>(network.nodes));
  for (auto& arc : network.arcs) arc.number = circulation.add_arc(arc.from, arc.to, arc.pieces, false);
  circulation.solve(std::vector<std::int64_t>(static_cast<std::size_t>(network.nodes), 0));
  RC_ASSERT(!has_cheaper(network, circulation, 0));
}

TEST(Circulation, PricesFollowTheArcsThatHaveRoom) {
  // A cycle that earns 5 a unit, of which 3 units fit; then the arc of cost -9 is full.
  Circulation circulation(3);
  const auto first = circulation.add_arc(0, 1, {{3, -9000}, {4, 4000}}, false);
  const auto second = circulation.add_arc(1, 2, {{0, 1000}}, true);
  const auto third = circulation.add_arc(2, 0, {{0, 3000}}, true);
  circulation.solve({0, 0, 0});
  EXPECT_EQ(circulation.flow(first), 3);
  EXPECT_EQ(circulation.flow(second), 3);
  EXPECT_EQ(circulation.flow(third), 3);
  const auto prices = circulation.prices_from(0);
  EXPECT_EQ(prices[0], 0);
  EXPECT_NEAR(static_cast<double>(prices[2]), -3000, 2);  // back along the third arc
  EXPECT_NEAR(static_cast<double>(prices[1]), -4000, 3);  // and the second one
}

TEST(Circulation, RefusesNumbersThatDoNotFit) {
  Circulation much(2);
  much.add_arc(0, 1, {{std::int64_t{1} << 62, -1}}, false);
  much.add_arc(1, 0, {{0, 0}}, true);
  EXPECT_THROW(much.solve({0, 0}), Error);
  // Each arc fits, and all together do not.
  Circulation many(2);
  for (int i = 0; i < 2; ++i) many.add_arc(0, 1, {{std::int64_t{1} << 59, -1}}, false);
  many.add_arc(1, 0, {{0, 0}}, true);
  EXPECT_THROW(many.solve({0, 0}), Error);
  Circulation dear(2);
  dear.add_arc(0, 1, {{1, std::int64_t{1} << 60}}, false);
  EXPECT_THROW(dear.solve({0, 0}), Error);
  Circulation bent(2);
  EXPECT_THROW(bent.add_arc(0, 1, {{1, 5}, {1, 5}}, false), Error);
  EXPECT_THROW(bent.add_arc(1, 1, {{1, 5}}, false), Error);
}

}  // namespace
}  // namespace molen::policy
