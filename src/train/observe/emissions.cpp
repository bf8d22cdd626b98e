#include "train/observe/emissions.h"

#include <algorithm>
#include <utility>

namespace molen::train {

Emissions::Emissions(cluster::RunSite site, double opened_s) : site_(std::move(site)), time_s_(opened_s) {}

energy::AtSite Emissions::at_site(double joules, double kg) const {
  const double site_j = joules * site_.pue.value;
  energy::AtSite all{site_j, kg, {}, {}};
  if (site_.water) all.water_l = 1e3 * joules * site_.water->value;
  if (site_.price) all.eur = site_j * site_.price->value;
  return all;
}

energy::AtSite Emissions::so_far(double joules, double time_s) {
  // The wall clock may be set back.
  kg_ += (joules - joules_) * site_.pue.value * site_.mean_intensity(std::min(time_s_, time_s), time_s);
  follows_series_ = !site_.series || site_.series->covers(time_s, time_s);
  joules_ = joules, time_s_ = time_s;
  return so_far();
}

energy::AtSite Emissions::so_far() const {
  return at_site(joules_, kg_);
}

energy::AtSite Emissions::of_earlier(double joules, double time_s) const {
  return at_site(joules, joules * site_.pue.value * site_.mean_intensity(time_s, time_s));
}

}  // namespace molen::train
