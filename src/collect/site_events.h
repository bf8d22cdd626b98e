// The events of a site that concern energy: the events of senders and of caps, and the gaps of meters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "collect/sums.h"

namespace molen::collect {

struct SiteEvent {
  double time_s = 0;                // since 1970
  std::optional<double> until_s;    // of a gap
  std::string node;                 // "cap:NAME" for a cap
  std::string kind;                 // as docs/formats/collect.md and caps.md have it; "no_reading" for a gap
  std::string text;                 // of a gap: the scope and the reason
  std::int64_t count = 0;           // of a gap: its periods
  std::string job = {}, step = {};  // of a gap; empty where they are not known
  bool operator==(const SiteEvent&) const = default;
};

// Returns the events of a database in the order of their times, of the times that the query names; with a job, the
// starts and ends of its senders and its gaps. `by` has no meaning. Periods without a reading that follow each other,
// of one scope of a node for one reason, are one gap. Changes nothing. Throws as energy_sums does.
std::vector<SiteEvent> site_events(const std::string& words, const SumQuery& query);

Json to_json(const SiteEvent& event);
// Returns a line for each event, with the column names of EAR's table of events and two more: `until`, `text`.
std::string site_events_csv(const std::vector<SiteEvent>& events);

}  // namespace molen::collect
