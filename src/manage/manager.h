// The manager of a site's caps: reads what the nodes consume, decides, orders limits, warns, and runs scripts
// (docs/decisions/0021-energy-caps.md). It keeps nothing itself: what it did is in the database.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "collect/database.h"
#include "manage/decide.h"
#include "manage/script.h"

namespace molen::manage {

struct ManagerOptions {
  std::string database;  // "sqlite:FILE", "postgresql://..."
  Caps caps;
  bool dry_run = false;          // orders, records and runs nothing
  std::function<double()> wall;  // seconds since 1970
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

struct PowerStatus {
  PowerCap cap;
  PowerDecision decision;
  std::vector<NodeNow> nodes;
};

struct EnergyStatus {
  EnergyCap cap;
  EnergyDecision decision;
  double from_s = 0, until_s = 0;  // of the period
  double measured_j = 0, assumed_j = 0;
  std::int64_t without_reading = 0;  // periods of scopes in it, whose joules nothing tells
  std::vector<NodeNow> nodes;
};

// One look at the site, and what came of it.
struct SiteStatus {
  double time_s = 0;
  std::vector<PowerStatus> power;
  std::vector<EnergyStatus> energy;
  SiteLimits limits;                  // that the nodes are to keep
  std::vector<std::string> happened;  // sentences: what was recorded, and how scripts ended
  // Returns whether each power cap can be met.
  bool met() const;
};
Json to_json(const SiteStatus& status);
std::string to_text(const SiteStatus& status);

class Manager {
 public:
  // Opens the database, and creates its tables where there are none. Throws as collect::open_database does.
  explicit Manager(ManagerOptions options);

  // Looks once. Throws Error if the database does not answer; then nothing is renewed, and the limits of the nodes end
  // by themselves.
  SiteStatus look();

 private:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  void look_at_power(const PowerCap& cap, const std::vector<NodeRecord>& records, SiteStatus& status);
  void look_at_energy(const EnergyCap& cap, const std::vector<NodeRecord>& records, SiteStatus& status);
  void order(const SiteStatus& status);
  void happen(const CapOfNodes& cap, const collect::Event& event, Variables variables, SiteStatus& status);
  void record(const std::string& cap, const collect::Event& event);

  const ManagerOptions options_;
  std::unique_ptr<collect::Database> database_;  // null in a dry run
  const std::string session_;
  std::int64_t seq_ = 0;
  std::vector<std::function<void(SiteStatus&)>> after_orders_;  // events and scripts, which may take their time
};

}  // namespace molen::manage
