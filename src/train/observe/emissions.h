// The emissions, the water and the price of a run while it runs: each joule has the carbon intensity of the time in
// which it was consumed. Beside them, the share of the emissions of making the computers follows the time of their use.
#pragma once

#include "cluster/site.h"
#include "energy/totals.h"

namespace molen::train {

class Emissions {
 public:
  // `opened_s`: the time (s since 1970) from which joules are counted.
  Emissions(cluster::RunSite site, double opened_s);

  // Returns what the joules consumed, and the seconds of all devices (`device_s`), from the opening until `time_s`
  // came to. The joules since the last call have the mean intensity of the time since then.
  energy::AtSite so_far(double joules, double device_s, double time_s);
  energy::AtSite so_far() const;  // as the last call returned
  // Returns the same for joules that were consumed at an unknown time: they have the intensity of `time_s`.
  energy::AtSite of_earlier(double joules, double device_s, double time_s) const;
  // Returns whether the site's series, if it has one, has a value for the time of the last call.
  bool follows_series() const { return follows_series_; }
  const cluster::RunSite& site() const { return site_; }

 private:
  energy::AtSite at_site(double joules, double device_s, double kg) const;

  cluster::RunSite site_;
  double joules_ = 0.0, device_s_ = 0.0, kg_ = 0.0, time_s_;
  bool follows_series_ = true;
};

}  // namespace molen::train
