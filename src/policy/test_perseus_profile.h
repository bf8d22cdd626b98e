// What Perseus published of GPT-3 175B on A100 SXM in bf16: github.com/ml-energy/zeus, sosp24_data/emulation (Apache
// License 2.0). The seconds and joules of a forward and a backward of one micro-batch on one device of a stage, at each
// clock, and what the authors' emulation of whole steps gave.
#pragma once

#include <array>

namespace molen::policy {

struct ProfiledClock {
  double megahertz, forward_s, forward_j, backward_s, backward_j;
};

// stage_profile/gpt3-175b+a100_sxm_bf16.csv, stages 0 to 6 (rounded to 1e-8 s and 1e-6 J).
inline constexpr std::array kProfile{
    ProfiledClock{1410, 0.05016167, 23.805472, 0.09295378, 44.584248},
    ProfiledClock{1395, 0.05018537, 23.810792, 0.09309610, 44.443320},
    ProfiledClock{1380, 0.05030792, 23.655184, 0.09313718, 44.845608},
    ProfiledClock{1365, 0.05044545, 23.495304, 0.09346574, 43.539560},
    ProfiledClock{1350, 0.05074072, 23.123824, 0.09384630, 42.772736},
    ProfiledClock{1335, 0.05124114, 23.165640, 0.09445475, 42.320464},
    ProfiledClock{1320, 0.05157812, 22.504464, 0.09528747, 41.446008},
    ProfiledClock{1305, 0.05196971, 22.181072, 0.09599607, 41.203800},
    ProfiledClock{1290, 0.05253233, 21.700496, 0.09700459, 40.079400},
    ProfiledClock{1275, 0.05296300, 21.249560, 0.09781870, 38.981736},
    ProfiledClock{1260, 0.05356574, 20.794184, 0.09879113, 38.215288},
    ProfiledClock{1245, 0.05417581, 20.249384, 0.09975631, 37.652672},
    ProfiledClock{1230, 0.05481547, 19.817704, 0.10076146, 37.103768},
    ProfiledClock{1215, 0.05540471, 19.675040, 0.10182773, 36.164624},
    ProfiledClock{1200, 0.05606335, 19.260104, 0.10297132, 35.958864},
    ProfiledClock{1185, 0.05673428, 18.996624, 0.10407692, 35.303520},
    ProfiledClock{1170, 0.05741976, 18.557808, 0.10526102, 34.780064},
    ProfiledClock{1155, 0.05814701, 18.579296, 0.10648917, 34.513632},
    ProfiledClock{1140, 0.05889065, 18.358896, 0.10782126, 34.106992},
    ProfiledClock{1125, 0.05957447, 18.194712, 0.10886550, 33.601288},
    ProfiledClock{1110, 0.06034601, 17.864672, 0.11014442, 33.262424},
    ProfiledClock{1095, 0.06117221, 17.757080, 0.11156270, 32.925120},
    ProfiledClock{1080, 0.06203873, 17.513088, 0.11308960, 32.341768},
    ProfiledClock{1065, 0.06278859, 17.534328, 0.11437511, 32.479840},
    ProfiledClock{1050, 0.06367573, 17.584520, 0.11590795, 32.582736},
    ProfiledClock{1035, 0.06456946, 17.614936, 0.11752508, 32.724248},
    ProfiledClock{1020, 0.06550610, 17.583024, 0.11919771, 32.733240},
    ProfiledClock{1005, 0.06648569, 17.781312, 0.12091543, 33.115016},
    ProfiledClock{990, 0.06746446, 17.816760, 0.12266979, 32.791480},
    ProfiledClock{975, 0.06849078, 17.869016, 0.12450940, 33.066392},
    ProfiledClock{960, 0.06945023, 17.855328, 0.12596774, 33.269688},
    ProfiledClock{945, 0.07064526, 17.735504, 0.12834538, 33.039992},
    ProfiledClock{930, 0.07164757, 17.931136, 0.12990731, 33.086960},
    ProfiledClock{915, 0.07270322, 17.911112, 0.13152404, 33.100352},
    ProfiledClock{900, 0.07375856, 18.047864, 0.13322450, 33.085360},
    ProfiledClock{885, 0.07539882, 17.906432, 0.13689519, 33.352208},
    ProfiledClock{870, 0.07654167, 18.055040, 0.13870771, 33.325368},
    ProfiledClock{855, 0.07773071, 18.239360, 0.14056829, 33.641920},
};

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
