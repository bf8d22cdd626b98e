// Factors between what the figures of a cluster's description allow and what training programs reach on it. Each was
// fitted to published runs (bench/published.py), or is an assumption that says so.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace molen::sim {

struct Factor {
  std::string name, meaning;
  double value = 0.0;
  double prior = 0.0;  // standard deviation of the logarithm before the fit; 0: the value is assumed, not fitted
  double start = 0.0;  // the value before the fit
};

class Factors {
 public:
  // Returns the factors that molen ships (src/sim/factors.json).
  static const Factors& shipped();
  // Returns the shipped factors with the values of a file: a JSON object of names and numbers. Throws UsageError for a
  // name that does not exist, with the nearest one, and for a value that is not a positive number.
  static Factors read(const fs::path& path);
  static Factors parse(const std::string& text, const std::string& origin);
  // Returns several sets: those of a JSON array of such objects, or the one of an object.
  static std::vector<Factors> read_sets(const fs::path& path);

  double of(std::string_view name) const;  // throws Error for a name that does not exist
  const std::vector<Factor>& all() const { return all_; }
  // The relative spread of each class of ops (described_errors.h) with which 80 % of the published runs are in their
  // intervals.
  double spread() const { return spread_; }
  // With a probability of 80 %, the bytes of a published run are within this of the predicted ones: between them over 1
  // + memory_spread, and times that.
  double memory_spread() const { return memory_spread_; }
  Json to_json() const;  // name -> {"value", "prior", "start", "fitted", "meaning"}

 private:
  void set(const Json& values, const std::string& origin);

  std::vector<Factor> all_;
  double spread_ = 0.0, memory_spread_ = 0.0;
};

}  // namespace molen::sim
