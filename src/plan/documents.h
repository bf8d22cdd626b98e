// The training data of a configuration, and what a document mask leaves of attention's work on it.
#pragma once

#include <vector>

#include "arch/architecture.h"
#include "config/config.h"
#include "data/attended.h"
#include "data/dataset.h"

namespace molen::plan {

// Returns the entries of `data.train`. Throws UsageError when there are none.
std::vector<data::DataEntry> training_data(const config::Config& config);

// Returns the share of attention's scores within documents in the first sequences of the configuration's training data.
// Throws UsageError, naming data.document_mask, when the data cannot be read.
data::Attended attended_of(const config::Config& config, const arch::Architecture& arch);
data::Attended attended_of(const data::Dataset& dataset);

}  // namespace molen::plan
