// The manager's queries of the collector's database.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "manage/caps_file.h"
#include "manage/decide.h"
#include "manage/nodes.h"

namespace molen::manage {

// Returns the nodes of a database ("sqlite:FILE", "postgresql://...") that sent something within `forget_after`, and
// those in `named`, in the order of their names. Throws as collect::database_rows does.
std::vector<NodeRecord> read_nodes(const std::string& database, const Caps& caps, const std::set<std::string>& named,
                                   double now_s);

// An event that a manager recorded of a cap.
struct CapEvent {
  double time_s = 0;
  std::string kind;
  std::int64_t count = 0;
};
// Returns the last event of each kind, of those in `kinds`, and all of the kind `all_of` since a time.
std::vector<CapEvent> read_events(const std::string& database, const std::string& cap,
                                  const std::vector<std::string>& kinds, const std::string& all_of, double since_s);

// The sums of a scope over the periods that began between two times.
struct PeriodSum {
  ScopeCover cover;                  // of the periods that count and have a reading
  std::int64_t without_reading = 0;  // periods
};
std::vector<PeriodSum> read_sums(const std::string& database, double since_s, double until_s);

}  // namespace molen::manage
