// Held-out loss and bits per byte, per language, with the forward-only program of the same builder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "exec/executor.h"

namespace molen::train {

// Of one set, or of all.
struct HeldOut {
  double loss = 0.0;                            // nats per token, over all languages
  std::map<std::string, double> bits_per_byte;  // by language
  std::int64_t tokens = 0;
};
struct ValidationResult : HeldOut {
  std::vector<HeldOut> sets;  // in their order
};

// Which windows a rank reads, and whether its losses count: those of one of the ranks that read the same.
struct DataPlace {
  int rank = 0, ranks = 1;
  bool counts = true;
};

// `evaluator` runs a Purpose::kEvaluate program; windows are dealt to the data-parallel ranks in turn. `most_windows` >
// 0 takes the first so many of each language of each set, on any number of ranks the same. Collective over `world`.
ValidationResult validate(exec::Executor& evaluator, const std::vector<const data::ValidationSet*>& sets,
                          const DataPlace& place, comm::Communicator& world, std::int64_t most_windows);

}  // namespace molen::train
