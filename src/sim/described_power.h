// The figures by which `energy.model` estimates the power of parts that no meter reads.
#pragma once

#include <optional>
#include <string>

#include "cluster/cluster.h"
#include "energy/power_figures.h"

namespace molen::sim {

// Returns the figures of a description: each GPU between its idle and its peak power, and the host at its power "while
// it trains", whatever the utilisation of its processors, because a description has no other power of a host. The
// bounds are the spreads of the figures.
energy::PowerFigures power_figures_of(const cluster::Cluster& cluster);

// Returns the figures that a value of energy.model gives: "on" those of the description that `cluster` (--cluster)
// names; a file of `molen energy calibrate` those of that file, and those of the description for parts that the file
// lacks. Nothing for "off". `key`: what the user calls the model. Throws UsageError that says what would give figures
// where there are none.
std::optional<energy::PowerFigures> power_figures(const std::string& model, const std::optional<std::string>& cluster,
                                                  const std::string& key);

}  // namespace molen::sim
