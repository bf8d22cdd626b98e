#include "train/noise_probe.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "data/test_folder.h"

namespace molen::train {
namespace {

TEST(NoiseProbes, CountTheLabelsOfTheFirstSamples) {
  constexpr std::int64_t kSequence = 3;
  const data::Batch batch{
      4, 2, {1, 2, 3, 4, 5, 6, 0, 0, 0}, {2, -1, 4, 5, 6, 7, -1, -1, -1}, {0, 0, 2, 0, 1, 1, 0, 0, 0}, {}};
  for (const auto& [samples, counted, labels] : {std::tuple(-2, 0, std::vector<std::int32_t>(9, -1)),
                                                 {0, 0, std::vector<std::int32_t>(9, -1)},
                                                 {1, 2, {2, -1, 4, -1, -1, -1, -1, -1, -1}},
                                                 {2, 5, batch.labels},
                                                 {7, 5, batch.labels}}) {
    std::vector<std::int32_t> ids(9, 99), found(9, 99), starts(9, 99);
    EXPECT_EQ(fill({ids.data(), found.data(), starts.data()}, batch, kSequence, samples), counted) << samples;
    EXPECT_EQ(found, labels) << samples;
    EXPECT_EQ(ids, batch.ids);
    EXPECT_EQ(starts, batch.document_start);
  }
}

using Times = std::vector<std::pair<std::int64_t, std::int64_t>>;

Times times_of(const std::vector<data::LoaderWait>& waits) {
  Times times;
  for (const data::LoaderWait& wait : waits) times.emplace_back(wait.start_ns, wait.end_ns);
  return times;
}

// The pass that reads ahead has the waits, and the step that then takes the same batches has none. The loader reads
// large batches, one ahead, so it is slower than this caller.
TEST(NoiseProbes, HaveTheWaitsForTheBatchesThatTheyReadAhead) {
  const data::TestFolder folder;
  std::vector<std::vector<std::int32_t>> documents(1);
  for (int i = 0; i < 400; ++i) documents[0].push_back(i);
  data::write_test_shards(folder.path(), {{"a", "nl", documents}}, 500);
  const data::Dataset dataset({{folder.path(), {}, {}}}, 3, {11, 500, "test"});
  data::Loader loader(dataset, {0, 2000, 2000, 0, 1, 1});
  Batches batches(loader);
  Times waits;
  std::vector<std::int64_t> samples;
  for (int i = 0; i < 1000 && waits.size() < 3; ++i) {
    const data::Batch batch = batches.ahead();
    if (batch.wait) waits.emplace_back(batch.wait->start_ns, batch.wait->end_ns);
    samples.push_back(batch.first_sample);
  }
  ASSERT_EQ(waits.size(), 3U);
  EXPECT_EQ(times_of(batches.take_waits()), waits);
  for (const std::int64_t sample : samples) EXPECT_EQ(batches.next().first_sample, sample);
  EXPECT_TRUE(batches.take_waits().empty()) << "of batches that were held";
  waits.clear();
  for (int i = 0; i < 1000 && waits.size() < 3; ++i)
    if (const data::Batch batch = batches.next(); batch.wait)
      waits.emplace_back(batch.wait->start_ns, batch.wait->end_ns);
  ASSERT_EQ(waits.size(), 3U);
  EXPECT_EQ(times_of(batches.take_waits()), waits) << "of a step that reads its own batches";
}

}  // namespace
}  // namespace molen::train
