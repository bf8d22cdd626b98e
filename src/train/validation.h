// Computes the held-out loss and the bits per byte of each language, with the forward-only program that the same
// builder makes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "exec/executor.h"

namespace molen::train {

// The result of one set, or of all sets.
struct HeldOut {
  double loss = 0.0;                            // nats per token, over all languages
  std::map<std::string, double> bits_per_byte;  // by language
  std::int64_t tokens = 0;
};
struct ValidationResult : HeldOut {
  std::vector<HeldOut> sets;  // in the order of the sets
};

// Says which windows a rank reads, and whether its losses count. When several ranks read the same windows, the losses
// of only one of them count.
struct DataPlace {
  int rank = 0, ranks = 1;
  bool counts = true;
};

// Returns the held-out losses. `evaluator` runs a Purpose::kEvaluate program; windows are dealt to the data-parallel
// ranks in turn. When `most_windows` > 0, only the first `most_windows` windows of each language of each set are used,
// the same on any number of ranks. Collective over `world`.
ValidationResult validate(exec::Executor& evaluator, const std::vector<const data::ValidationSet*>& sets,
                          const DataPlace& place, comm::Communicator& world, std::int64_t most_windows);

}  // namespace molen::train
