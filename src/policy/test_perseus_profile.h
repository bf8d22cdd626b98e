// A few figures that Perseus (SOSP'24) published of GPT-3 175B on A100 SXM in bf16 (github.com/ml-energy/zeus,
// sosp24_data/emulation): the seconds and joules of a forward and a backward of one micro-batch on one device of a
// stage, at eight of the 38 clocks, and what the authors' emulation of whole steps gave.
#pragma once

#include <array>
#include <cstddef>

namespace molen::policy {

struct ProfiledClock {
  double megahertz, forward_s, forward_j, backward_s, backward_j;
};

// stage_profile/gpt3-175b+a100_sxm_bf16.csv, stages 0 to 6.
inline constexpr std::array kProfile{
    ProfiledClock{1410, 0.05016167, 23.805472, 0.09295378, 44.584248},
    ProfiledClock{1335, 0.05124114, 23.165640, 0.09445475, 42.320464},
    ProfiledClock{1245, 0.05417581, 20.249384, 0.09975631, 37.652672},
    ProfiledClock{1155, 0.05814701, 18.579296, 0.10648917, 34.513632},
    ProfiledClock{1095, 0.06117221, 17.757080, 0.11156270, 32.925120},
    ProfiledClock{1080, 0.06203873, 17.513088, 0.11308960, 32.341768},
    ProfiledClock{1005, 0.06648569, 17.781312, 0.12091543, 33.115016},
    ProfiledClock{855, 0.07773071, 18.239360, 0.14056829, 33.641920},
};

// Returns the figures at a clock between these, on a line between its neighbours.
inline ProfiledClock profile_at(double megahertz) {
  std::size_t i = 1;
  while (i + 1 < kProfile.size() && kProfile[i].megahertz > megahertz) ++i;
  const ProfiledClock &above = kProfile[i - 1], &below = kProfile[i];
  const double part = (above.megahertz - megahertz) / (above.megahertz - below.megahertz);
  const auto at = [&](double ProfiledClock::*figure) { return above.*figure + part * (below.*figure - above.*figure); };
  return {megahertz, at(&ProfiledClock::forward_s), at(&ProfiledClock::forward_j), at(&ProfiledClock::backward_s),
          at(&ProfiledClock::backward_j)};
}

// The last of the 8 stages, which has the head, over the others. Its rows of the same file are within 0.3 % of these
// ratios at all clocks.
inline constexpr double kLastForwardS = 0.05403326 / 0.05016167, kLastForwardJ = 24.864333 / 23.805472,
                        kLastBackwardS = 0.09885863 / 0.09295378, kLastBackwardJ = 46.406002 / 44.584248;

// envpipe_result.csv: the seconds and joules of a step with EnvPipe's plan, in units in which a forward takes 10 times
// the profile's seconds and a pipeline of 8 stages has 8 devices a stage.
struct PublishedStep {
  int micro_batches;
  double envpipe_s, envpipe_j;
};
inline constexpr std::array kEnvPipe{PublishedStep{12, 28.365, 503607.718}, PublishedStep{24, 46.712, 968871.603},
                                     PublishedStep{48, 83.406, 1899399.374}, PublishedStep{96, 156.794, 3760454.915}};
inline constexpr double kSecondsOfProfile = 10.0, kDevicesOfStage = 8.0;

// iteration_time_energy/a100_sxm/gpt3-175b_bf16_mb12.csv: the first and the least of Perseus' own frontier for 12
// micro-batches. Its tasks take whole milliseconds, rounded down.
inline constexpr double kPerseusFastestS = 2.818, kPerseusFastestJ = 6212.848926;
inline constexpr double kPerseusLeastS = 3.187, kPerseusLeastJ = 5656.088982;

// The power of an A100 that waits for a message: Kareus (OSDI'26), default of its artifact.
inline constexpr double kWaitWatts = 85.0;

}  // namespace molen::policy
