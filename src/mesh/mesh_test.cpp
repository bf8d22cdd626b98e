#include "mesh/mesh.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <utility>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::mesh {
namespace {

// Returns a random mesh of sizes 1 to 3 along each axis, with the axes in a random order.
Mesh any_mesh() {
  PerAxis sizes;
  int world = 1;
  for (const Axis axis : kDefaultOrder) world *= sizes[axis] = *rc::gen::inRange(1, 4);
  auto order = kDefaultOrder;
  for (std::size_t i = kAxes - 1; i > 0; --i)
    std::swap(order[i], order[static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(i) + 1))]);
  return Mesh(sizes, world, order);
}

Axes any_axes() {
  std::vector<Axis> chosen;
  for (const Axis axis : kDefaultOrder)
    if (*rc::gen::arbitrary<bool>()) chosen.push_back(axis);
  switch (chosen.size()) {
    case 0:
      return {};
    case 1:
      return {chosen[0]};
    case 2:
      return {chosen[0], chosen[1]};
    case 3:
      return {chosen[0], chosen[1], chosen[2]};
    case 4:
      return {chosen[0], chosen[1], chosen[2], chosen[3]};
    default:
      return Axes{}.complement();
  }
}

std::string usage_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& e) {
    return GoldenMessages::note(e.what());
  }
  return "";
}

TEST(Mesh, TensorParallelIsInnermost) {
  const Mesh m({{2, 1, 3, 1, 1, 4}}, 24);
  EXPECT_EQ(m.group(5, Axis::kTp), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(m.group(5, Axis::kDpShard), (std::vector<int>{1, 5, 9}));
  EXPECT_EQ(m.group(5, Axis::kPp), (std::vector<int>{5, 17}));
  EXPECT_EQ(m.group(17, {Axis::kPp, Axis::kDpShard}), (std::vector<int>{1, 5, 9, 13, 17, 21}));
  EXPECT_EQ(m.coordinates(23), (PerAxis{{1, 0, 2, 0, 0, 3}}));
  EXPECT_EQ(m.text(), "pp 2 x dp_shard 3 x tp 4");
  EXPECT_EQ(Mesh(kOne, 1).text(), "1 rank");
}

TEST(Mesh, AnotherOrder) {
  const Mesh m({{2, 1, 3, 1, 1, 1}}, 6, parse_order("dp_shard, pp,dp_replicate,cp,tp"));
  EXPECT_EQ(m.group(3, Axis::kPp), (std::vector<int>{2, 3}));
  EXPECT_EQ(m.group(3, Axis::kDpShard), (std::vector<int>{1, 3, 5}));
}

TEST(Mesh, WrongSizesAreExplained) {
  EXPECT_EQ(
      usage_error([] {
        Mesh({{2, 1, 1, 1, 1, 2}}, 12);
      }),
      "the mesh pp 2 x dp_replicate 1 x dp_shard 1 x ep 1 x cp 1 x tp 2 = 4 does not make 12 ranks; with dp_shard 3 it "
      "does");
  EXPECT_EQ(usage_error([] {
              Mesh({{2, 1, 3, 1, 1, 1}}, 24);
            }),
            "the mesh pp 2 x dp_replicate 1 x dp_shard 3 x ep 1 x cp 1 x tp 1 = 6 does not make 24 ranks; with "
            "dp_shard 12 it "
            "does");
  EXPECT_EQ(usage_error([] {
              Mesh({{2, 1, 1, 1, 1, 2}}, 6);
            }),
            "the mesh pp 2 x dp_replicate 1 x dp_shard 1 x ep 1 x cp 1 x tp 2 = 4 does not make 6 ranks");
  EXPECT_EQ(usage_error([] { Mesh({{2, 1, 1, 1, 1, 0}}, 2); }), "mesh axis tp has size 0; it must be at least 1");
  EXPECT_EQ(usage_error([] {
              Mesh({{1, -2, 1, 1, 1, 1}}, 2);
            }),
            "mesh axis dp_replicate has size -2; it must be at least 1");
  // A product that is too large does not wrap to 0 or to a size that fits.
  EXPECT_EQ(
      usage_error([] {
        Mesh({{65536, 65536, 1, 1, 1, 1}}, 1);
      }),
      "the mesh pp 65536 x dp_replicate 65536 x dp_shard 1 x ep 1 x cp 1 x tp 1 = 2147483648 does not make 1 ranks");
  const int most = 2147483647;
  EXPECT_EQ(usage_error([] {
              Mesh({{most, most, most, most, most, most}}, most);
            }),
            "the mesh pp 2147483647 x dp_replicate 2147483647 x dp_shard 2147483647 x ep 2147483647 x cp 2147483647 x "
            "tp 2147483647 = "
            "2147483648 does not make 2147483647 ranks");
  EXPECT_EQ(usage_error([] { Mesh({{most, 1, 1, 1, 1, 1}}, most); }), "");
  EXPECT_EQ(usage_error([] { Mesh(kOne, 0); }), "a world of 0 ranks");
  // No dp_shard mends a mesh of twice as many ranks as the world, or a world of 4/3 as many ranks as the mesh.
  for (const auto& [sizes, world] : {std::pair{PerAxis{{2, 1, 1, 1, 1, 4}}, 4}, {PerAxis{{3, 1, 1, 1, 1, 1}}, 4}}) {
    const std::string said = usage_error([&, &s = sizes, w = world] { Mesh(s, w); });
    EXPECT_TRUE(said.ends_with("does not make 4 ranks")) << said;
  }
}

TEST(Mesh, RanksOutsideAreRefused) {
  const GoldenMessages golden;
  const Mesh m({{2, 1, 1, 1, 1, 2}}, 4);
  for (const int rank : {-1, 4}) EXPECT_NOTED(m.coordinates(rank), Error) << rank;
  EXPECT_NOTED(m.rank_of({{2, 0, 0, 0, 0, 0}}), Error);
  EXPECT_NOTED(m.rank_of({{0, 0, 0, 0, 0, -1}}), Error);
  EXPECT_EQ(m.rank_of({{1, 0, 0, 0, 0, 1}}), 3);
}

TEST(Mesh, WrongOrdersAreExplained) {
  EXPECT_EQ(usage_error([] { parse_order("pp,dp_replicate,dp_shrd,cp,tp"); }),
            "no mesh axis 'dp_shrd'; did you mean 'dp_shard'?");
  EXPECT_EQ(usage_error([] { parse_order("pp,tp"); }),
            "order of mesh axes: 'pp,tp' names 2 of 6; write all, outermost first, as in "
            "'pp,dp_replicate,dp_shard,ep,cp,tp'");
  EXPECT_EQ(usage_error([] { parse_order("pp,pp,dp_shard,cp,tp"); }),
            "order of mesh axes: pp must be named exactly once");
  EXPECT_EQ(text_of(parse_order(" tp,\tcp , dp_shard,dp_replicate,pp\t")), "tp,cp,dp_shard,dp_replicate,pp");
  EXPECT_EQ(parse_order("pp,dp_replicate,dp_shard,cp,tp"), kDefaultOrder) << "expert ranks lie right within dp_shard";
  EXPECT_EQ(text_of(kDefaultOrder), "pp,dp_replicate,dp_shard,cp,tp");
  EXPECT_EQ(text_of(parse_order("ep,pp,dp_replicate,dp_shard,cp,tp")), "ep,pp,dp_replicate,dp_shard,cp,tp");
  for (const char* bad : {"", ",", "pp,dp_replicate,dp_shard,cp,tp,", ",,,,"})
    EXPECT_NE(usage_error([&] { parse_order(bad); }), "") << bad;
}

RC_GTEST_PROP(Mesh, CoordinatesAndRanksAreInverse, ()) {
  const Mesh m = any_mesh();
  RC_ASSERT(m.size(Axes{}.complement()) == m.world());
  for (int r = 0; r < m.world(); ++r) RC_ASSERT(m.rank_of(m.coordinates(r)) == r);
}

RC_GTEST_PROP(Mesh, GroupsDivideTheWorld, ()) {
  const Mesh m = any_mesh();
  const Axes axes = any_axes();
  std::map<int, std::vector<int>> by_number;
  for (int r = 0; r < m.world(); ++r) {
    const std::vector<int> members = m.group(r, axes);
    RC_ASSERT(static_cast<int>(members.size()) == m.size(axes));
    RC_ASSERT(std::is_sorted(members.begin(), members.end()));
    RC_ASSERT(members[static_cast<std::size_t>(m.position(r, axes))] == r);
    const int number = m.group_number(r, axes);
    RC_ASSERT(number >= 0 && number < m.world() / m.size(axes));
    const auto [known, added] = by_number.emplace(number, members);
    RC_ASSERT(known->second == members);  // the same number, the same group
    (void)added;
  }
  std::set<int> all;
  for (const auto& [number, members] : by_number) all.insert(members.begin(), members.end());
  RC_ASSERT(static_cast<int>(by_number.size()) == m.world() / m.size(axes));  // other numbers, other groups
  RC_ASSERT(static_cast<int>(all.size()) == m.world());
}

RC_GTEST_PROP(Mesh, MembersDifferAlongTheAxesOnly, ()) {
  const Mesh m = any_mesh();
  const Axes axes = any_axes();
  const int rank = *rc::gen::inRange(0, m.world());
  for (const int other : m.group(rank, axes))
    for (const Axis axis : kDefaultOrder)
      if (!axes.contains(axis)) RC_ASSERT(m.coordinates(other)[axis] == m.coordinates(rank)[axis]);
}

RC_GTEST_PROP(Mesh, AGroupAndItsComplementMeetInOneRank, ()) {
  const Mesh m = any_mesh();
  const Axes axes = any_axes();
  const int a = *rc::gen::inRange(0, m.world()), b = *rc::gen::inRange(0, m.world());
  const auto rows = m.group(a, axes), columns = m.group(b, axes.complement());
  std::vector<int> both;
  std::set_intersection(rows.begin(), rows.end(), columns.begin(), columns.end(), std::back_inserter(both));
  RC_ASSERT(both.size() == 1u);
}

}  // namespace
}  // namespace molen::mesh
