// The options of `molen generate` and `molen eval`; free of ATen, so that the command line is too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"

namespace molen::infer {

struct Sampling {
  double temperature = 0.8;  // 0: the most likely token
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;
  std::uint64_t seed = 0;
};

struct GenerateOptions {
  Sampling sampling;
  std::int64_t max_tokens = 128;
  std::vector<std::string> stops;  // generation ends before the first of these strings
  bool use_cache = true;           // false: run the whole sequence again for each token (slow; for comparison)
  int threads = 0;                 // 0: the machine's cores
};

struct EvalLogitsOptions {
  fs::path model, tokens, output;  // tokens: JSON array of token-id arrays of equal length
  int threads = 0;
};

}  // namespace molen::infer
