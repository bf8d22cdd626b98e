// Simulates the messages of our own collectives without MPI, on worlds of up to 17 ranks.
#include "comm/mpi/routes.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <numeric>

#include "comm/reduce.h"

namespace molen::comm::mpi {
namespace {

using Counts = std::vector<std::int64_t>;
using Buffer = std::vector<std::int64_t>;  // element i of the whole holds i once it has arrived, -1 before

std::int64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}
std::size_t unsign(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

Buffer with_own_block(const Counts& counts, int rank) {
  Buffer buffer(unsign(sum(counts)), -1);
  const std::int64_t first = offset_of(counts, rank);
  for (std::int64_t i = first; i < first + counts[unsign(rank)]; ++i) buffer[unsign(i)] = i;
  return buffer;
}

// Simulates a route and returns the number of elements that each rank sent. Fails when a message is not the next one
// that its receiver expects from that rank, or is sent before its elements have arrived.
std::vector<std::int64_t> play(const Counts& counts, const std::function<Route(int)>& route) {
  const int n = static_cast<int>(counts.size());
  struct Rank {
    Route route;
    Buffer buffer;
    std::size_t sent = 0, arrived = 0;
    std::map<int, std::deque<std::pair<Piece, Buffer>>> waiting;  // on the way to this rank, by sender
  };
  std::vector<Rank> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back({route(r), with_own_block(counts, r), 0, 0, {}});
  std::vector<std::int64_t> elements(unsign(n));
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < n; ++r) {
      Rank& me = ranks[unsign(r)];
      if (me.sent < me.route.out.size() && me.sent < me.route.ready + me.arrived) {
        const Piece piece = me.route.out[me.sent++];
        EXPECT_GT(piece.count, 0);
        EXPECT_NE(piece.peer, r);
        Buffer message(me.buffer.begin() + piece.first, me.buffer.begin() + piece.first + piece.count);
        EXPECT_EQ(std::count(message.begin(), message.end(), -1), 0) << "rank " << r << " sends what it has not";
        ranks[unsign(piece.peer)].waiting[r].emplace_back(piece, std::move(message));
        elements[unsign(r)] += piece.count;
        moved = true;
      }
      if (me.arrived == me.route.in.size()) continue;
      const Piece expected = me.route.in[me.arrived];
      auto& box = me.waiting[expected.peer];
      if (box.empty()) continue;
      const auto [piece, message] = box.front();
      box.pop_front();
      ++me.arrived;
      EXPECT_TRUE(expected.first == piece.first && expected.count == piece.count);
      std::copy(message.begin(), message.end(), me.buffer.begin() + piece.first);
      moved = true;
    }
  }
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.arrived, rank.route.in.size());
    EXPECT_EQ(rank.sent, rank.route.out.size());
    for (const auto& [from, box] : rank.waiting) EXPECT_TRUE(box.empty()) << "nobody receives from rank " << from;
    for (std::size_t i = 0; i < rank.buffer.size(); ++i) EXPECT_EQ(rank.buffer[i], static_cast<std::int64_t>(i));
  }
  return elements;
}
std::vector<std::int64_t> play_ring(const Counts& counts, std::int64_t longest) {
  return play(counts, [&](int rank) {
    const Route ring = ring_of(counts, rank, longest);
    for (const Piece& piece : ring.out) EXPECT_LE(piece.count, longest);
    return ring;
  });
}
std::vector<std::int64_t> play_pairs(const Counts& counts) {
  return play(counts, [&](int rank) { return pairs_of(counts, rank); });
}

// Simulates the rounds, in which all ranks send at once, in the same way.
std::vector<std::int64_t> play_rounds(const Counts& counts) {
  const int n = static_cast<int>(counts.size());
  std::vector<std::vector<Round>> rounds;
  std::vector<Buffer> rotated;
  for (int r = 0; r < n; ++r) {
    rounds.push_back(rounds_of(counts, r));
    Buffer own(unsign(counts[unsign(r)]));
    std::iota(own.begin(), own.end(), offset_of(counts, r));
    rotated.push_back(std::move(own));
  }
  std::vector<std::int64_t> elements(unsign(n));
  for (std::size_t k = 0; k < rounds[0].size(); ++k) {
    const std::vector<Buffer> before = rotated;
    for (int r = 0; r < n; ++r) {
      const Round& mine = rounds[unsign(r)][k];
      const Round& theirs = rounds[unsign(mine.from)][k];
      EXPECT_EQ(theirs.to, r);
      EXPECT_EQ(theirs.out, mine.in);
      const Buffer& source = before[unsign(mine.from)];
      EXPECT_LE(mine.in, static_cast<std::int64_t>(source.size()));
      if (mine.in > static_cast<std::int64_t>(source.size())) return elements;
      rotated[unsign(r)].insert(rotated[unsign(r)].end(), source.begin(), source.begin() + mine.in);
      elements[unsign(r)] += mine.out;
    }
  }
  for (int r = 0; r < n; ++r) {
    Buffer whole(unsign(sum(counts)));
    std::iota(whole.begin(), whole.end(), 0);
    std::rotate(whole.begin(), whole.begin() + offset_of(counts, r), whole.end());
    EXPECT_EQ(rotated[unsign(r)], whole) << "rank " << r << " of " << n;
  }
  return elements;
}

TEST(Routes, EqualBlocksSendTheTextbooksShare) {
  for (std::int64_t n = 1; n <= 17; ++n) {
    const Counts counts(unsign(n), 12);
    const std::vector<std::int64_t> share(unsign(n), (n - 1) * 12);  // (n-1)/n of n blocks
    EXPECT_EQ(play_ring(counts, 5), share) << n;
    EXPECT_EQ(play_pairs(counts), share) << n;
    EXPECT_EQ(play_rounds(counts), share) << n;
    EXPECT_EQ(rounds_of(counts, 0).size(), unsign(static_cast<std::int64_t>(std::ceil(std::log2(double(n))))));
  }
}

TEST(Routes, OneBlockAroundTheRingIsABroadcast) {
  for (std::int64_t n = 1; n <= 9; ++n)
    for (std::int64_t root = 0; root < n; ++root) {
      Counts counts(unsign(n));
      counts[unsign(root)] = 23;
      std::vector<std::int64_t> expected(unsign(n), 23);
      expected[unsign((root + n - 1) % n)] = 0;  // the last rank of the ring sends nothing
      EXPECT_EQ(play_ring(counts, 4), expected);
    }
}

RC_GTEST_PROP(Routes, AnyCountsReachAll, ()) {
  const int n = *rc::gen::inRange(1, 12);
  const Counts counts = *rc::gen::container<Counts>(unsign(n), rc::gen::inRange<std::int64_t>(0, 30));
  const auto ring = play_ring(counts, *rc::gen::inRange<std::int64_t>(1, 40)), rounds = play_rounds(counts);
  RC_ASSERT(sum(ring) == (n - 1) * sum(counts));
  RC_ASSERT(sum(rounds) == (n - 1) * sum(counts));
  const auto pairs = play_pairs(counts);
  for (int r = 0; r < n; ++r) {
    RC_ASSERT(ring[unsign(r)] == sum(counts) - counts[unsign((r + 1) % n)]);
    RC_ASSERT(pairs[unsign(r)] == (n - 1) * counts[unsign(r)]);
  }
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(Routes, ATreeReachesEachRankOnceFromItsParent) {
  for (int n = 1; n <= 17; ++n)
    for (int root = 0; root < n; ++root) {
      std::vector<int> parents(unsign(n), -1);
      for (int r = 0; r < n; ++r)
        for (const int child : tree_of(n, r, root).children) {
          EXPECT_EQ(parents[unsign(child)], -1) << "two parents";
          parents[unsign(child)] = r;
        }
      for (int r = 0; r < n; ++r) {
        EXPECT_EQ(tree_of(n, r, root).parent, parents[unsign(r)]) << r << " of " << n << " from " << root;
        int steps = 0;
        for (int at = r; at != root && at >= 0 && steps <= n; at = parents[unsign(at)]) ++steps;
        EXPECT_LE(double(steps), std::ceil(std::log2(double(n)))) << r << " of " << n << " from " << root;
      }
      EXPECT_EQ(parents[unsign(root)], -1);
    }
}

}  // namespace
}  // namespace molen::comm::mpi
