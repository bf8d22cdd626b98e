// Tests which elements each rank has, both of the units that ranks share and of the parameters of the whole model.
#include "program/ir/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "arch/parameters.h"
#include "program/build/build.h"
#include "program/test_edit.h"

namespace molen::program {
namespace {

using Bounds = std::pair<std::int64_t, std::int64_t>;

mesh::PerAxis at(int replicate, int shard, int tp = 0) {
  mesh::PerAxis c{};
  c[mesh::Axis::kDpReplicate] = replicate;
  c[mesh::Axis::kDpShard] = shard;
  c[mesh::Axis::kTp] = tp;
  return c;
}

Setting hybrid_setting(int zero, bool own_over_dp) {
  Setting s;
  s.mesh[mesh::Axis::kDpReplicate] = 2;
  s.mesh[mesh::Axis::kDpShard] = 3;
  s.zero = zero;
  s.own_over_dp = own_over_dp;
  return s;
}

// The parameters of one product form one matrix, with their rows one after another. Every other parameter begins at a
// multiple of 16 elements.
TEST(Layout, OnlyPartsOfOneMatrixFollowEachOtherAtOnce) {
  using arch::Role;
  const std::set<std::pair<Role, Role>> joined{{Role::kQuery, Role::kKey},
                                               {Role::kKey, Role::kValue},
                                               {Role::kQueryBias, Role::kKeyBias},
                                               {Role::kKeyBias, Role::kValueBias},
                                               {Role::kGate, Role::kUp}};
  std::set<std::pair<Role, Role>> seen;
  for (const char* preset : {"llama-tiny", "gpt2"}) {
    arch::Architecture a = arch::preset(preset);
    a.layers = 2, a.hidden = 15, a.ffn = 22, a.heads = a.kv_heads = 3, a.vocabulary = 41;
    a.head_dim = a.position == arch::Position::kRope ? 6 : 5;
    const Program p = build(a, Setting{});
    for (const Unit& unit : p.units)
      for (std::size_t i = 0; i < unit.entries.size(); ++i) {
        const auto& entry = unit.entries[i];
        const arch::Parameter& parameter = p.parameters[static_cast<std::size_t>(entry.parameter)];
        if (i == 0) continue;
        const arch::Parameter& before = p.parameters[static_cast<std::size_t>(unit.entries[i - 1].parameter)];
        const std::int64_t end = unit.entries[i - 1].offset + before.elements();
        const std::pair roles{before.role, parameter.role};
        if (before.layer == parameter.layer && joined.contains(roles)) {
          EXPECT_EQ(entry.offset, end) << parameter.name;
          seen.insert(roles);
        } else {
          EXPECT_EQ(entry.offset, (end + 15) / 16 * 16) << parameter.name;
        }
      }
  }
  EXPECT_EQ(seen, joined);
}

TEST(Layout, RangesOfEachStage) {
  Unit unit;
  unit.elements = 192;
  unit.replicated = 48;
  const auto range = [&](const Setting& s, int replicate, int shard, Range r) {
    return unit_range(grid_of(s), at(replicate, shard), unit, r);
  };
  const Bounds all{0, 192};
  for (const bool own : {false, true})
    for (int zero = 0; zero <= 3; ++zero) {
      EXPECT_EQ(range(hybrid_setting(zero, own), 1, 2, Range::kAll), all);
      EXPECT_EQ(range(hybrid_setting(zero, own), 1, 2, Range::kReplicated), Bounds(0, 48));
    }
  EXPECT_EQ(range(hybrid_setting(0, false), 1, 2, Range::kOwn), all);
  EXPECT_EQ(range(hybrid_setting(0, false), 1, 2, Range::kShard), all);
  // In stage 1 the unit is cut over all six ranks, copy after copy, in the order of the communicator that gathers them.
  EXPECT_EQ(range(hybrid_setting(1, false), 1, 2, Range::kShard), all);
  for (int replicate = 0; replicate < 2; ++replicate)
    for (int shard = 0; shard < 3; ++shard) {
      const std::int64_t first = 32 * (3 * replicate + shard);
      EXPECT_EQ(range(hybrid_setting(1, false), replicate, shard, Range::kOwn), Bounds(first, first + 32));
      EXPECT_EQ(unit_tile(grid_of(hybrid_setting(1, false)), at(replicate, shard), unit), Bounds(first, first + 32));
      EXPECT_EQ(unit_tile(grid_of(hybrid_setting(0, false)), at(replicate, shard), unit), Bounds(first, first + 32));
      // In stages 2 and 3 the unit is cut over the three ranks of a copy, and own_over_dp divides each third over the
      // copies.
      const Bounds third{64 * shard, 64 * shard + 64},
          sixth{64 * shard + 32 * replicate, 64 * shard + 32 * replicate + 32};
      for (const int zero : {2, 3}) {
        EXPECT_EQ(range(hybrid_setting(zero, false), replicate, shard, Range::kShard), third);
        EXPECT_EQ(range(hybrid_setting(zero, false), replicate, shard, Range::kOwn), third);
        EXPECT_EQ(range(hybrid_setting(zero, true), replicate, shard, Range::kShard), third);
        EXPECT_EQ(range(hybrid_setting(zero, true), replicate, shard, Range::kOwn), sixth);
        EXPECT_EQ(unit_tile(grid_of(hybrid_setting(zero, false)), at(replicate, shard), unit), sixth);
      }
    }
}

// The order of the rank grid determines each rank's number.
TEST(Layout, RangesFollowTheOrderOfTheGrid) {
  Unit unit;
  unit.elements = 192;
  Setting s = hybrid_setting(1, false);
  s.order = {mesh::Axis::kPp,          mesh::Axis::kDpShard, mesh::Axis::kEp,
             mesh::Axis::kDpReplicate, mesh::Axis::kCp,      mesh::Axis::kTp};
  for (int replicate = 0; replicate < 2; ++replicate)
    for (int shard = 0; shard < 3; ++shard) {
      const std::int64_t first = 32 * (2 * shard + replicate);
      EXPECT_EQ(unit_tile(grid_of(s), at(replicate, shard), unit), Bounds(first, first + 32));
    }
}

arch::Architecture with_experts() {
  auto a = tiny();
  a.experts = arch::Experts{.count = 6, .per_token = 2, .ffn = 20};
  return a;
}

Setting on_expert_ranks(int zero) {
  Setting s;
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.mesh[mesh::Axis::kEp] = 3;
  s.zero = zero;
  return s;
}

// Expert ranks hold different experts, and these are a unit of their own. The ranks that hold the same experts share
// that unit.
TEST(Layout, ExpertsAreAUnitOfTheirRanks) {
  const Program whole = describe(with_experts(), Setting{}), p = describe(with_experts(), on_expert_ranks(2));
  EXPECT_EQ(whole.find_unit("layer.1.experts"), -1);
  const int of_layer = p.find_unit("layer.1"), of_experts = p.find_unit("layer.1.experts");
  ASSERT_TRUE(of_layer >= 0 && of_experts == of_layer + 1);
  const Unit &layer = p.units[static_cast<std::size_t>(of_layer)],
             &experts = p.units[static_cast<std::size_t>(of_experts)];
  EXPECT_EQ(experts.elements, 2 * 3 * 20 * 24) << "two of six experts, three matrices each";
  EXPECT_EQ(axis_for(layer, Axis::kDp), Axis::kDp);
  EXPECT_EQ(axis_for(experts, Axis::kDp), Axis::kExpertDp);
  EXPECT_EQ(axis_for(experts, Axis::kShard), Axis::kExpertShard);
  EXPECT_EQ(axis_for(experts, Axis::kReplicate), Axis::kReplicate);
  EXPECT_EQ(group_size(p.grid, Axis::kDp), 6);
  EXPECT_EQ(group_size(p.grid, Axis::kExpertDp), 2);
  const auto parameters = arch::parameters(p.arch);
  for (int shard = 0; shard < 2; ++shard)
    for (int rank = 0; rank < 3; ++rank) {
      mesh::PerAxis c = at(0, shard);
      c[mesh::Axis::kEp] = rank;
      EXPECT_EQ(unit_range(p.grid, c, experts, Range::kShard), owned_range(experts.elements, shard, 2));
      EXPECT_EQ(unit_range(p.grid, c, layer, Range::kShard), owned_range(layer.elements, 3 * shard + rank, 6));
      for (std::size_t i = 0; i < experts.entries.size(); ++i) {
        const auto& parameter = parameters[parameter_at(p, c, experts.entries[i])];
        EXPECT_EQ(parameter.expert, 2 * rank + static_cast<int>(i < 4 ? i / 2 : i - 4)) << parameter.name;
        EXPECT_EQ(parameter.layer, 1);
      }
    }
}

// When each expert rank has whole gradients, only the first expert rank counts the squares of units without experts.
TEST(Layout, SquaresOfExpertRanksCountOnce) {
  for (const int zero : {0, 1}) {
    const Program p = describe(with_experts(), on_expert_ranks(zero));
    for (const Unit& unit : p.units)
      for (int rank = 0; rank < 3; ++rank) {
        mesh::PerAxis c{};
        c[mesh::Axis::kEp] = rank;
        const bool counts = zero == 1 || unit.experts || rank == 0;
        EXPECT_EQ(squares_once(p.grid, c, unit, 0, 64), (counts ? Bounds(0, 64) : Bounds(64, 64))) << unit.name;
      }
  }
}

// The boxes of any range of a unit cover exactly the elements of the range, in order and without padding.
TEST(Layout, BoxesOfARangeAreItsElements) {
  for (const int tensor : {1, 2}) {
    Setting s;
    s.mesh[mesh::Axis::kTp] = tensor;
    const Program p = build(tiny(), s);
    const auto whole = arch::parameters(p.arch);
    std::map<std::pair<int, std::int64_t>, int> held;  // by parameter and element: number of ranks that hold it
    for (int rank = 0; rank < tensor; ++rank)
      for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
        const std::int64_t size = p.units[static_cast<std::size_t>(u)].elements;
        // Maps each place of the unit to its element of the whole model, by global_runs, which is independent of boxes.
        std::map<std::int64_t, std::pair<int, std::int64_t>> places;
        for (const GlobalRun& run : global_runs(p, at(0, 0, rank), u, 0, size))
          for (std::int64_t i = 0; i < run.count; ++i) {
            places[run.unit_first + i] = {run.parameter, run.first + i};
            ++held[{run.parameter, run.first + i}];
          }
        for (const Bounds& range : std::vector<Bounds>{{0, size}, {0, size / 3}, {size / 3, size}, {7, 8}, {5, 5}}) {
          std::int64_t count = 0;
          for (const GlobalBox& global : global_boxes(p, at(0, 0, rank), u, range.first, range.second)) {
            const auto& parameter = whole[static_cast<std::size_t>(global.parameter)];
            const std::int64_t columns = parameter.shape.back();
            std::int64_t place = global.unit_first;
            const bool flat = parameter.shape.size() == 1;
            const std::int64_t rows = flat ? 1 : global.box.sizes[0], first_row = flat ? 0 : global.box.offsets[0];
            for (std::int64_t r = 0; r < rows; ++r)
              for (std::int64_t c = 0; c < global.box.sizes.back(); ++c, ++place, ++count) {
                const std::int64_t element = (first_row + r) * columns + global.box.offsets.back() + c;
                ASSERT_EQ(places.at(place), std::pair(global.parameter, element))
                    << parameter.name << " at " << place << " of rank " << rank;
                ASSERT_TRUE(range.first <= place && place < range.second) << parameter.name;
              }
          }
          EXPECT_EQ(count, std::distance(places.lower_bound(range.first), places.lower_bound(range.second)));
        }
      }
    EXPECT_EQ(std::ssize(held), arch::num_parameters(p.arch)) << "no element without a rank";
    if (tensor == 1) {
      for (const auto& [element, ranks] : held) ASSERT_EQ(ranks, 1);
    }
  }
}

// Each parameter that an optimizer updates as a whole belongs to one rank, and the largest part is as small as
// possible.
void check_whole_parameters(std::string_view kind) {
  for (const int zero : {1, 2, 3})
    for (const int replicas : {1, 2})
      for (const int shards : {1, 2, 3, 5, 12}) {
        if (shards * replicas == 1 || (zero > 1 && shards == 1)) continue;
        Setting s;
        s.optimizer = std::string(kind);
        s.zero = zero;
        s.own_over_dp = zero > 1 && replicas > 1;
        s.mesh[mesh::Axis::kDpShard] = shards;
        s.mesh[mesh::Axis::kDpReplicate] = replicas;
        s.global_batch = shards * replicas;
        s.sequence = 16;
        const Program p = describe(tiny(), s);
        const mesh::Mesh grid(s.mesh, s.ranks(), s.order);
        for (const Unit& unit : p.units) {
          EXPECT_EQ(unit.has_whole(), unit.of_layers() || kind == "adafactor");
          std::vector<std::pair<std::int64_t, std::int64_t>> parts;
          for (int rank = 0; rank < s.ranks(); ++rank) {
            const auto [first, last] = unit_range(p.grid, grid.coordinates(rank), unit, Range::kOwn);
            EXPECT_EQ(unit_tile(p.grid, grid.coordinates(rank), unit), std::pair(first, last));
            for (const UnitEntry& entry : unit.entries)
              for (const std::int64_t cut : {first, last})
                EXPECT_FALSE(entry.offset < cut && cut < entry.offset + entry.whole) << unit.name << " at " << cut;
            parts.emplace_back(first, last);
          }
          std::sort(parts.begin(), parts.end());
          std::int64_t end = 0, most = 0;
          for (const auto& [first, last] : parts) {
            EXPECT_EQ(first, end);
            end = last;
            most = std::max(most, last - first);
          }
          EXPECT_EQ(end, unit.elements);
          std::int64_t announced = 0;
          for (const auto& [first, last] : unit_ranges(p.grid, unit, Range::kOwn))
            announced = std::max(announced, last - first);
          EXPECT_EQ(announced, most);
          if (s.ranks() != 2 || !unit.has_whole()) continue;
          std::int64_t best = unit.elements;
          for (std::int64_t cut = 0; cut <= unit.elements; cut += 16)
            if (std::none_of(unit.entries.begin(), unit.entries.end(),
                             [&](const UnitEntry& e) { return e.offset < cut && cut < e.offset + e.whole; }))
              best = std::min(best, std::max(cut, unit.elements - cut));
          EXPECT_LE(most, best) << unit.name;
        }
      }
}

TEST(Layout, WholeMatricesAreNotDivided) {
  check_whole_parameters("muon");
}

TEST(Layout, WholeParametersAreNotDivided) {
  check_whole_parameters("adafactor");
}

}  // namespace
}  // namespace molen::program
