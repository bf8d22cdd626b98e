#include "plan/grid.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "base/error.h"
#include "config/config.h"

namespace molen::plan {
namespace {

void add_value(GridAxis& axis, const std::string& text) {
  if (text.empty())
    throw UsageError("--grid {}: a value is empty; the values are a list such as {}=1,2,4", axis.key, axis.key);
  config::Assignment set = config::parse_assignment(axis.key + "=" + text, "--grid");
  config::Config scratch;
  config::assign(scratch, set.key, set.value, {config::Origin::Kind::kOther, "--grid"});
  if (std::find(axis.values.begin(), axis.values.end(), set.value) != axis.values.end())
    throw UsageError("--grid {}: the value {} is there twice", axis.key, text);
  axis.values.push_back(std::move(set.value));
  axis.texts.push_back(text);
}

std::string after_table(const std::string& key) {
  return key.substr(key.find('.') + 1);
}

}  // namespace

std::vector<std::string> parts_of_list(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth <= 0) {
      parts.emplace_back();
      continue;
    }
    parts.back() += c;
  }
  for (std::string& part : parts) part = std::string(config::trimmed(part));
  return parts;
}

GridAxis parse_axis(std::string_view argument) {
  GridAxis axis{.key = config::parse_assignment(argument, "--grid").key, .values = {}, .texts = {}};
  const std::string_view list = config::trimmed(argument.substr(argument.find('=') + 1));
  if (list.empty()) throw UsageError("--grid {}: the list of values is empty", axis.key);
  for (const std::string& text : parts_of_list(list)) add_value(axis, text);
  return axis;
}

std::vector<GridAxis> parse_grid(const std::vector<std::string>& arguments) {
  std::vector<GridAxis> grid;
  std::int64_t points = 1;
  for (const std::string& argument : arguments) {
    GridAxis axis = parse_axis(argument);
    for (const GridAxis& other : grid)
      if (other.key == axis.key)
        throw UsageError("--grid {}: the key is there twice; one list has all of its values", axis.key);
    points *= static_cast<std::int64_t>(axis.values.size());
    if (points > kMostTrials)
      throw UsageError("--grid: the grid has more than {} trials; fewer values or keys make a smaller one",
                       kMostTrials);
    grid.push_back(std::move(axis));
  }
  return grid;
}

std::int64_t points_of(const std::vector<GridAxis>& grid) {
  std::int64_t points = 1;
  for (const GridAxis& axis : grid) points *= static_cast<std::int64_t>(axis.values.size());
  return points;
}

std::vector<std::size_t> point_at(const std::vector<GridAxis>& grid, std::int64_t index) {
  std::vector<std::size_t> point(grid.size());
  for (std::size_t i = grid.size(); i-- > 0;) {
    const auto values = static_cast<std::int64_t>(grid[i].values.size());
    point[i] = static_cast<std::size_t>(index % values);
    index /= values;
  }
  return point;
}

std::vector<std::string> assignments_at(const std::vector<GridAxis>& grid, std::int64_t index) {
  std::vector<std::string> sets;
  const auto point = point_at(grid, index);
  for (std::size_t i = 0; i < grid.size(); ++i) sets.push_back(grid[i].key + "=" + grid[i].texts[point[i]]);
  return sets;
}

std::vector<std::string> short_names(const std::vector<GridAxis>& grid) {
  std::multiset<std::string> names;
  for (const GridAxis& axis : grid) names.insert(after_table(axis.key));
  std::vector<std::string> all;
  for (const GridAxis& axis : grid)
    all.push_back(names.count(after_table(axis.key)) > 1 ? axis.key : after_table(axis.key));
  return all;
}

std::vector<int> parse_sizes(std::string_view option, std::string_view text) {
  std::vector<int> sizes;
  for (const std::string& part : parts_of_list(text)) {
    int size = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (error != std::errc() || end != part.data() + part.size() || size < 1)
      throw UsageError("{}: expected whole numbers from 1, such as 1,2,4; got \"{}\"", option, part);
    if (!sizes.empty() && size <= sizes.back())
      throw UsageError("{}: {} stands behind {}; the sizes must rise", option, size, sizes.back());
    sizes.push_back(size);
  }
  return sizes;
}

std::int64_t weak_batch(std::int64_t batch, int first, int size) {
  // A batch is at most 2^31 (config::kinds::kManyMost), and so is a size: the product fits into 64 bits.
  const std::int64_t whole = batch * size;
  if (whole % first != 0)
    throw UsageError(
        "--scaling weak: batch.global = {} belongs to the first size, {}; on {} it would be {:g}, which is no whole "
        "number",
        batch, first, size, static_cast<double>(whole) / first);
  return whole / first;
}

std::vector<std::string> words_of(std::string_view option, std::string_view line) {
  std::vector<std::string> words;
  bool open = false;
  char quote = 0;
  for (const char c : line) {
    const bool blank = quote == 0 && (c == ' ' || c == '\t');
    if (blank || (quote != 0 && c == quote)) {
      if (blank) open = false;
      quote = 0;
      continue;
    }
    if (!open) words.emplace_back();
    open = true;
    if (quote == 0 && (c == '"' || c == '\''))
      quote = c;
    else
      words.back() += c;
  }
  if (quote != 0) throw UsageError("{}: a quote does not end in `{}`", option, line);
  if (words.empty()) throw UsageError("{}: there is no command", option);
  return words;
}

}  // namespace molen::plan
