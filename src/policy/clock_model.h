// How the time and the power of an op follow the clock of its device: a stated model of five figures, which the
// description of a cluster has in [clocks] (docs/formats/cluster.md).
//
//   time   t(f) = t(high) (share high/f + 1 - share)
//   power  P(f) = idle + (peak - idle) activity g(f) / g(high),   g(f) = f max(1, f/knee)^exponent
//
// The power of a circuit is C V^2 f. Below the knee the voltage is the lowest that the device has, so the power is
// linear in the clock; above it the voltage grows with the clock. `activity` is what sim::energy_of takes as well, so a
// step at the highest clock has the same joules in both. Waiting and communication take the same time and power at all
// clocks.
#pragma once

#include <string>
#include <vector>

#include "base/units.h"
#include "cluster/cluster.h"

namespace molen::policy {

// The load that an op puts on its device.
enum class Load { kProducts, kMemory, kWaiting };

// The shares of the power between idle and peak that a device takes at its highest clock, by load.
struct PowerShares {
  double products = 0.0, memory = 0.0, waiting = 0.0;
};

class ClockModel {
 public:
  // Throws UsageError that names each figure which the description lacks.
  ClockModel(const cluster::Cluster& cluster, const PowerShares& shares);

  // Returns the clocks that the device can be set to, from the highest to the lowest, in Hz.
  const std::vector<double>& clocks_hz() const { return clocks_hz_; }
  // Returns the seconds of an op over those at the highest clock.
  double stretch(Load load, double clock_hz) const;
  Watts watts(Load load, double clock_hz) const;
  // Returns sentences that name everything which the model assumes, with the sources of its figures.
  const std::vector<std::string>& assumptions() const { return assumptions_; }

 private:
  double rise(double clock_hz) const;  // g(f)

  cluster::Device device_;
  PowerShares shares_;
  double high_hz_ = 0.0, knee_hz_ = 0.0, exponent_ = 0.0, share_ = 0.0;
  std::vector<double> clocks_hz_;
  std::vector<std::string> assumptions_;
};

}  // namespace molen::policy
