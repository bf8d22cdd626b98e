// The joules that a model estimates for parts of a job's hosts that no meter reads (energy/power_model.h). They travel
// beside the measured ones, in values of their own, and enter no sum of those.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "comm/communicator.h"
#include "energy/power_model.h"

namespace molen::train {

class JobModel {
 public:
  // Collective over `world`, which must outlive this object. `model`: of this host, on the rank that reads its meters;
  // null on other ranks, and where meters read all of the host.
  JobModel(comm::Communicator& world, std::unique_ptr<energy::PowerModel> model, const std::string& host_name);

  void begin_step();
  // Ends the step on this host and appends its joules to `sums`, which the caller then sums over ranks.
  void end_step(std::vector<double>& sums);
  std::size_t values() const { return 4 * scopes_.size(); }
  // Returns the joules of all hosts by scope; nothing where a host that models the scope has no value.
  energy::ModelledJoules step(std::span<const double> summed) const;
  // Returns the joules since the meters were opened. Collective.
  energy::ModelledJoules so_far();

  // Returns {"scopes": {scope: {"hosts", "summed", "share", "figures"}}, "unavailable": {scope: reason}}. With several
  // hosts, the share is that of the first one, and each key of "unavailable" begins with "HOST: ".
  const Json& describe() const { return description_; }

 private:
  void put(const energy::Modelled& own, std::vector<double>& sums) const;

  comm::Communicator& world_;
  std::unique_ptr<energy::PowerModel> model_;
  std::map<std::string, int> scopes_;  // the scopes that any host models, and how many hosts do
  std::set<std::string> summed_;       // those that a sum adds
  Json description_;
};

// Returns the numbers of all processors of several lists such as "0-3,8", as one such list. Throws UsageError for text
// that is no list.
std::string union_of_cpus(const std::vector<std::string>& lists);

// Returns the estimates as {scope: {"joules", "least", "most"} or null}, and one of them.
Json to_json(const energy::ModelledJoules& joules);
Json to_json(const energy::Estimate& estimate);
// Returns a sentence for people about what is modelled, from JobModel::describe.
std::string model_note(const Json& described);
// Returns a line for people about joules that were modelled: "host 1.2 kJ (0.8 to 1.6)"; "" where there are none.
std::string modelled_text(const energy::ModelledJoules& joules);

}  // namespace molen::train
