#include "train/observe/emissions.h"

#include <algorithm>
#include <utility>

namespace molen::train {

Emissions::Emissions(cluster::RunSite site, double opened_s) : site_(std::move(site)), time_s_(opened_s) {}

double Emissions::so_far(double joules, double time_s) {
  // The wall clock may be set back.
  const auto mean = site_.mean_intensity(std::min(time_s_, time_s), time_s);
  follows_series_ = mean.of_series || !site_.series;
  kg_ += (joules - joules_) * site_.pue.value * mean.kg_per_j;
  joules_ = joules, time_s_ = time_s;
  return kg_;
}

double Emissions::of_earlier(double joules, double time_s) const {
  return joules * site_.pue.value * site_.mean_intensity(time_s, time_s).kg_per_j;
}

}  // namespace molen::train
