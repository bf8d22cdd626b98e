// The carbon intensity of a grid over time: a file of measured or forecast values (docs/formats/intensity.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace molen::cluster {

// A value holds from its time until that of the next one. The last value holds as long as the one before it.
class IntensitySeries {
 public:
  struct Value {
    double from_s = 0.0;    // seconds since 1970
    double kg_per_j = 0.0;  // kg CO2e per J of electricity
  };
  // `values`: at least two, with ascending times. `origin` is the file, for messages.
  IntensitySeries(std::vector<Value> values, std::string origin);

  const std::vector<Value>& values() const { return values_; }
  const std::string& origin() const { return origin_; }
  double begin_s() const { return values_.front().from_s; }
  double end_s() const { return end_s_; }
  bool covers(double from_s, double to_s) const { return from_s >= begin_s() && to_s <= end_s(); }

  // Return the value at a time from begin_s() to end_s(), and the mean over an interval of a positive length in that
  // range.
  double at(double time_s) const;
  double mean(double from_s, double to_s) const;

 private:
  std::size_t index_of(double time_s) const;  // of the value that holds

  std::vector<Value> values_;
  std::vector<double> integral_;  // from begin_s() to the time of each value, kg s / J
  std::string origin_;
  double end_s_ = 0.0;
};

// Reads the text of a file. Throws UsageError that names file, line and column for a text without the two columns, a
// time or a value that is none or out of range, times that do not ascend, and fewer than two values.
IntensitySeries parse_intensity(std::string_view text, const std::string& origin);
// Reads a file. Throws the errors of parse_intensity and of read_file.
IntensitySeries read_intensity(const std::string& file);

}  // namespace molen::cluster
