#include "plan/documents.h"

#include <algorithm>

#include "base/error.h"

namespace molen::plan {
namespace {
constexpr std::int64_t kReadSequences = 512;

// Only sizes are needed, so nothing is compared with the manifests.
data::OpenOptions unverified(const config::Config& c, const arch::Architecture& arch) {
  data::OpenOptions options;
  options.sequence_length = c.data.sequence_length;
  options.vocabulary = arch.vocabulary;
  options.verify = false;
  return options;
}

data::Dataset open_training(const config::Config& c, const arch::Architecture& arch) {
  return data::Dataset(training_data(c), static_cast<std::uint64_t>(c.data.seed), unverified(c, arch));
}

}  // namespace

std::vector<data::DataEntry> training_data(const config::Config& c) {
  if (c.data.train.empty())
    throw UsageError("data.train: at least one entry is needed, e.g. train = [{{ path = \"data/train\" }}]");
  std::vector<data::DataEntry> entries;
  for (const auto& e : c.data.train) entries.push_back({e.path, e.weight, e.languages});
  return entries;
}

double sequences_per_epoch(const config::Config& c, const arch::Architecture& arch) {
  return static_cast<double>(open_training(c, arch).sequences());
}

std::int64_t validation_rounds(const config::Config& c, const arch::Architecture& arch, const program::Setting& s) {
  const std::int64_t most = c.train.validate_batches.value_or(0) * s.global_batch,
                     at_once = s.micro_batch * s.data_ranks();
  std::int64_t rounds = 0;
  for (const auto& source : c.data.validation) {
    const data::ValidationSet set(source.path, unverified(c, arch), source.languages);
    for (const auto& language : set.languages())
      rounds += ((most > 0 ? std::min(most, language.windows) : language.windows) + at_once - 1) / at_once;
  }
  return rounds;
}

data::Attended attended_of(const data::Dataset& dataset) {
  return data::attended_share(dataset, 0, std::min(kReadSequences, dataset.sequences()));
}

data::Attended attended_of(const config::Config& c, const arch::Architecture& arch) {
  try {
    return attended_of(open_training(c, arch));
  } catch (const UsageError& error) {
    throw UsageError("{}: attention's work follows from the documents of data.train: {}", c.where("data.document_mask"),
                     error.what());
  }
}

double most_over_mean(const data::Attended& attended, const program::Setting& s) {
  const auto [least, most] = data::interval_of(attended, s.global_batch / s.data_ranks());
  return attended.mean > 0.0 ? std::max(1.0, most / attended.mean) : 1.0;
}

}  // namespace molen::plan
