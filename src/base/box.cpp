#include "base/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace molen {
namespace {

// Checks that boxes tile a part of an array, one dimension after the other. The ends of the boxes cut the first
// dimension into slabs. The boxes that meet a slab must tile it in the remaining dimensions.
class Tiling {
 public:
  Tiling(const std::vector<std::int64_t>& shape, std::span<const Box* const> boxes) : shape_(shape) {
    std::vector<const Box*> all(boxes.begin(), boxes.end());
    check(0, std::move(all));
  }
  const std::string& problem() const { return problem_; }

 private:
  // Enough for any real layout of ranks; an index that needs more work is hostile.
  static constexpr std::int64_t kMostWork = std::int64_t{1} << 24;

  void check(std::size_t dimension, std::vector<const Box*> boxes) {
    if (!problem_.empty()) return;
    if (dimension == shape_.size()) {
      if (boxes.empty()) fail("no slice has the elements at {}");
      if (boxes.size() > 1) fail("several slices have the elements at {}");
      return;
    }
    std::sort(boxes.begin(), boxes.end(),
              [&](const Box* a, const Box* b) { return a->offsets[dimension] < b->offsets[dimension]; });
    std::vector<const Box*> active;
    std::size_t next = 0;
    for (std::int64_t at = 0; at < shape_[dimension] && problem_.empty();) {
      std::erase_if(active, [&](const Box* b) { return b->offsets[dimension] + b->sizes[dimension] <= at; });
      while (next < boxes.size() && boxes[next]->offsets[dimension] <= at) active.push_back(boxes[next++]);
      std::int64_t end = next < boxes.size() ? boxes[next]->offsets[dimension] : shape_[dimension];
      for (const Box* b : active) end = std::min(end, b->offsets[dimension] + b->sizes[dimension]);
      work_ += static_cast<std::int64_t>(active.size()) + 1;
      if (work_ > kMostWork) problem_ = "the slices are cut more finely than any layout cuts them";
      place_.resize(dimension);
      place_.push_back(at);
      check(dimension + 1, active);
      at = end;
    }
  }

  void fail(fmt::format_string<std::string> format) {
    problem_ = fmt::format(format, fmt::format("[{}]", fmt::join(place_, ", ")));
  }

  const std::vector<std::int64_t>& shape_;
  std::vector<std::int64_t> place_;
  std::int64_t work_ = 0;
  std::string problem_;
};

void run_to_boxes(const Box& box, std::size_t dimension, std::int64_t first, std::int64_t count, Box prefix,
                  std::vector<Box>& boxes) {
  if (count == 0) return;
  const std::size_t rank = box.sizes.size();
  if (dimension == rank) {
    boxes.push_back(std::move(prefix));
    return;
  }
  const std::int64_t row = elements_of(std::span(box.sizes).subspan(dimension + 1));
  const auto descend = [&](std::int64_t index, std::int64_t from, std::int64_t n) {
    Box inner = prefix;
    inner.offsets[dimension] = box.offsets[dimension] + index;
    inner.sizes[dimension] = 1;
    run_to_boxes(box, dimension + 1, from, n, std::move(inner), boxes);
  };
  std::int64_t at = first;
  const std::int64_t end = first + count;
  if (at % row != 0) {
    const std::int64_t n = std::min(end, (at / row + 1) * row) - at;
    descend(at / row, at % row, n);
    at += n;
  }
  if (const std::int64_t rows = (end - at) / row; rows > 0) {
    Box middle = prefix;
    middle.offsets[dimension] = box.offsets[dimension] + at / row;
    middle.sizes[dimension] = rows;
    for (std::size_t d = dimension + 1; d < rank; ++d) {
      middle.offsets[d] = box.offsets[d];
      middle.sizes[d] = box.sizes[d];
    }
    boxes.push_back(std::move(middle));
    at += rows * row;
  }
  if (at < end) descend(at / row, 0, end - at);
}

}  // namespace

std::int64_t elements_of(std::span<const std::int64_t> shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::int64_t Box::elements() const {
  return elements_of(sizes);
}

Box whole_box(const std::vector<std::int64_t>& shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), shape};
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  // Most pairs that callers try share no element; for them this returns before it copies anything.
  for (std::size_t d = 0; d < a.sizes.size(); ++d)
    if (std::max(a.offsets[d], b.offsets[d]) >= std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]))
      return std::nullopt;
  Box common = a;
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    common.offsets[d] = std::max(a.offsets[d], b.offsets[d]);
    common.sizes[d] = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]) - common.offsets[d];
  }
  return common;
}

std::vector<Box> boxes_of_run(const Box& box, std::int64_t first, std::int64_t count) {
  MOLEN_CHECK(first >= 0 && count >= 0 && first + count <= box.elements(), "run [{}, +{}) of {} elements", first, count,
              box.elements());
  std::vector<Box> boxes;
  run_to_boxes(box, 0, first, count,
               {std::vector<std::int64_t>(box.sizes.size()), std::vector<std::int64_t>(box.sizes.size())}, boxes);
  return boxes;
}

std::int64_t position_in(const Box& outer, const Box& inner) {
  std::int64_t position = 0;
  for (std::size_t d = 0; d < outer.sizes.size(); ++d)
    position = position * outer.sizes[d] + inner.offsets[d] - outer.offsets[d];
  return position;
}

std::string tiling_problem(const std::vector<std::int64_t>& shape, std::span<const Box* const> boxes) {
  for (const Box* box : boxes) {
    if (box->offsets.size() != shape.size() || box->sizes.size() != shape.size())
      return fmt::format("a slice of {} dimensions in a tensor of {}", box->offsets.size(), shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (box->sizes[d] <= 0 || box->offsets[d] < 0 || box->sizes[d] > shape[d] ||
          box->offsets[d] > shape[d] - box->sizes[d])
        return fmt::format("the slice {} does not lie in the tensor [{}]", text_of(*box), fmt::join(shape, ", "));
  }
  if (elements_of(shape) == 0) return boxes.empty() ? "" : "slices of a tensor without elements";
  return Tiling(shape, boxes).problem();
}

void copy_box(const Box& part, const Box& from, const void* source, const Box& to, void* destination,
              std::int64_t size) {
  // The innermost dimensions that are whole in all three boxes form one contiguous run.
  std::size_t split = part.sizes.size();
  std::int64_t run = size;
  while (split > 0) {
    run *= part.sizes[--split];
    if (part.sizes[split] != from.sizes[split] || part.sizes[split] != to.sizes[split]) break;
  }
  const auto* in = static_cast<const char*>(source) + position_in(from, part) * size;
  auto* out = static_cast<char*>(destination) + position_in(to, part) * size;
  std::vector<std::int64_t> in_stride(split), out_stride(split), index(split, 0);
  for (std::size_t d = 0; d < split; ++d) {
    in_stride[d] = elements_of(std::span(from.sizes).subspan(d + 1)) * size;
    out_stride[d] = elements_of(std::span(to.sizes).subspan(d + 1)) * size;
  }
  while (true) {
    std::int64_t a = 0, b = 0;
    for (std::size_t d = 0; d < split; ++d) a += index[d] * in_stride[d], b += index[d] * out_stride[d];
    std::memcpy(out + b, in + a, static_cast<std::size_t>(run));
    std::size_t d = split;
    while (d > 0 && ++index[d - 1] == part.sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

std::string text_of(const Box& box) {
  std::string text;
  for (std::size_t d = 0; d < box.sizes.size(); ++d)
    text += fmt::format("{}{}+{}", d == 0 ? "" : ", ", box.offsets[d], box.sizes[d]);
  return "[" + text + "]";
}

}  // namespace molen
