// The power of a part of a machine as a function of its utilisation, from figures of a few utilisations.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace molen::energy {

// A value of joules or watts that a model gives, and the bounds between which the true one is expected.
struct Estimate {
  double value = 0, least = 0, most = 0;
  // Bounds of parts that share their figures are off together, so they add up linearly.
  Estimate& operator+=(const Estimate& other) {
    value += other.value, least += other.least, most += other.most;
    return *this;
  }
};
inline Estimate operator*(double factor, const Estimate& e) {
  return {factor * e.value, factor * e.least, factor * e.most};
}

// Joules that a model gives for parts that no meter reads, in an object of their own. They are never added to measured
// joules.
struct ModelledJoules {
  std::map<std::string, std::optional<Estimate>> scopes;  // nothing where there is no estimate of this time
  std::set<std::string> summed;                           // the scopes that `total` adds: no two of them share a part
  // Returns the sum; nothing where no summed scope has an estimate.
  std::optional<Estimate> total() const;
};

struct PowerPoint {
  double utilisation = 0;  // 0: idle; 1: busy all the time
  Estimate watts;
};

// Between two points power is taken to be linear. All that is known there is that it lies between those of the two
// points if power rises with utilisation, so these are the bounds. Below the first point and above the last one, power
// is that of the point.
class PowerCurve {
 public:
  // Points by ascending utilisation, at least one, with 0 <= least <= value <= most. Where noise made the value of a
  // point less than that of one before it, the two get their mean and the widest of their bounds (the method of pool
  // adjacent violators for monotone regression, Ayer et al. 1955), so power never falls as utilisation rises.
  explicit PowerCurve(std::vector<PowerPoint> points);

  Estimate watts_at(double utilisation) const;
  const std::vector<PowerPoint>& points() const { return points_; }

 private:
  std::vector<PowerPoint> points_;
};

}  // namespace molen::energy
