// Boxes: parts of an n-dimensional array, by offset and size per dimension. Elements are in row-major order throughout.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace molen {

struct Box {
  std::vector<std::int64_t> offsets, sizes;  // one of each per dimension
  std::int64_t elements() const;
  bool operator==(const Box&) const = default;
};

std::int64_t elements_of(std::span<const std::int64_t> shape);

// Returns the box of the whole array.
Box whole_box(const std::vector<std::int64_t>& shape);

// Returns the elements that both boxes hold, as a box; nullopt when there are none.
std::optional<Box> intersection(const Box& a, const Box& b);

// Returns elements [first, first + count) of `box`, counted in row-major order of the box, as boxes of the same array:
// at most 2 n - 1 boxes for n dimensions (the end of a row, whole rows, the beginning of a row), in order, each
// contiguous in the box.
std::vector<Box> boxes_of_run(const Box& box, std::int64_t first, std::int64_t count);

// Returns the position at which `inner`, a part of `outer`, begins in the row-major elements of `outer`.
std::int64_t position_in(const Box& outer, const Box& inner);

// Returns the reason why the boxes do not cover each element of an array exactly once, or "".
std::string tiling_problem(const std::vector<std::int64_t>& shape, std::span<const Box* const> boxes);

// Copies `part`, which lies in both boxes, from an array that holds the box `from` to an array that holds the box `to`.
// `size`: bytes per element.
void copy_box(const Box& part, const Box& from, const void* source, const Box& to, void* destination,
              std::int64_t size);

// Returns a text such as "[0+4, 8+16]": offset and size of each dimension.
std::string text_of(const Box& box);

}  // namespace molen
