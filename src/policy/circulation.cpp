#include "policy/circulation.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "base/error.h"

namespace molen::policy {
namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 61;
// How much smaller the error of each scaling phase is than that of the one before. The result does not depend on it;
// among 4, 8, 16 and 32, a pipeline of 32,768 tasks took least time with it.
constexpr std::int64_t kScaling = 16;
constexpr std::int64_t kNoWay = std::numeric_limits<std::int64_t>::min();
constexpr int kFar = std::numeric_limits<int>::max();
constexpr std::size_t kPath = 4;  // arcs (Kiraly and Kovacs, 2012, found that 4 does well)

std::int64_t floor_of_quotient(std::int64_t a, std::int64_t b) {  // b > 0
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

}  // namespace

Circulation::Circulation(std::size_t nodes) : nodes_(nodes) {}

std::size_t Circulation::add_arc(int from, int to, const std::vector<Piece>& pieces, bool unbounded) {
  MOLEN_CHECK(!pieces.empty(), "an arc without pieces");
  MOLEN_CHECK(from != to, "an arc from node {} to itself", from);
  if (pieces_.size() + pieces.size() > std::numeric_limits<std::uint32_t>::max())
    throw Error("a network with more than {} pieces of arcs", pieces_.size());
  for (std::size_t i = 1; i < pieces.size(); ++i)
    MOLEN_CHECK(pieces[i - 1].cost < pieces[i].cost, "the cost of an arc is not convex");
  const auto first = static_cast<std::uint32_t>(pieces_.size());
  arcs_.push_back({.from = from,
                   .to = to,
                   .first = first,
                   .end = first + static_cast<std::uint32_t>(pieces.size()),
                   .piece = first,
                   .unbounded = unbounded});
  pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
  return arcs_.size() - 1;
}

std::int64_t Circulation::flow(std::size_t arc) const {
  const Arc& a = arcs_.at(arc);
  std::int64_t flow = a.in_piece;
  for (std::size_t p = a.first; p < a.piece; ++p) flow += pieces_[p].capacity;
  return flow;
}

Circulation::Room Circulation::room(const Arc& arc, bool forward) const {
  const Piece& piece = pieces_[arc.piece];
  if (forward) {
    if (arc.in_piece < piece.capacity) return {piece.capacity - arc.in_piece, piece.cost};
    if (arc.piece + 1 == arc.end) return {};
    return {pieces_[arc.piece + 1].capacity, pieces_[arc.piece + 1].cost};
  }
  if (arc.in_piece > 0) return {arc.in_piece, -piece.cost};
  if (arc.piece == arc.first) return {};
  return {pieces_[arc.piece - 1].capacity, -pieces_[arc.piece - 1].cost};
}

// Moves at most the capacity of room().
void Circulation::move(Arc& arc, bool forward, std::int64_t amount) {
  if (forward) {
    if (arc.in_piece == pieces_[arc.piece].capacity) ++arc.piece, arc.in_piece = 0;
    arc.in_piece += amount;
  } else {
    if (arc.in_piece == 0) --arc.piece, arc.in_piece = pieces_[arc.piece].capacity;
    arc.in_piece -= amount;
  }
}

std::int64_t Circulation::reduced(const Arc& arc, bool forward, std::int64_t cost) const {
  const std::int64_t ahead = price_[static_cast<std::size_t>(arc.from)] - price_[static_cast<std::size_t>(arc.to)];
  return forward ? cost + ahead : cost - ahead;
}

// A circulation of least cost consists of cycles, each of which fills a bounded piece or empties one. So no arc needs
// more room than all bounded pieces have together.
void Circulation::bound() {
  std::int64_t bounded = 1;
  for (const Arc& arc : arcs_)
    for (std::size_t p = arc.first; p < arc.end; ++p) {
      // Prices stay within a few times the cost of a path.
      if (std::abs(pieces_[p].cost) > kLargest / 64 / static_cast<std::int64_t>(nodes_))
        throw Error("the costs of a network with {} nodes exceed 64 bits", nodes_);
      if (arc.unbounded && p + 1 == arc.end) continue;
      MOLEN_CHECK(pieces_[p].capacity > 0, "a piece of an arc without capacity");
      bounded += pieces_[p].capacity;
      if (bounded > kLargest / static_cast<std::int64_t>(arcs_.size()))
        throw Error("the capacities of a network with {} arcs exceed 64 bits", arcs_.size());
    }
  for (const Arc& arc : arcs_)
    if (arc.unbounded) pieces_[arc.end - 1].capacity = bounded;
}

void Circulation::index_ends() {
  first_end_.assign(nodes_ + 1, 0);
  for (const Arc& arc : arcs_) {
    ++first_end_[static_cast<std::size_t>(arc.from) + 1];
    ++first_end_[static_cast<std::size_t>(arc.to) + 1];
  }
  for (std::size_t n = 0; n < nodes_; ++n) first_end_[n + 1] += first_end_[n];
  ends_.resize(2 * arcs_.size());
  std::vector<std::size_t> next(first_end_.begin(), first_end_.end() - 1);
  for (std::size_t a = 0; a < arcs_.size(); ++a) {
    ends_[next[static_cast<std::size_t>(arcs_[a].from)]++] = 2 * a;
    ends_[next[static_cast<std::size_t>(arcs_[a].to)]++] = 2 * a + 1;
  }
  current_.assign(first_end_.begin(), first_end_.end() - 1);
}

void Circulation::activate(int node) {
  const auto n = static_cast<std::size_t>(node);
  if (queued_[n] || excess_[n] <= 0) return;
  queued_[n] = true;
  queue_.push_back(node);
}

// Fills the pieces of an arc whose reduced cost is negative, and empties those where it is positive. So no cycle of
// arcs with negative reduced costs is left, around which excess could move for ever; relabels leave none either.
void Circulation::correct_arc(Arc& arc) {
  for (const bool forward : {true, false})
    for (Room r = room(arc, forward); r.capacity > 0 && reduced(arc, forward, r.cost) < 0; r = room(arc, forward)) {
      move(arc, forward, r.capacity);
      excess_[static_cast<std::size_t>(forward ? arc.to : arc.from)] += r.capacity;
      excess_[static_cast<std::size_t>(forward ? arc.from : arc.to)] -= r.capacity;
    }
}

void Circulation::refine(std::int64_t epsilon) {
  for (Arc& arc : arcs_) correct_arc(arc);
  queue_.clear();
  head_ = 0;
  std::fill(queued_.begin(), queued_.end(), false);
  for (std::size_t n = 0; n < nodes_; ++n) activate(static_cast<int>(n));
  if (queue_.empty()) return;
  update_prices(epsilon);
  while (head_ < queue_.size()) {
    if (relabels_ > 2 * nodes_) update_prices(epsilon);
    if (head_ > nodes_) queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(head_)), head_ = 0;
    const int node = queue_[head_++];
    queued_[static_cast<std::size_t>(node)] = false;
    discharge(node, epsilon);
  }
}

int Circulation::other_node(std::size_t end) const {
  const Arc& arc = arcs_[end / 2];
  return end % 2 == 0 ? arc.to : arc.from;
}

bool Circulation::admissible(std::size_t end) const {
  const Arc& arc = arcs_[end / 2];
  const bool forward = end % 2 == 0;
  const Room r = room(arc, forward);
  return r.capacity > 0 && reduced(arc, forward, r.cost) < 0;
}

// Moves to the next arc along which the node can push. Returns whether there is one.
bool Circulation::advance(int node) {
  const auto n = static_cast<std::size_t>(node);
  while (current_[n] < first_end_[n + 1]) {
    if (admissible(ends_[current_[n]])) return true;
    ++current_[n];
  }
  return false;
}

// Finds a path of arcs with negative reduced costs, up to kPath arcs or to a node that lacks flow. Relabels nodes where
// it ends.
void Circulation::find_path(int node, std::int64_t epsilon) {
  path_.clear();
  for (int tip = node; path_.size() < kPath && excess_[static_cast<std::size_t>(tip)] >= 0;) {
    if (advance(tip)) {
      path_.push_back(ends_[current_[static_cast<std::size_t>(tip)]]);
      tip = other_node(path_.back());
      continue;
    }
    relabel(tip, epsilon);
    current_[static_cast<std::size_t>(tip)] = first_end_[static_cast<std::size_t>(tip)];
    if (path_.empty()) continue;  // a node with excess, which can push now
    tip = other_node(path_.back() ^ 1);
    path_.pop_back();
  }
}

// Pushes along each arc of the path as much as it has room for and its node has in excess.
void Circulation::push_along_path(int node) {
  for (const std::size_t end : path_) {
    const auto from = static_cast<std::size_t>(node);
    const int to = other_node(end);
    Arc& arc = arcs_[end / 2];
    const bool forward = end % 2 == 0;
    const std::int64_t amount = std::min(excess_[from], room(arc, forward).capacity);
    move(arc, forward, amount);
    ++operations_;
    excess_[from] -= amount;
    excess_[static_cast<std::size_t>(to)] += amount;
    activate(to);
    node = to;
  }
}

void Circulation::discharge(int node, std::int64_t epsilon) {
  while (excess_[static_cast<std::size_t>(node)] > 0) {
    find_path(node, epsilon);
    push_along_path(node);
  }
}

// Lowers the price of a node until it can push along an arc.
void Circulation::relabel(int node, std::int64_t epsilon) {
  const auto n = static_cast<std::size_t>(node);
  std::int64_t best = kNoWay, into = price_[n];
  for (std::size_t e = first_end_[n]; e < first_end_[n + 1]; ++e) {
    const Arc& arc = arcs_[ends_[e] / 2];
    const bool forward = ends_[e] % 2 == 0;
    const std::int64_t other = price_[static_cast<std::size_t>(other_node(ends_[e]))];
    if (const Room out = room(arc, forward); out.capacity > 0) best = std::max(best, other - out.cost);
    if (const Room in = room(arc, !forward); in.capacity > 0) into = std::min(into, other + in.cost);
  }
  ++relabels_;
  ++operations_;
  if (best != kNoWay) {
    price_[n] = best - epsilon;
    return;
  }
  // Excess came along an arc, so there is a way back for it. Without any, no path may lead here.
  MOLEN_CHECK(excess_[n] == 0, "the excess of a node has no way out");
  price_[n] = into;
}

// Moves a node to the list of a distance.
void Circulation::put(int node, int distance) {
  const auto n = static_cast<std::size_t>(node);
  if (distance_[n] != kFar) {
    const int before = before_[n], after = after_[n];
    (before >= 0 ? after_[static_cast<std::size_t>(before)] : first_at_[static_cast<std::size_t>(distance_[n])]) =
        after;
    if (after >= 0) before_[static_cast<std::size_t>(after)] = before;
  }
  distance_[n] = distance;
  if (static_cast<std::size_t>(distance) >= first_at_.size())
    first_at_.resize(static_cast<std::size_t>(distance) + 1, -1);
  int& first = first_at_[static_cast<std::size_t>(distance)];
  before_[n] = -1;
  after_[n] = first;
  if (first >= 0) before_[static_cast<std::size_t>(first)] = node;
  first = node;
}

// Finds the distance of each node that has excess to the nearest one that lacks flow, and those of nodes on the way.
// Returns the largest one; nodes that are farther away keep kFar or a larger number.
int Circulation::find_distances(std::int64_t epsilon) {
  const auto farthest = static_cast<int>(4 * nodes_);
  std::size_t active = 0;
  for (std::size_t n = 0; n < nodes_; ++n) {
    if (excess_[n] > 0) ++active;
    if (excess_[n] < 0) put(static_cast<int>(n), 0);
  }
  for (int at = 0; at < static_cast<int>(first_at_.size()); ++at)
    while (first_at_[static_cast<std::size_t>(at)] >= 0) {
      const auto to = static_cast<std::size_t>(first_at_[static_cast<std::size_t>(at)]);
      first_at_[static_cast<std::size_t>(at)] = after_[to];  // takes the node out; its distance is final
      if (after_[to] >= 0) before_[static_cast<std::size_t>(after_[to])] = -1;
      for (std::size_t e = first_end_[to]; e < first_end_[to + 1]; ++e) {
        const Arc& arc = arcs_[ends_[e] / 2];
        const bool forward = ends_[e] % 2 == 1;  // towards `to`
        const int from = forward ? arc.from : arc.to;
        const int known = distance_[static_cast<std::size_t>(from)];
        if (known <= at) continue;
        const Room r = room(arc, forward);
        if (r.capacity == 0) continue;
        const std::int64_t steps = floor_of_quotient(reduced(arc, forward, r.cost), epsilon) + 1;
        if (steps <= farthest - at && at + static_cast<int>(steps) < known) put(from, at + static_cast<int>(steps));
      }
      if (excess_[to] > 0 && --active == 0) return at;
    }
  return farthest;
}

// Lowers the prices of all nodes by epsilon times their distance to the nearest node that lacks flow, so that excess
// finds its way there. An arc of reduced cost r has the length floor(r / epsilon) + 1 >= 0, which keeps its reduced
// cost at -epsilon at least.
void Circulation::update_prices(std::int64_t epsilon) {
  relabels_ = 0;
  distance_.assign(nodes_, kFar);
  after_.resize(nodes_);
  before_.resize(nodes_);
  first_at_.assign(1, -1);
  const int reached = find_distances(epsilon);
  for (std::size_t n = 0; n < nodes_; ++n) {
    price_[n] -= epsilon * std::min(distance_[n], reached);
    current_[n] = first_end_[n];
  }
  operations_ += static_cast<std::int64_t>(nodes_);
}

void Circulation::solve(const std::vector<std::int64_t>& prices) {
  MOLEN_CHECK(prices.size() == nodes_, "{} prices for {} nodes", prices.size(), nodes_);
  bound();
  index_ends();
  price_ = prices;
  excess_.assign(nodes_, 0);
  queued_.assign(nodes_, false);
  std::int64_t epsilon = 1;
  for (const Arc& arc : arcs_) {
    const std::int64_t worst = -reduced(arc, true, pieces_[arc.first].cost);
    MOLEN_CHECK(!arc.unbounded || reduced(arc, true, pieces_[arc.end - 1].cost) >= 0,
                "the prices leave an unbounded arc with a negative cost");
    epsilon = std::max(epsilon, worst);
  }
  while (epsilon > 1) {
    epsilon = std::max<std::int64_t>(1, epsilon / kScaling);
    refine(epsilon);
  }
}

std::vector<std::int64_t> Circulation::prices_from(int root) const {
  // Reduced costs are at least -1, so with 1 more they are lengths.
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> length(nodes_, kNone);
  using Entry = std::pair<std::int64_t, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  length[static_cast<std::size_t>(root)] = 0;
  queue.emplace(0, root);
  std::size_t reached = 0;
  while (!queue.empty()) {
    const auto [at, node] = queue.top();
    queue.pop();
    const auto n = static_cast<std::size_t>(node);
    if (at != length[n]) continue;
    ++reached;
    for (std::size_t e = first_end_[n]; e < first_end_[n + 1]; ++e) {
      const Arc& arc = arcs_[ends_[e] / 2];
      const bool forward = ends_[e] % 2 == 0;
      const Room r = room(arc, forward);
      if (r.capacity == 0) continue;
      const std::int64_t more = reduced(arc, forward, r.cost) + 1;
      MOLEN_CHECK(more >= 0, "the circulation has not the least cost");
      const int to = other_node(ends_[e]);
      if (at + more >= length[static_cast<std::size_t>(to)]) continue;
      length[static_cast<std::size_t>(to)] = at + more;
      queue.emplace(at + more, to);
    }
  }
  MOLEN_CHECK(reached == nodes_, "{} of {} nodes are reachable", reached, nodes_);
  const std::int64_t of_root = price_[static_cast<std::size_t>(root)];
  for (std::size_t n = 0; n < nodes_; ++n) length[n] += price_[n] - of_root;
  return length;
}

}  // namespace molen::policy
