// Records for the tests of this module.
#pragma once

#include <string>
#include <vector>

#include "collect/record.h"

namespace molen::collect {

// Period number `seq` of a node: 60 s, 100 J in the scope that counts and 40 J in a part of it.
inline Batch test_batch(const std::string& node, const std::string& session, std::int64_t seq) {
  const double start_s = 1.7e9 + 60.0 * static_cast<double>(seq);
  Batch batch{node, session, seq, {}, {}};
  batch.periods.push_back(
      {"node", start_s, start_s + 60, 100.0, "", "cray", energy::Source::kCounter, true, "77", "0", "ann"});
  batch.periods.push_back(
      {"gpu0", start_s, start_s + 60, 40.0, "", "nvml", energy::Source::kCounter, false, "77", "0", "ann"});
  return batch;
}

// Periods `first` to `last` of a node in session "s".
inline std::vector<Batch> test_batches(const std::string& node, std::int64_t first, std::int64_t last) {
  std::vector<Batch> batches;
  for (std::int64_t seq = first; seq <= last; ++seq) batches.push_back(test_batch(node, "s", seq));
  return batches;
}

}  // namespace molen::collect
