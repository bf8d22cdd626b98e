// The course of a run's loss, and a power law that is fitted to it: what loss a run of another number of steps reaches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "policy/run_budget.h"

namespace molen::policy {

// The losses of steps as means over bins of equal length, at most kMostBins of them: when they are full, neighbours are
// joined. So the course of a run of any length stays small enough for a checkpoint.
class LossCurve {
 public:
  static constexpr std::size_t kMostBins = 128;
  struct Bin {
    double step = 0.0, loss = 0.0;  // means over the bin's steps
    std::int64_t steps = 0;
  };

  // Takes the loss of a step; steps must ascend. A loss that is not finite is left out.
  void add(std::int64_t step, double loss);
  const std::vector<Bin>& bins() const { return bins_; }

  Json to_json() const;
  // Throws UsageError that names `origin` for what to_json does not write.
  static LossCurve from_json(const Json& json, const std::string& origin);

 private:
  std::int64_t length_ = 1;  // steps of a bin
  std::vector<Bin> bins_;
};

// L(s) = e + a (s / scale)^-alpha: the loss in nats a token after s steps (Kaplan et al. 2020, arXiv 2001.08361, with
// the constant term of Hoffmann et al. 2022, arXiv 2203.15556). At a constant number of tokens a step, it is a law in
// tokens too. It knows no decay of the learning rate.
class LossLaw {
 public:
  // Fits the law by weighted least squares over the bins whose steps are all above `after`; e and a are not negative.
  // Returns why there is none where the bins are fewer than kLeastBins, or where the loss does not fall by a power law.
  static Result<LossLaw> fit(const LossCurve& curve, std::int64_t after);
  static constexpr std::size_t kLeastBins = 24;

  // Returns the mean loss to expect after this many steps. The interval is that of the fitted law (95 %), from the
  // scatter of the bins about it; single steps scatter more.
  Range at(double step) const;
  double e() const { return e_; }
  double a() const { return a_; }
  double alpha() const { return alpha_; }

 private:
  LossLaw() = default;
  // Returns whether the bins determine the law.
  bool set_covariance(const std::vector<LossCurve::Bin>& bins, double residual);

  double e_ = 0.0, a_ = 0.0, alpha_ = 0.0, scale_ = 1.0;
  double covariance_[3][3] = {};  // of e, a and alpha
  int degrees_ = 1;
};

}  // namespace molen::policy
