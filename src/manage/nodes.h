// The nodes of a site as a manager sees them at one time: what each consumes, and what of it a limit bounds. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collect/limits.h"

namespace molen::manage {

// The last period of a scope that was measured.
struct ScopePower {
  std::string scope;
  bool counted = false;         // part of the sum of the node
  std::optional<double> watts;  // null where nothing has been measured within the time that counts
  double until_s = 0;           // the end of that period, seconds since 1970
};

// The figures that the database has of a node.
struct NodeRecord {
  std::string name;
  std::vector<ScopePower> scopes;
  std::optional<collect::Limitable> limitable;  // what it said that it can limit
  double asked_s = 0;                           // when it said so
  std::vector<collect::Limit> ordered = {};     // that it is to keep now
  std::vector<std::string> notes = {};          // what of it could not be used
};

// A device of a node whose power a limit bounds.
struct Device {
  std::string setting, scope;
  double least_w = 0, most_w = 0;   // of its limit
  std::optional<double> present_w;  // its limit now
  std::optional<double> drawn_w;    // null: no meter reads it
  // Returns what it counts with: what it draws; without a reading its present limit, or the greatest one.
  double counts_w() const { return drawn_w.value_or(present_w.value_or(most_w)); }
  // Returns the limit that it would want: its greatest one where it draws nearly its present limit, or where nothing
  // tells what it draws; else a tenth more than it draws.
  double wants_w() const;
};

struct NodeNow {
  enum class How {
    kMeasured,
    kLastKnown,  // its last reading is old
    kAssumed     // it has no reading: it counts with the greatest power that the cap's file gives
  };
  std::string name;
  How how = How::kMeasured;
  double until_s = 0;  // the end of the reading
  double rest_w = 0;   // what no limit bounds
  struct Reading {
    double watts = 0, until_s = 0;
    bool old = false;
  };
  std::vector<Reading> readings;   // the last one of each scope that counts
  std::vector<Device> devices;     // those that it can limit now
  std::string without;             // why there are none; empty where there are some
  std::vector<std::string> notes;  // what was assumed of it
  // Returns the power that it counts with.
  double watts() const;
};
const char* name_of(NodeNow::How how);  // "measured", "last known", "assumed"

struct NodeTimes {
  double now_s = 0;          // seconds since 1970
  double stale_after_s = 0;  // after which a reading, or a question for limits, is old
  double hold_s = 0;         // for which a node keeps limits that are not renewed
};
// `node_most_w`: what it counts with where nothing tells its power. A node that has ceased to ask for limits may have
// lost them since its last reading. Until a reading shows it without them, its devices count with their greatest
// limits.
NodeNow node_now(const NodeRecord& record, const NodeTimes& times, double node_most_w);

}  // namespace molen::manage
