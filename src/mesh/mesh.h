// The rank grid: the arrangement of a job's ranks along the axes of parallelism. Arithmetic only: no rank communicates
// here.
//
// A rank is a number in mixed radix whose digits are its coordinates. `order` lists the axes from the slowest digit to
// the fastest. By default tensor parallelism is innermost, so that tensor ranks, which communicate most, share a node.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace molen::mesh {

enum class Axis { kPp, kDpReplicate, kDpShard, kEp, kCp, kTp };
inline constexpr int kAxes = 6;
inline constexpr std::array<Axis, kAxes> kDefaultOrder{Axis::kPp, Axis::kDpReplicate, Axis::kDpShard,
                                                       Axis::kEp, Axis::kCp,          Axis::kTp};

std::string_view name_of(Axis axis);         // "pp", "dp_replicate", "dp_shard", "ep", "cp", "tp"
Axis axis_from_name(std::string_view name);  // throws UsageError with the nearest name
// Reads "pp,dp_replicate,dp_shard,ep,cp,tp", outermost first, every axis once. In a text without ep (from before expert
// ranks existed), ep comes directly after dp_shard. Throws UsageError for anything else.
std::array<Axis, kAxes> parse_order(std::string_view text);
// Returns the form that parse_order reads. It leaves out ep where ep comes directly after dp_shard.
std::string text_of(const std::array<Axis, kAxes>& order);

// A set of axes: the ranks along {Axis::kDpReplicate, Axis::kDpShard, Axis::kEp} see different data.
class Axes {
 public:
  constexpr Axes() = default;
  constexpr Axes(Axis axis) : bits_(bit(axis)) {}  // NOLINT: one axis is a set
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis a : axes) bits_ |= bit(a);
  }
  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr Axes complement() const {
    Axes c;
    c.bits_ = ~bits_ & ((1u << kAxes) - 1);
    return c;
  }
  constexpr Axes without(Axes others) const {
    Axes c;
    c.bits_ = bits_ & ~others.bits_;
    return c;
  }
  bool operator==(const Axes&) const = default;

 private:
  static constexpr unsigned bit(Axis axis) { return 1u << static_cast<unsigned>(axis); }
  unsigned bits_ = 0;
};

// Expert ranks belong to data parallelism: they see different data and hold the same parameters, except those of the
// experts.
inline constexpr Axes kDataParallel{Axis::kDpReplicate, Axis::kDpShard, Axis::kEp};
// kReplicas: the axes along which ranks have the same parameters, so that their gradients are summed. It includes kCp:
// ranks that share a sequence have the same parameters. kShards: the axes over which one copy of a unit's state may be
// sharded. For the experts of a layer, both sets lack kEp.
inline constexpr Axes kReplicas{Axis::kDpReplicate, Axis::kDpShard, Axis::kEp, Axis::kCp};
inline constexpr Axes kShards{Axis::kDpShard, Axis::kEp, Axis::kCp};

// One number per axis: sizes of a mesh, or coordinates of a rank.
struct PerAxis {
  std::array<int, kAxes> values{};
  int& operator[](Axis axis) { return values[static_cast<std::size_t>(axis)]; }
  int operator[](Axis axis) const { return values[static_cast<std::size_t>(axis)]; }
  bool operator==(const PerAxis&) const = default;
};
inline constexpr PerAxis kOne{{1, 1, 1, 1, 1, 1}};

class Mesh {
 public:
  // Throws UsageError when a size is below 1, the product is not `world` (the message says what would fit), or an axis
  // is missing from `order`.
  Mesh(PerAxis sizes, int world, std::array<Axis, kAxes> order = kDefaultOrder);

  int world() const { return world_; }
  int size(Axes axes) const;  // product of the sizes
  const PerAxis& sizes() const { return sizes_; }
  const std::array<Axis, kAxes>& order() const { return order_; }

  PerAxis coordinates(int rank) const;
  int rank_of(const PerAxis& coordinates) const;

  // Returns the ranks that differ from `rank` only along `axes`, in ascending order; `rank` is among them.
  std::vector<int> group(int rank, Axes axes) const;
  // Return the position of `rank` in that group, and the group's number among the groups along `axes` (0 .. world /
  // size(axes) - 1). They are key and color for Communicator::split.
  int position(int rank, Axes axes) const;
  int group_number(int rank, Axes axes) const { return position(rank, axes.complement()); }

  // Returns "pp 2 x dp_shard 4 x tp 8", without axes of size 1, or "1 rank" when all have size 1.
  std::string text() const;

 private:
  void check_rank(int rank) const;
  PerAxis sizes_;
  std::array<Axis, kAxes> order_;
  PerAxis stride_;  // ranks between neighbours along the axis
  int world_;
};

}  // namespace molen::mesh
