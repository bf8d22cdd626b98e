// How much of causal attention's work lies within documents: what a document mask leaves of it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "data/dataset.h"

namespace molen::data {

// Returns the scores within documents over all causal scores of a sequence of S tokens, S (S + 1) / 2. `starts` is what
// document_starts gives: for each token, the column where its document begins.
double attended_share(std::span<const std::int32_t> starts);

struct Attended {
  double mean = 1.0;       // share of a sequence, on average
  double deviation = 0.0;  // standard deviation over the sequences
  std::int64_t sequences = 0;
};
// Returns the shares between which that of `sequences` sequences together lies with a probability of 80 %, as means of
// independent draws do: `mean` plus and minus 1.28 standard deviations of such a mean, within 0 and 1.
std::pair<double, double> interval_of(const Attended& attended, std::int64_t sequences);
// Reads `count` > 0 sequences of training data from sample `first` on.
Attended attended_share(const Dataset& dataset, std::int64_t first, std::int64_t count);

}  // namespace molen::data
