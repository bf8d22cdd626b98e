// The grid of an experiment: keys of the configuration with the values that each takes, and the sizes of its job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace molen::plan {

inline constexpr std::int64_t kMostTrials = 10000;

// One key of a grid. Its values are in the order in which they were given.
struct GridAxis {
  std::string key;
  std::vector<Json> values;        // in the form of a file
  std::vector<std::string> texts;  // as they were given: "1", "FULL_SHARD"
};

// Returns the parts of a list that commas outside of brackets, braces and quotes divide, without the blanks around
// them. An empty text has one part.
std::vector<std::string> parts_of_list(std::string_view text);

// Reads "key=value,value,...". A comma within brackets, braces or quotes belongs to a value, and each value is read as
// `--set` reads it. Throws UsageError for an unknown key (with the nearest one), an empty list, a value that the key
// does not take, and a value that is there twice.
GridAxis parse_axis(std::string_view argument);

// Reads several axes. Throws UsageError for a key that is there twice and for a grid of more than kMostTrials points.
// No axis is a grid of one point.
std::vector<GridAxis> parse_grid(const std::vector<std::string>& arguments);

std::int64_t points_of(const std::vector<GridAxis>& grid);

// Returns which value each axis has at a point. Points are in the order of nested loops: the first axis is the
// outermost, and the last one changes fastest.
std::vector<std::size_t> point_at(const std::vector<GridAxis>& grid, std::int64_t index);

// Returns the point's assignments: {"batch.micro=1", "parallel.sharding=FULL_SHARD"}.
std::vector<std::string> assignments_at(const std::vector<GridAxis>& grid, std::int64_t index);

// Returns the keys of a grid as plots name them: the part behind the table, or the whole key where two axes share it.
std::vector<std::string> short_names(const std::vector<GridAxis>& grid);

enum class Scaling { kNone, kStrong, kWeak };

// Reads a list of sizes of a job, numbers of ranks or of nodes; `option` leads errors ("--nodes"). Throws UsageError
// unless they are whole numbers from 1 that rise.
std::vector<int> parse_sizes(std::string_view option, std::string_view text);

// Returns the global batch of a job of `size` ranks or nodes that has as many sequences a rank as `batch` sequences on
// `first`. Throws UsageError when that is no whole number.
std::int64_t weak_batch(std::int64_t batch, int first, int size);

// Splits a command line at its blanks; quotes of either kind keep blanks in a word. Throws UsageError, with `option`,
// for a quote that does not end and for a line without words.
std::vector<std::string> words_of(std::string_view option, std::string_view line);

}  // namespace molen::plan
