// The cost of an op on a machine. It is fitted to measured times of ops (the Timelines of calibration programs), and
// can be evaluated for any shape.
//
// Per kind of op: log t = w . features, features = (1, log FLOPs, log bytes, log tokens, log sequence, accumulates)
// without those that the kind does not have. The tokens are those of the op: of a piece of the rows, or of a chunk of
// the head. The fit is a ridge regression in relative error, towards t proportional to
// FLOPs (or bytes, for kinds without FLOPs). A power law in the sizes holds well over the ranges that one machine is
// used in, needs few samples, and extrapolates without surprises.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "program/ir/program.h"

namespace molen::sim {

struct Sample {
  std::string kind;              // fitted_kind
  std::vector<double> features;  // features_of
  double seconds = 0.0;          // on a core of its own (program::OpTime::cpu_s)
};

// Returns the kind under which the times of an op are fitted. That is the op's kind, followed by "by NAME" where its
// kernels are not those of the setting or its optimizer is not the first one, by "within documents" where attention
// has a mask, and by "of TYPE" where a collective sums elements of 16 bits.
std::string fitted_kind(const program::Program& program, const program::Step& step);
// Returns the features of a step in the order above. They depend on the op's own rows, not on the micro-batch.
std::vector<double> features_of(const program::Step& step);
// An epilogue has the kind program::kind_of, and only its bytes as a feature.
std::vector<double> features_of(const program::EpilogueCost& epilogue);

struct Fit {
  std::vector<double> weights, center;
  double residual = 0.0;  // root mean square of log(measured / fitted) over the samples
  std::int64_t samples = 0;
  double typical_s = 0.0;  // median measured seconds
};

class CostModel {
 public:
  // Fits a model. It needs at least one sample of every kind for which `seconds` will be called.
  static CostModel fit(const std::vector<Sample>& samples);

  double seconds(const program::Program& program,
                 const program::Step& step) const;  // throws UsageError for an unmeasured kind
  bool knows(const std::string& kind) const { return fits_.count(kind) > 0; }
  const std::map<std::string, Fit>& fits() const { return fits_; }

  // Returns the seconds of any kind from its features. A recomputation without samples costs what the forward kernel
  // costs; any other kind without samples throws UsageError.
  double seconds(const std::string& kind, const std::vector<double>& features) const;
  // Returns the name of the kind whose fit gives these seconds. Throws UsageError as above.
  const std::string& fit_of(const std::string& kind) const;
  // Returns the relative spread of what a fit says of one op: with a probability of 80 % the true seconds are between
  // those over 1 + spread and those times 1 + spread. It follows from the fit's own residual, to which one more sample
  // is added that scatters as those of all kinds do, so that a fit of few samples is not taken for exact.
  double spread(const std::string& kind) const;
  // Returns the same of what the calibration factor says of a whole step.
  double factor_spread() const;

  // Returns the ratio of measured to simulated seconds of a whole step in the calibration's own programs. The seconds
  // of every op are multiplied by it. It covers what a measurement of single ops leaves out: ranks that wait for a
  // slower one, and the slow side of each op's distribution (a sum of medians is less than the median of sums).
  double calibration_factor() const { return calibration_factor_; }
  // `residual`: root mean square of the logarithms of the programs' own ratios over `factor`. Throws Error unless
  // `factor` is above 0 and `residual` at least 0.
  void set_calibration_factor(double factor, double residual);

  Json to_json() const;
  static CostModel from_json(const Json& json, std::string_view origin);

 private:
  const std::pair<const std::string, Fit>& entry_of(const std::string& kind) const;

  std::map<std::string, Fit> fits_;
  double calibration_factor_ = 1.0, factor_residual_ = 0.0;
};

}  // namespace molen::sim
