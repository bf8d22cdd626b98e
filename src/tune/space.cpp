#include "tune/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/kinds.h"

namespace molen::tune {
namespace {

constexpr std::int64_t kMostPoints = std::int64_t{1} << 62;
const double kCategory = std::sqrt(0.5);

std::string without_table(const std::string& key) {
  return key.substr(key.find('.') + 1);
}

// Returns the global batch of `micro_batches` on each data rank, or why there is none.
Result<std::int64_t> accumulated_batch(const config::Config& c, int ranks, std::int64_t micro_batches) {
  std::int64_t data_ranks = ranks;
  for (const std::int64_t size : {c.parallel.tensor, c.parallel.pipeline, c.parallel.context}) {
    if (data_ranks % size != 0)
      return Failure{fmt::format("parallel: {} ranks are not a multiple of tensor x pipeline x context = {} x {} x {}",
                                 ranks, c.parallel.tensor, c.parallel.pipeline, c.parallel.context)};
    data_ranks /= size;
  }
  const double batch = static_cast<double>(c.batch.micro) * static_cast<double>(micro_batches * data_ranks);
  if (batch > static_cast<double>(config::kinds::kManyMost))
    return Failure{fmt::format("gas: {} micro-batches of {} sequences on {} data ranks are more than 2^31 sequences",
                               micro_batches, c.batch.micro, data_ranks)};
  return c.batch.micro * micro_batches * data_ranks;
}

}  // namespace

std::string Dimension::text(std::size_t level) const {
  const Json& value = values.at(level);
  return value.is_string() ? value.get<std::string>() : config::toml_value(value);
}

Space::Space(std::vector<Dimension> dimensions) : dimensions_(std::move(dimensions)) {
  for (std::size_t d = 0; d < dimensions_.size(); ++d) {
    const Dimension& dimension = dimensions_[d];
    if (find(dimension.key) != d)
      throw UsageError("--search {}: the key is there twice; one list has all of its values", dimension.key);
    const auto levels = static_cast<std::int64_t>(dimension.values.size());
    MOLEN_CHECK(levels > 0, "{} has no values", dimension.key);
    if (points_ > kMostPoints / levels) throw UsageError("--search: the space has more than 2^62 points");
    points_ *= levels;
    first_column_.push_back(columns());
    dimension_of_.insert(dimension_of_.end(), dimension.ordered() ? 1 : dimension.values.size(), static_cast<int>(d));
    places_.push_back(places_of(d));
  }
  if (find(kAccumulation) && find("batch.global"))
    throw UsageError("--search: gas decides batch.global (batch.micro x gas x data ranks); search one of the two");
  if (points_ < 2) throw UsageError("--search: the space has one point; a search needs a key with at least two values");
}

std::vector<double> Space::places_of(std::size_t d) const {
  const Dimension& dimension = dimensions_[d];
  if (!dimension.ordered()) return {};
  const std::size_t levels = dimension.values.size();
  std::vector<double> places(levels, 0.0);
  const auto value = [&](std::size_t level) { return dimension.values[level].get<double>(); };
  const double low = value(0), high = value(levels - 1);
  for (std::size_t i = 1; i < levels; ++i) {
    if (dimension.kind == Dimension::Kind::kRange)
      places[i] = (value(i) - low) / (high - low);
    else if (dimension.kind == Dimension::Kind::kLogRange)
      places[i] = std::log(value(i) / low) / std::log(high / low);
    else
      places[i] = static_cast<double>(i) / static_cast<double>(levels - 1);
  }
  return places;
}

std::optional<std::size_t> Space::find(std::string_view key) const {
  for (std::size_t d = 0; d < dimensions_.size(); ++d)
    if (dimensions_[d].key == key) return d;
  return std::nullopt;
}

std::int64_t Space::number_of(const Point& point) const {
  std::int64_t number = 0;
  for (std::size_t d = 0; d < dimensions_.size(); ++d)
    number = number * static_cast<std::int64_t>(dimensions_[d].values.size()) + static_cast<std::int64_t>(point.at(d));
  return number;
}

Point Space::point_of(std::int64_t number) const {
  Point point(dimensions_.size());
  for (std::size_t d = dimensions_.size(); d-- > 0;) {
    const auto levels = static_cast<std::int64_t>(dimensions_[d].values.size());
    point[d] = static_cast<std::size_t>(number % levels);
    number /= levels;
  }
  return point;
}

Eigen::RowVectorXd Space::encoded(const Point& point) const {
  Eigen::RowVectorXd row = Eigen::RowVectorXd::Zero(columns());
  for (std::size_t d = 0; d < dimensions_.size(); ++d) {
    if (dimensions_[d].ordered())
      row[first_column_[d]] = places_[d].at(point.at(d));
    else
      row[first_column_[d] + static_cast<Eigen::Index>(point.at(d))] = kCategory;
  }
  return row;
}

Eigen::MatrixXd Space::encoded(const std::vector<Point>& points) const {
  Eigen::MatrixXd rows(static_cast<Eigen::Index>(points.size()), columns());
  for (std::size_t i = 0; i < points.size(); ++i) rows.row(static_cast<Eigen::Index>(i)) = encoded(points[i]);
  return rows;
}

Point Space::decoded(const Eigen::RowVectorXd& row) const {
  Point point(dimensions_.size());
  for (std::size_t d = 0; d < dimensions_.size(); ++d) {
    const auto levels = static_cast<Eigen::Index>(dimensions_[d].values.size());
    Eigen::Index nearest = 0;
    if (dimensions_[d].ordered())
      for (Eigen::Index i = 1; i < levels; ++i) {
        const double at = row[first_column_[d]];
        const auto distance = [&](Eigen::Index k) { return std::abs(places_[d][static_cast<std::size_t>(k)] - at); };
        if (distance(i) < distance(nearest)) nearest = i;
      }
    else
      row.segment(first_column_[d], levels).maxCoeff(&nearest);
    point[d] = static_cast<std::size_t>(nearest);
  }
  return point;
}

Point Space::at_shares(const std::vector<double>& shares) const {
  Point point(dimensions_.size());
  for (std::size_t d = 0; d < dimensions_.size(); ++d) {
    const std::size_t levels = dimensions_[d].values.size();
    point[d] = std::min(levels - 1, static_cast<std::size_t>(shares.at(d) * static_cast<double>(levels)));
  }
  return point;
}

std::vector<Point> Space::neighbours(const Point& point) const {
  std::vector<Point> all;
  for (std::size_t d = 0; d < dimensions_.size(); ++d)
    for (std::size_t level = 0; level < dimensions_[d].values.size(); ++level) {
      const bool a_step = level + 1 == point[d] || level == point[d] + 1;
      if (level == point[d] || (dimensions_[d].ordered() && !a_step)) continue;
      all.push_back(point);
      all.back()[d] = level;
    }
  return all;
}

Result<Choice> Space::choice(const Point& point, const config::Config& base, const JobRanks& job) const {
  Choice chosen{base, job.ranks};
  const config::Origin origin{config::Origin::Kind::kOther, "molen tune"};
  try {
    for (std::size_t d = 0; d < dimensions_.size(); ++d) {
      const Dimension& dimension = dimensions_[d];
      const Json& value = dimension.values.at(point.at(d));
      if (dimension.key == kNodes)
        chosen.ranks = value.get<int>() * job.of_node;
      else if (dimension.key != kAccumulation)
        config::assign(chosen.config, dimension.key, value, origin);
    }
    if (const auto d = find(kAccumulation)) {
      const auto micro_batches = dimensions_[*d].values.at(point.at(*d)).get<std::int64_t>();
      const auto batch = accumulated_batch(chosen.config, chosen.ranks, micro_batches);
      if (!batch) return Failure{batch.reason()};
      config::assign(chosen.config, "batch.global", batch.value(),
                     {config::Origin::Kind::kOther, fmt::format("molen tune: gas = {}", micro_batches)});
    }
    config::Problems problems;
    config::check(chosen.config, problems);
    problems.raise();
  } catch (const UsageError& error) {
    return Failure{error.what()};
  }
  return chosen;
}

Json Space::keys(const Point& point) const {
  Json keys = Json::object();
  for (std::size_t d = 0; d < dimensions_.size(); ++d) keys[dimensions_[d].key] = dimensions_[d].values.at(point.at(d));
  return keys;
}

std::string Space::short_name(std::size_t dimension) const {
  const std::string& key = dimensions_.at(dimension).key;
  const auto same = std::count_if(dimensions_.begin(), dimensions_.end(),
                                  [&](const Dimension& d) { return without_table(d.key) == without_table(key); });
  return same > 1 ? key : without_table(key);
}

std::string Space::text(const Point& point) const {
  std::vector<std::string> parts;
  for (std::size_t d = 0; d < dimensions_.size(); ++d)
    parts.push_back(short_name(d) + " " + dimensions_[d].text(point.at(d)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

Point Space::point_of(const Json& keys, std::string_view origin) const {
  Point point(dimensions_.size());
  if (!keys.is_object() || keys.size() != dimensions_.size())
    throw UsageError("{}: keys: expected a value for each of the {} keys of the search", origin, dimensions_.size());
  for (std::size_t d = 0; d < dimensions_.size(); ++d) {
    const Json& value = json_member(keys, dimensions_[d].key, origin);
    const auto& values = dimensions_[d].values;
    const auto level = std::find(values.begin(), values.end(), value);
    if (level == values.end())
      throw UsageError("{}: keys: {} is none of the values of {}", origin, value.dump(), dimensions_[d].key);
    point[d] = static_cast<std::size_t>(level - values.begin());
  }
  return point;
}

}  // namespace molen::tune
