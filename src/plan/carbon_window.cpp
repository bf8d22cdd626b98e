#include "plan/carbon_window.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"

namespace molen::plan {
namespace {

// Throws UsageError unless a run of this length fits between the times and into the forecast.
void require_room(const cluster::IntensitySeries& forecast, double duration_s, double earliest_s, double deadline_s) {
  if (earliest_s < forecast.begin_s() || earliest_s >= forecast.end_s())
    throw UsageError("{}: the forecast is for {} to {}, and the earliest start is {}", forecast.origin(),
                     utc_timestamp(forecast.begin_s()), utc_timestamp(forecast.end_s()), utc_timestamp(earliest_s));
  if (earliest_s + duration_s > deadline_s)
    throw UsageError(
        "the run takes {}, but from {} until the deadline, {}, there are only {}; a later deadline, more nodes or a "
        "shorter run is needed",
        human(Seconds(duration_s)), utc_timestamp(earliest_s), utc_timestamp(deadline_s),
        human(Seconds(std::max(0.0, deadline_s - earliest_s))));
  if (earliest_s + duration_s > forecast.end_s())
    throw UsageError("{}: the forecast ends at {}, and a run of {} from {} lasts until {}; a longer forecast is needed",
                     forecast.origin(), utc_timestamp(forecast.end_s()), human(Seconds(duration_s)),
                     utc_timestamp(earliest_s), utc_timestamp(earliest_s + duration_s));
}

}  // namespace

CarbonWindows carbon_windows(const cluster::IntensitySeries& forecast, double duration_s, double earliest_s,
                             double deadline_s) {
  MOLEN_CHECK(duration_s > 0.0, "a run of {} s", duration_s);
  require_room(forecast, duration_s, earliest_s, deadline_s);
  const double latest = std::max(earliest_s, std::min(deadline_s, forecast.end_s()) - duration_s);
  // The end of a window is a sum, which may be rounded to beyond the forecast.
  const auto window = [&](double start) {
    const double end = start + duration_s;
    return CarbonWindow{start, end, forecast.mean(start, std::min(end, forecast.end_s()))};
  };
  CarbonWindows found{window(earliest_s), window(earliest_s), window(earliest_s), latest};
  std::vector<double> starts{latest};
  for (const auto& value : forecast.values())
    for (const double start : {value.from_s, value.from_s - duration_s})
      if (start > earliest_s && start < latest) starts.push_back(start);
  std::ranges::sort(starts);
  for (const double start : starts) {
    const CarbonWindow w = window(start);
    if (w.kg_per_j < found.best.kg_per_j) found.best = w;
    if (w.kg_per_j > found.worst.kg_per_j) found.worst = w;
  }
  return found;
}

}  // namespace molen::plan
