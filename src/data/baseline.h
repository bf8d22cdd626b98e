// Computes the bits per byte of n-gram models on the held-out text that `molen data prepare` wrote. They are the
// baselines for a trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace molen::data {

struct Baseline {
  int order;  // 3: byte trigram
  std::string language;
  std::int64_t bytes;  // held-out text
  double bits_per_byte;
};

// Trains one model per order on all training texts of `prepared` (the output folder of `prepare`), in all languages
// together as the trained model sees them. Scores the held-out texts by language. Throws UsageError when there is no
// text.
std::vector<Baseline> ngram_baselines(const std::filesystem::path& prepared, const std::vector<int>& orders);

}  // namespace molen::data
