// The manager of a site's caps: reads what the nodes consume, decides, orders limits, warns, and runs scripts
// (docs/decisions/0021-energy-caps.md). It keeps nothing itself: what it did is in the database.
#pragma once

#include <functional>
#include <list>
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
  // by themselves. Scripts are started, and not waited for.
  SiteStatus look();
  // Starts the scripts that wait, kills those whose time is over, and records how scripts ended. Does not wait for one.
  // Returns whether some run or wait. Scripts of one cap run one after another, in the order of its events. Throws
  // Error as `look` does; what could not be recorded is recorded by the next call.
  bool tend_scripts();
  // Kills the scripts that run, and records so; those that wait are not run.
  void end_scripts();
  // Returns how scripts have ended since the last look.
  std::vector<std::string> take_ended() { return std::exchange(ended_, {}); }

 private:
  struct Job {
    std::string cap;
    Script script;
    std::string event;  // its kind
    ScriptVariables variables;
    std::unique_ptr<RunningScript> running;  // null while it waits
  };
  void look_at_power(const PowerCap& cap, const std::vector<NodeRecord>& records, SiteStatus& status);
  void look_at_energy(const EnergyCap& cap, const std::vector<NodeRecord>& records, SiteStatus& status);
  void order(const SiteStatus& status);
  void happen(const CapOfNodes& cap, const collect::Event& event, ScriptVariables variables, SiteStatus& status);
  void record(const std::string& cap, const collect::Event& event);
  void record_end(const Job& job, const ScriptResult& result);

  const ManagerOptions options_;
  std::unique_ptr<collect::Database> database_;  // null in a dry run
  const std::string session_;
  std::int64_t seq_ = 0;
  std::vector<std::function<void(SiteStatus&)>> after_orders_;  // events, and the start of scripts
  std::list<Job> jobs_;             // scripts that run or wait, in the order of their events
  std::vector<std::string> ended_;  // how scripts ended since the last look
};

}  // namespace molen::manage
