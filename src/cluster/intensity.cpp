#include "cluster/intensity.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "base/utf8.h"

namespace molen::cluster {
namespace {

constexpr std::int64_t kLargestSeries = std::int64_t{64} << 20;  // bytes: 100 years of hours with a dozen columns
constexpr std::size_t kMostCellsOfRow = 256;
constexpr double kMostGramsPerKwh = 2000.0;  // as site.intensity_g_per_kwh; coal has some 1000
constexpr double kKgPerJouleOfGram = 1e-3 / 3.6e6;

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

bool is_time_column(const std::string& name) {
  return name == "time" || name == "datetime (utc)";
}

// "g_per_kwh" is molen's own name. The files of Electricity Maps have one column of emissions over the life cycle and
// one of direct emissions, which leave out those of building and fuel; their names changed over the years.
bool is_value_column(const std::string& name) {
  return name == "g_per_kwh" ||
         (name.starts_with("carbon intensity") &&
          (name.find("life cycle") != std::string::npos || name.find("lca") != std::string::npos));
}

struct SeriesColumns {
  std::size_t time = 0, value = 0;
  std::string time_name, value_name;
};

SeriesColumns columns_of(const std::vector<std::string>& header, const std::string& origin) {
  std::optional<std::size_t> time, value;
  const auto take = [&](std::optional<std::size_t>& place, std::size_t i) {
    if (place)
      throw UsageError("{}:1: two columns have the same meaning, '{}' and '{}'; remove one", origin,
                       printable(header[*place]), printable(header[i]));
    place = i;
  };
  for (std::size_t i = 0; i < header.size(); ++i) {
    const std::string name = lower(header[i]);
    if (is_time_column(name)) take(time, i);
    if (is_value_column(name)) take(value, i);
  }
  if (!time || !value)
    throw UsageError(
        "{}:1: there is no column of {}; the first line names the columns, `time` and `g_per_kwh` among them, or is "
        "that of a file of Electricity Maps (docs/formats/intensity.md)",
        origin, time ? "carbon intensities" : "times");
  return {*time, *value, header[*time], header[*value]};
}

double grams_of(const std::string& cell, const SeriesColumns& columns, const std::string& where) {
  double grams = 0.0;
  const char* end = cell.data() + cell.size();
  const auto [stopped, error] = std::from_chars(cell.data(), end, grams);
  if (error != std::errc() || stopped != end || !std::isfinite(grams) || grams < 0.0 || grams > kMostGramsPerKwh)
    throw UsageError("{}: {}: '{}' is not a carbon intensity; expected a number from 0 to {:g} g CO2e/kWh", where,
                     printable(columns.value_name), printable(cell.substr(0, 64)), kMostGramsPerKwh);
  return grams;
}

}  // namespace

IntensitySeries::IntensitySeries(std::vector<Value> values, std::string origin)
    : values_(std::move(values)), origin_(std::move(origin)) {
  MOLEN_CHECK(values_.size() >= 2, "{}: {} values", origin_, values_.size());
  integral_.reserve(values_.size());
  integral_.push_back(0.0);
  for (std::size_t i = 1; i < values_.size(); ++i) {
    const double seconds = values_[i].from_s - values_[i - 1].from_s;
    MOLEN_CHECK(seconds > 0.0, "{}: value {} is not later than the one before", origin_, i);
    integral_.push_back(integral_.back() + seconds * values_[i - 1].kg_per_j);
  }
  end_s_ = values_.back().from_s + (values_.back().from_s - values_[values_.size() - 2].from_s);
}

std::size_t IntensitySeries::index_of(double time_s) const {
  MOLEN_CHECK(covers(time_s, time_s), "{}: no value at {}", origin_, time_s);
  const auto after = std::ranges::upper_bound(values_, time_s, {}, &Value::from_s);
  return static_cast<std::size_t>(after - values_.begin()) - 1;
}

double IntensitySeries::at(double time_s) const {
  return values_[index_of(time_s)].kg_per_j;
}

double IntensitySeries::mean(double from_s, double to_s) const {
  MOLEN_CHECK(to_s > from_s, "{}: an interval from {} to {}", origin_, from_s, to_s);
  const std::size_t first = index_of(from_s), last = index_of(to_s);
  if (first == last) return values_[first].kg_per_j;
  // Not the difference of two integrals from the beginning: for a step of milliseconds after years, it would be
  // rounding.
  return ((values_[first + 1].from_s - from_s) * values_[first].kg_per_j + (integral_[last] - integral_[first + 1]) +
          (to_s - values_[last].from_s) * values_[last].kg_per_j) /
         (to_s - from_s);
}

IntensitySeries parse_intensity(std::string_view text, const std::string& origin) {
  CsvReader reader(text, origin, kMostCellsOfRow);
  std::vector<std::string> cells;
  if (!reader.next(cells)) throw UsageError("{}: the file is empty; its first line names the columns", origin);
  const SeriesColumns columns = columns_of(cells, origin);
  std::vector<IntensitySeries::Value> values;
  while (reader.next(cells)) {
    const std::string where = fmt::format("{}:{}", origin, reader.line());
    if (cells.size() <= std::max(columns.time, columns.value))
      throw UsageError("{}: the line has {}; the first line names more columns", where,
                       counted(static_cast<std::int64_t>(cells.size()), "cell"));
    const auto time = parse_time(cells[columns.time]);
    if (!time) throw UsageError("{}: {}: {}", where, printable(columns.time_name), time.reason());
    if (!values.empty() && time.value() <= values.back().from_s)
      throw UsageError("{}: {} is not later than the time of the line before; times must ascend", where,
                       printable(cells[columns.time]));
    values.push_back({time.value(), kKgPerJouleOfGram * grams_of(cells[columns.value], columns, where)});
  }
  if (values.size() < 2)
    throw UsageError("{}: {}; at least two are needed, because a value holds until the time of the next one", origin,
                     counted(static_cast<std::int64_t>(values.size()), "value"));
  return {std::move(values), origin};
}

IntensitySeries read_intensity(const std::string& file) {
  return parse_intensity(read_file(file, kLargestSeries), file);
}

}  // namespace molen::cluster
