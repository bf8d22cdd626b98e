#include "plan/documents.h"

#include <algorithm>

#include "base/error.h"

namespace molen::plan {
namespace {
constexpr std::int64_t kReadSequences = 512;

}  // namespace

std::vector<data::DataEntry> training_data(const config::Config& c) {
  if (c.data.train.empty())
    throw UsageError("data.train: at least one entry is needed, e.g. train = [{{ path = \"data/train\" }}]");
  std::vector<data::DataEntry> entries;
  for (const auto& e : c.data.train) entries.push_back({e.path, e.weight, e.languages});
  return entries;
}

data::Attended attended_of(const data::Dataset& dataset) {
  return data::attended_share(dataset, 0, std::min(kReadSequences, dataset.sequences()));
}

data::Attended attended_of(const config::Config& c, const arch::Architecture& arch) {
  try {
    data::OpenOptions options;
    options.sequence_length = c.data.sequence_length;
    options.vocabulary = arch.vocabulary;
    options.verify = false;
    const data::Dataset dataset(training_data(c), static_cast<std::uint64_t>(c.data.seed), options);
    return attended_of(dataset);
  } catch (const UsageError& error) {
    throw UsageError("{}: attention's work follows from the documents of data.train: {}", c.where("data.document_mask"),
                     error.what());
  }
}

}  // namespace molen::plan
