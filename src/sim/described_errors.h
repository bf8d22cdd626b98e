// The errors of costs on described devices: those of the description's figures, and those of the factors.
#pragma once

#include <string>
#include <vector>

#include "sim/described_costs.h"
#include "sim/intervals.h"

namespace molen::sim {

// The sources are
//   - each figure of the description that has a spread and on which costs depend: "device.bandwidth",
//     "node.host_link", "tiers.NVLink 4.latency"
//   - the class of an op, for what the factors do not say of it: "products", "attention", "memory", "collectives
//     within nodes", "collectives between nodes", "messages" and "host". The spread of each is Factors::spread.
class DescribedErrors : public OpErrors {
 public:
  DescribedErrors(const cluster::Cluster& cluster, const Factors& factors, const Framework& framework = {});
  std::vector<Errors> of(const program::Program& program, const program::Step& step) const override;

 private:
  // A figure at the end of its interval at which ops take longest.
  struct Moved {
    std::string figure;
    bool of_host = false, of_links = false;  // whether only ops of the host, or only communication, may depend on it
    DescribedCosts costs;
  };
  std::string class_of(const program::Program& program, const program::Step& step) const;

  DescribedCosts costs_;
  double spread_;  // of a class
  std::vector<Moved> moved_;
};

}  // namespace molen::sim
