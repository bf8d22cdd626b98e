#include "manage/shares.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace molen::manage {

Shares divide_power(double power, std::span<const Demand> demands) {
  if (!std::isfinite(power)) throw UsageError("a power to divide must be finite, is {}", power);
  double least = 0, wanted = 0, most = 0;
  for (const Demand& d : demands) {
    if (!(d.least >= 0 && d.most >= d.least && std::isfinite(d.most) && std::isfinite(d.wants)))
      throw UsageError("limits from {} W to {} W for {} W are no demand", d.least, d.most, d.wants);
    least += d.least;
    wanted += std::clamp(d.wants, d.least, d.most);
    most += d.most;
  }
  // The same part of a step for all: 0 where there is no room, 1 where all of it is granted.
  const auto part = [](double room, double step) {
    if (!(room > 0)) return 0.0;
    return room < step ? room / step : 1.0;
  };
  const double of_wants = part(power - least, wanted - least);
  const double of_rest = part(power - wanted, most - wanted);
  Shares shares;
  shares.met = power >= least;
  for (const Demand& d : demands) {
    const double wants = std::clamp(d.wants, d.least, d.most);
    shares.watts.push_back(
        std::clamp(d.least + of_wants * (wants - d.least) + of_rest * (d.most - wants), d.least, d.most));
  }
  return shares;
}

}  // namespace molen::manage
