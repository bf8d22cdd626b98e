// The data of a configuration as far as predictions need it: its amount, and what a document mask leaves of attention's
// work on it.
#pragma once

#include <cstdint>
#include <vector>

#include "arch/architecture.h"
#include "config/config.h"
#include "data/attended.h"
#include "data/dataset.h"
#include "program/ir/program.h"

namespace molen::plan {

// Returns the entries of `data.train`. Throws UsageError when there are none.
std::vector<data::DataEntry> training_data(const config::Config& config);

// Returns the sequences of one epoch of the training data. Throws UsageError when the data cannot be read.
double sequences_per_epoch(const config::Config& config, const arch::Architecture& arch);

// Returns how many micro-batches a rank computes in one validation, the empty ones included (train/validation.h): of
// each language of each set of `data.validation`, all windows or those that `train.validate_batches` leaves, dealt to
// the data-parallel ranks. Returns 0 without validation sets. Throws UsageError when the data cannot be read.
std::int64_t validation_rounds(const config::Config& config, const arch::Architecture& arch,
                               const program::Setting& setting);

// Returns the share of attention's scores within documents in the first sequences of the configuration's training data.
// Throws UsageError, naming data.document_mask, when the data cannot be read.
data::Attended attended_of(const config::Config& config, const arch::Architecture& arch);
data::Attended attended_of(const data::Dataset& dataset);

// Returns the share at the upper end of its interval over the mean one, for the sequences of a rank in a step: what
// sim::DocumentErrors takes.
double most_over_mean(const data::Attended& attended, const program::Setting& setting);

}  // namespace molen::plan
