#include "mesh/mesh.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/suggest.h"

namespace molen::mesh {
namespace {

constexpr std::array<std::string_view, kAxes> kNames{"pp", "dp_replicate", "dp_shard", "ep", "cp", "tp"};

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string_view::npos ? "" : std::string(text.substr(first, last - first + 1));
}

void check_order(const std::array<Axis, kAxes>& order) {
  for (const Axis axis : kDefaultOrder)
    if (std::count(order.begin(), order.end(), axis) != 1)
      throw UsageError("order of mesh axes: {} must be named exactly once", name_of(axis));
}

// Returns a text such as "pp 2 x dp_replicate 1 x dp_shard 1 x cp 1 x tp 3 = 6".
std::string product_text(const PerAxis& sizes, std::int64_t product) {
  std::string text;
  for (const Axis axis : kDefaultOrder)
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(axis), sizes[axis]);
  return fmt::format("{} = {}", text, product);
}

}  // namespace

std::string_view name_of(Axis axis) {
  return kNames[static_cast<std::size_t>(axis)];
}

Axis axis_from_name(std::string_view name) {
  for (const Axis axis : kDefaultOrder)
    if (name_of(axis) == name) return axis;
  const std::vector<std::string> valid(kNames.begin(), kNames.end());
  throw UsageError(fmt::format("no mesh axis '{}'{}", name, did_you_mean(name, valid)));
}

std::array<Axis, kAxes> parse_order(std::string_view text) {
  std::vector<Axis> axes;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    axes.push_back(axis_from_name(trimmed(text.substr(at, comma - at))));
    at = comma + 1;
  }
  if (axes.size() == kAxes - 1 && std::count(axes.begin(), axes.end(), Axis::kEp) == 0)
    if (const auto shard = std::find(axes.begin(), axes.end(), Axis::kDpShard); shard != axes.end())
      axes.insert(shard + 1, Axis::kEp);
  if (axes.size() != kAxes)
    throw UsageError(
        fmt::format("order of mesh axes: '{}' names {} of {}; write all, outermost first, as in "
                    "'pp,dp_replicate,dp_shard,ep,cp,tp'",
                    text, axes.size(), kAxes));
  std::array<Axis, kAxes> order;
  std::copy(axes.begin(), axes.end(), order.begin());
  check_order(order);
  return order;
}

std::string text_of(const std::array<Axis, kAxes>& order) {
  std::string text;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] == Axis::kEp && i > 0 && order[i - 1] == Axis::kDpShard) continue;  // as parse_order has it
    text += fmt::format("{}{}", text.empty() ? "" : ",", name_of(order[i]));
  }
  return text;
}

Mesh::Mesh(PerAxis sizes, int world, std::array<Axis, kAxes> order) : sizes_(sizes), order_(order), world_(world) {
  check_order(order);
  if (world < 1) throw UsageError(fmt::format("a world of {} ranks", world));
  std::int64_t product = 1;
  for (const Axis axis : kDefaultOrder) {
    if (sizes[axis] < 1)
      throw UsageError(fmt::format("mesh axis {} has size {}; it must be at least 1", name_of(axis), sizes[axis]));
    // Stops one above the largest int: a product that wrapped around could equal `world` by chance.
    product = std::min<std::int64_t>(product * sizes[axis], std::numeric_limits<int>::max() + std::int64_t{1});
  }
  if (product != world) {
    const std::string shape = product_text(sizes, product);
    if (world % product != 0)  // no larger dp_shard makes it fit
      throw UsageError(fmt::format("the mesh {} does not make {} ranks", shape, world));
    throw UsageError(fmt::format("the mesh {} does not make {} ranks; with dp_shard {} it does", shape, world,
                                 sizes[Axis::kDpShard] * (world / product)));
  }
  int stride = 1;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    stride_[*axis] = stride;
    stride *= sizes[*axis];
  }
}

int Mesh::size(Axes axes) const {
  int product = 1;
  for (const Axis axis : kDefaultOrder)
    if (axes.contains(axis)) product *= sizes_[axis];
  return product;
}

void Mesh::check_rank(int rank) const {
  MOLEN_CHECK(rank >= 0 && rank < world_, "rank {} of {}", rank, world_);
}

PerAxis Mesh::coordinates(int rank) const {
  check_rank(rank);
  PerAxis c;
  for (const Axis axis : kDefaultOrder) c[axis] = rank / stride_[axis] % sizes_[axis];
  return c;
}

int Mesh::rank_of(const PerAxis& coordinates) const {
  int rank = 0;
  for (const Axis axis : kDefaultOrder) {
    MOLEN_CHECK(coordinates[axis] >= 0 && coordinates[axis] < sizes_[axis], "coordinate {} along {} of size {}",
                coordinates[axis], name_of(axis), sizes_[axis]);
    rank += coordinates[axis] * stride_[axis];
  }
  return rank;
}

std::vector<int> Mesh::group(int rank, Axes axes) const {
  const PerAxis own = coordinates(rank);
  std::vector<int> members{0};
  for (const Axis axis : order_) {  // slowest axis first, so members come out ascending
    std::vector<int> longer;
    for (const int base : members)
      for (int i = 0; i < (axes.contains(axis) ? sizes_[axis] : 1); ++i)
        longer.push_back(base + (axes.contains(axis) ? i : own[axis]) * stride_[axis]);
    members = std::move(longer);
  }
  return members;
}

int Mesh::position(int rank, Axes axes) const {
  const PerAxis own = coordinates(rank);
  int position = 0;
  for (const Axis axis : order_)
    if (axes.contains(axis)) position = position * sizes_[axis] + own[axis];
  return position;
}

std::string Mesh::text() const {
  std::string text;
  for (const Axis axis : order_)
    if (sizes_[axis] > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(axis), sizes_[axis]);
  return text.empty() ? "1 rank" : text;
}

}  // namespace molen::mesh
