// The space of a search: configuration keys with the values that each may take.
#pragma once

#include <Eigen/Dense>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "config/config.h"

namespace molen::tune {

// Besides keys of the configuration, a dimension may be one of these two, which stand for several keys:
//   gas    micro-batches of a rank in a step (gradient accumulation): batch.global = batch.micro x gas x data ranks,
//          where the data ranks are the ranks that tensor, pipeline and context parallelism leave
//   nodes  nodes of the cluster: the ranks of the job are all of their devices
inline constexpr std::string_view kAccumulation = "gas", kNodes = "nodes";

inline constexpr std::int64_t kMostLevels = 100000;  // values of one dimension

// Numbers of a list have equal distances in their order, those of a range have distances as their values, or as their
// logarithms. Other values have no order.
struct Dimension {
  enum class Kind { kList, kRange, kLogRange, kCategories };
  std::string key;
  Kind kind = Kind::kList;
  std::vector<Json> values;  // its levels; numbers rise
  bool ordered() const { return kind != Kind::kCategories; }
  std::string text(std::size_t level) const;  // "4", "full"
};

// The level of each dimension.
using Point = std::vector<std::size_t>;

// The size of the job where no dimension decides it, and the devices of a node.
struct JobRanks {
  int ranks = 1, of_node = 1;
};

// A point as a trial: what `molen train` would get.
struct Choice {
  config::Config config;
  int ranks = 1;
};

class Space {
 public:
  // Throws UsageError for a key that is there twice, for `gas` beside batch.global, and for a space of one point or of
  // more than 2^62.
  explicit Space(std::vector<Dimension> dimensions);

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  std::optional<std::size_t> find(std::string_view key) const;  // the number of the dimension
  std::int64_t points() const { return points_; }
  // Points have numbers: those of nested loops, of which the last dimension changes fastest.
  std::int64_t number_of(const Point& point) const;
  Point point_of(std::int64_t number) const;

  // The encoding: one row with columns from 0 to 1. An ordered dimension has one column. Categories have a column each,
  // which is sqrt(1/2) for the chosen one, so that two categories are at distance 1 as the ends of a range are.
  Eigen::Index columns() const { return static_cast<Eigen::Index>(dimension_of_.size()); }
  const std::vector<int>& dimension_of() const { return dimension_of_; }  // of each column
  Eigen::RowVectorXd encoded(const Point& point) const;
  Eigen::MatrixXd encoded(const std::vector<Point>& points) const;
  // Returns the nearest point of an encoding: encoded and decoded, a point is itself.
  Point decoded(const Eigen::RowVectorXd& row) const;
  // Returns the point at `shares` (in [0, 1)) of its dimensions, each of whose levels has an equal part.
  Point at_shares(const std::vector<double>& shares) const;

  // Returns the points that differ from one in a single dimension: by a step up or down, or by any other category.
  std::vector<Point> neighbours(const Point& point) const;

  // Returns the configuration with a point's values, checked as `config::load` does. Fails with the reason where the
  // values contradict each other: that is an outcome of a trial.
  Result<Choice> choice(const Point& point, const config::Config& base, const JobRanks& job) const;

  Json keys(const Point& point) const;  // {"parallel.tensor": 4, "gas": 10}
  // Returns "tensor 4, gas 10": the key without its table, where this is unique.
  std::string text(const Point& point) const;
  std::string short_name(std::size_t dimension) const;
  // Reads what `keys` wrote. Throws UsageError with `origin` for other keys, and for a value that is no level.
  Point point_of(const Json& keys, std::string_view origin) const;

 private:
  std::vector<Dimension> dimensions_;
  std::vector<int> dimension_of_;
  std::vector<Eigen::Index> first_column_;
  std::vector<double> places_of(std::size_t dimension) const;
  std::vector<std::vector<double>> places_;  // of the levels of ordered dimensions
  std::int64_t points_ = 1;
};

// Returns the space of `--search` arguments: key=1,2,4 (a list), key=4..20 (whole numbers), key=1..64:log,
// key=none,full (categories) or key=true,false. Each value is read as `--set` reads it. Throws UsageError that names
// the argument.
Space parse_space(const std::vector<std::string>& arguments);
// Returns the space of a TOML file (docs/formats/tune.md). Throws UsageError with file and line.
Space parse_space_file(std::string_view toml, std::string_view name);
// Returns the space in which the talk on Frontier searched the layout of a model of 175 billion parameters with
// DeepHyper (Dash et al., arXiv 2312.12705, section IV): pipeline and tensor ranks, sequences of a micro-batch,
// micro-batches of a step, ZeRO-1, and nodes.
Space frontier_space();

// Returns the dimensions as search files and journals have them: [{"key": ..., "values": [...]}] or
// [{"key": ..., "from": 4, "to": 20, "scale": "log"}].
Json to_json(const Space& space);

}  // namespace molen::tune
