#include "train/observe/emissions.h"

#include <algorithm>
#include <utility>

namespace molen::train {

Emissions::Emissions(cluster::RunSite site, double opened_s) : site_(std::move(site)), time_s_(opened_s) {}

energy::AtSite Emissions::at_site(double joules, double device_s, double kg) const {
  const double site_j = joules * site_.pue.value;
  energy::AtSite all{site_j, kg, {}, {}, {}, {}};
  if (site_.water) all.water_l = 1e3 * joules * site_.water->value;
  if (site_.price) all.eur = site_j * site_.price->value;
  if (site_.market_intensity) all.market_kg_co2e = site_j * site_.market_intensity->value;
  if (site_.embodied) all.embodied_kg_co2e = device_s * site_.embodied->value;
  return all;
}

energy::AtSite Emissions::so_far(double joules, double device_s, double time_s) {
  // The wall clock may be set back.
  kg_ += (joules - joules_) * site_.pue.value * site_.mean_intensity(std::min(time_s_, time_s), time_s);
  follows_series_ = !site_.series || site_.series->covers(time_s, time_s);
  joules_ = joules, device_s_ = device_s, time_s_ = time_s;
  return so_far();
}

energy::AtSite Emissions::so_far() const {
  return at_site(joules_, device_s_, kg_);
}

energy::AtSite Emissions::of_earlier(double joules, double device_s, double time_s) const {
  return at_site(joules, device_s, joules * site_.pue.value * site_.mean_intensity(time_s, time_s));
}

}  // namespace molen::train
