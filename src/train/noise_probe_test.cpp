#include "train/noise_probe.h"

#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace molen::train
