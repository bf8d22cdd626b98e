#include "base/box.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

namespace molen {
namespace {

std::vector<std::int64_t> any_shape() {
  std::vector<std::int64_t> shape(*rc::gen::inRange<std::size_t>(1, 5));
  for (auto& size : shape) size = *rc::gen::inRange<std::int64_t>(1, 7);
  return shape;
}

std::vector<const Box*> pointers(const std::vector<Box>& boxes) {
  std::vector<const Box*> all;
  for (const Box& box : boxes) all.push_back(&box);
  return all;
}

TEST(Box, ARunOfAMatrixIsAtMostThreeBoxes) {
  const Box matrix = whole_box({4, 5});
  EXPECT_EQ(boxes_of_run(matrix, 3, 14), (std::vector<Box>{{{0, 3}, {1, 2}}, {{1, 0}, {2, 5}}, {{3, 0}, {1, 2}}}));
  EXPECT_EQ(boxes_of_run(matrix, 0, 20), std::vector<Box>{matrix});
  EXPECT_EQ(boxes_of_run(matrix, 6, 2), (std::vector<Box>{{{1, 1}, {1, 2}}}));
  EXPECT_TRUE(boxes_of_run(matrix, 6, 0).empty());
  EXPECT_EQ(boxes_of_run(Box{{}, {}}, 0, 1).size(), 1u);  // a scalar
}

// However a run is cut into boxes, copying them one after the other moves exactly the run, in order.
RC_GTEST_PROP(Box, TheBoxesOfARunAreTheRun, ()) {
  const auto shape = any_shape();
  const Box box = whole_box(shape);
  const std::int64_t n = box.elements(), first = *rc::gen::inRange<std::int64_t>(0, n + 1),
                     count = *rc::gen::inRange<std::int64_t>(0, n - first + 1);
  const auto boxes = boxes_of_run(box, first, count);
  RC_ASSERT(boxes.size() <= 2 * shape.size() - 1);
  std::vector<int> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> run;
  for (const Box& b : boxes) {
    RC_ASSERT(position_in(box, b) == first + static_cast<std::int64_t>(run.size()));
    std::vector<int> values(static_cast<std::size_t>(b.elements()), -1);
    copy_box(b, box, all.data(), b, values.data(), sizeof(int));
    run.insert(run.end(), values.begin(), values.end());
  }
  RC_ASSERT(static_cast<std::int64_t>(run.size()) == count);
  for (std::int64_t i = 0; i < count; ++i) RC_ASSERT(run[static_cast<std::size_t>(i)] == first + i);
}

// The runs that tile an array, each cut into boxes, tile it; with one box missing, doubled or moved, they do not.
RC_GTEST_PROP(Box, TellsATilingFromWhatIsNone, ()) {
  const auto shape = any_shape();
  const Box box = whole_box(shape);
  std::vector<Box> boxes;
  for (std::int64_t at = 0; at < box.elements();) {
    const std::int64_t count = std::min(box.elements() - at, *rc::gen::inRange<std::int64_t>(1, 40));
    for (const Box& b : boxes_of_run(box, at, count)) boxes.push_back(b);
    at += count;
  }
  RC_ASSERT(tiling_problem(shape, pointers(boxes)) == "");
  const auto victim = *rc::gen::inRange<std::size_t>(0, boxes.size());
  auto broken = boxes;
  broken.erase(broken.begin() + static_cast<std::ptrdiff_t>(victim));
  RC_ASSERT(tiling_problem(shape, pointers(broken)) != "");
  broken = boxes;
  broken.push_back(boxes[victim]);
  RC_ASSERT(tiling_problem(shape, pointers(broken)) != "");
  broken = boxes;
  broken[victim].offsets[0] += 1;
  RC_ASSERT(tiling_problem(shape, pointers(broken)) != "");
}

// A part is copied to its place, and the rest of the array is unchanged.
RC_GTEST_PROP(Box, CopiesBetweenBoxes, ()) {
  const auto shape = any_shape();
  const auto inside = [&] {
    Box b;
    for (const std::int64_t size : shape) {
      b.offsets.push_back(*rc::gen::inRange<std::int64_t>(0, size));
      b.sizes.push_back(*rc::gen::inRange<std::int64_t>(1, size - b.offsets.back() + 1));
    }
    return b;
  };
  const Box all = whole_box(shape), from = inside(), to = inside();
  const auto part = intersection(from, to);
  if (!part) return;
  std::vector<int> values(static_cast<std::size_t>(all.elements())), source(static_cast<std::size_t>(from.elements()));
  std::iota(values.begin(), values.end(), 0);
  copy_box(from, all, values.data(), from, source.data(), sizeof(int));
  std::vector<int> direct(static_cast<std::size_t>(to.elements()), -1), over(direct);
  copy_box(*part, all, values.data(), to, direct.data(), sizeof(int));
  copy_box(*part, from, source.data(), to, over.data(), sizeof(int));
  RC_ASSERT(direct == over);
  RC_ASSERT(std::count_if(over.begin(), over.end(), [](int v) { return v >= 0; }) == part->elements());
}

TEST(Box, RefusesSlicesThatLieOutside) {
  const std::vector<std::int64_t> shape{4, 4};
  for (const Box& box : {Box{{0, 0}, {4, 5}}, Box{{-1, 0}, {4, 4}}, Box{{0}, {4}}, Box{{0, 0}, {4, 0}},
                         Box{{INT64_MAX, 0}, {INT64_MAX, 4}}}) {
    const std::vector<const Box*> one{&box};
    EXPECT_NE(tiling_problem(shape, one), "") << text_of(box);
  }
}

// Slices whose check would take forever are refused in time: n slices beside each other, each n rows long, with offsets
// that make all slabs different.
TEST(Box, ATilingThatWouldTakeForeverIsRefused) {
  constexpr std::int64_t n = 20'000;
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < n; ++i) {  // column i is cut at row i
    boxes.push_back({{0, i}, {i + 1, 1}});
    if (i + 1 < n) boxes.push_back({{i + 1, i}, {n - i - 1, 1}});
  }
  EXPECT_NE(tiling_problem({n, n}, pointers(boxes)).find("more finely"), std::string::npos);
}

}  // namespace
}  // namespace molen
