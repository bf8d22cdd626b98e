// A circulation of least cost in a network whose arcs have convex piecewise linear costs.
//
// Cost scaling (Goldberg and Tarjan, Mathematics of Operations Research 15, 1990) with price updates (Goldberg, Journal
// of Algorithms 22, 1997) and flow that moves along short paths (Kiraly and Kovacs, Acta Universitatis Sapientiae 4,
// 2012, "partial augment-relabel"). An arc with several pieces stands for as many parallel arcs, of which the cheapest
// are filled first (Ahuja, Hochbaum and Orlin, Management Science 49, 2003).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace molen::policy {

class Circulation {
 public:
  // Flow of up to `capacity` units, each of which costs `cost`.
  struct Piece {
    std::int64_t capacity = 0, cost = 0;
  };

  explicit Circulation(std::size_t nodes);

  // Adds an arc between two different nodes and returns its number. The costs of its pieces increase. `unbounded`: the
  // last piece has room for any flow, and its capacity is not read.
  std::size_t add_arc(int from, int to, const std::vector<Piece>& pieces, bool unbounded);

  // Finds a circulation of least cost, up to 1 for each arc and unit of flow. `prices`: of each node, with which no
  // unbounded piece has a negative reduced cost (cost + price(from) - price(to)). Such prices exist unless the least
  // cost is minus infinity. Throws Error when the numbers are too large for 64 bits.
  void solve(const std::vector<std::int64_t>& prices);

  std::int64_t flow(std::size_t arc) const;
  // Returns prices with which no arc that has room for more flow has a reduced cost below -1, and none that has room
  // for less one above 1. They are the costs of cheapest paths from `root`, from which every node must be reachable, so
  // nearly all nodes are held by an arc whose reduced cost is 1 at most.
  std::vector<std::int64_t> prices_from(int root) const;

  // Pushes, relabels and nodes of price updates so far: what the time of solve() depends on.
  std::int64_t operations() const { return operations_; }

 private:
  struct Arc {
    int from = 0, to = 0;
    std::uint32_t first = 0, end = 0;  // its pieces
    std::uint32_t piece = 0;           // the last one that has flow, or `first`
    bool unbounded = false;
    std::int64_t in_piece = 0;  // the flow of `piece`
  };
  // The amount that an arc can carry more in one direction, and the cost of a unit.
  struct Room {
    std::int64_t capacity = 0, cost = 0;
  };

  Room room(const Arc& arc, bool forward) const;
  void move(Arc& arc, bool forward, std::int64_t amount);
  std::int64_t reduced(const Arc& arc, bool forward, std::int64_t cost) const;
  void bound();
  void index_ends();
  void refine(std::int64_t epsilon);
  void correct_arc(Arc& arc);
  int other_node(std::size_t end) const;
  bool admissible(std::size_t end) const;
  bool advance(int node);
  void discharge(int node, std::int64_t epsilon);
  void find_path(int node, std::int64_t epsilon);
  void push_along_path(int node);
  void relabel(int node, std::int64_t epsilon);
  void update_prices(std::int64_t epsilon);
  int find_distances(std::int64_t epsilon);
  void put(int node, int distance);
  void activate(int node);

  std::size_t nodes_;
  std::vector<Arc> arcs_;
  std::vector<Piece> pieces_;
  // The ends of arcs at each node: 2 x arc, plus 1 at the node that the arc leads to.
  std::vector<std::size_t> ends_, first_end_, current_;
  std::vector<std::size_t> path_;  // ends of the arcs along which flow moves next
  std::vector<std::int64_t> price_, excess_;
  std::vector<int> queue_;
  // For a price update: the distance of each node, the first node at each distance, and a list through the nodes of the
  // same distance.
  std::vector<int> distance_, first_at_, after_, before_;
  std::size_t head_ = 0;
  std::vector<bool> queued_;
  std::size_t relabels_ = 0;  // since the last price update
  std::int64_t operations_ = 0;
};

}  // namespace molen::policy
