// The emissions of a run while it runs: each joule has the carbon intensity of the time in which it was consumed.
#pragma once

#include "cluster/site.h"

namespace molen::train {

class Emissions {
 public:
  // `opened_s`: the time (s since 1970) from which joules are counted.
  Emissions(cluster::RunSite site, double opened_s);

  // Returns the kg CO2e of the joules consumed from the opening until `time_s`, with the PUE. The joules since the last
  // call have the mean intensity of the time since then.
  double so_far(double joules, double time_s);
  double so_far() const { return kg_; }  // as the last call returned
  // Returns those of joules of which nobody knows when they were consumed: they have the intensity of `time_s`.
  double of_earlier(double joules, double time_s) const;
  // Returns whether all joules since the last call before had an intensity of the site's series, if it has one.
  bool follows_series() const { return follows_series_; }
  const cluster::RunSite& site() const { return site_; }

 private:
  cluster::RunSite site_;
  double joules_ = 0.0, kg_ = 0.0, time_s_;
  bool follows_series_ = true;
};

}  // namespace molen::train
