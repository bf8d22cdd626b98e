#include "math/expert_order.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace molen::math {

namespace {

void check_slots(std::int64_t N, std::int64_t k, std::int64_t E) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  MOLEN_CHECK(N >= 0 && k >= 1 && E >= 1 && k <= E, "{} tokens choose {} of {} experts", N, k, E);
  MOLEN_CHECK(N <= kMost / k, "{} tokens with {} experts each are more slots than an int32 counts", N, k);
}

std::int32_t checked_expert(std::int64_t k, std::int64_t E, const std::int32_t* choice_Nk, std::int64_t slot) {
  const std::int32_t expert = expert_of(choice_Nk[slot]);
  MOLEN_CHECK(expert < E, "token {} chooses expert {} of {}", slot / k, expert, E);
  return expert;
}

}  // namespace

std::int64_t limit_experts(std::int64_t N, std::int64_t k, std::int64_t E, std::int64_t B, std::int64_t capacity,
                           const std::int32_t* labels_N, std::int32_t* choice_Nk, std::int32_t* taken_E) {
  check_slots(N, k, E);
  MOLEN_CHECK(B >= 1 && N % B == 0, "{} tokens in {} sequences", N, B);
  MOLEN_CHECK(capacity >= 0, "experts of a capacity of {} tokens", capacity);
  std::int64_t beyond = 0;
  for (std::int64_t b = 0; b < B; ++b) {
    std::fill_n(taken_E, E, 0);
    for (const bool counts : {true, false})
      for (std::int64_t n = b * (N / B); n < (b + 1) * (N / B); ++n) {
        if ((!labels_N || labels_N[n] >= 0) != counts) continue;
        for (std::int64_t slot = n * k; slot < (n + 1) * k; ++slot) {
          const std::int32_t expert = checked_expert(k, E, choice_Nk, slot);
          const bool takes = taken_E[expert] < capacity;
          choice_Nk[slot] = takes ? expert : dropped(expert);
          taken_E[expert] += takes;
          beyond += counts && !takes;
        }
      }
  }
  return beyond;
}

void expert_order(std::int64_t N, std::int64_t k, std::int64_t E, const std::int32_t* choice_Nk, std::int32_t* counts_E,
                  std::int32_t* offsets_E1, std::int32_t* place_Nk) {
  check_slots(N, k, E);
  std::fill_n(counts_E, E, 0);
  for (std::int64_t slot = 0; slot < N * k; ++slot)
    counts_E[checked_expert(k, E, choice_Nk, slot)] += !is_dropped(choice_Nk[slot]);
  offsets_E1[0] = 0;
  for (std::int64_t e = 0; e < E; ++e) offsets_E1[e + 1] = offsets_E1[e] + counts_E[e];
  std::fill_n(counts_E, E, 0);  // from here on, counts are the number of the expert's earlier slots
  for (std::int64_t slot = 0; slot < N * k; ++slot) {
    const std::int32_t choice = choice_Nk[slot];
    place_Nk[slot] = is_dropped(choice) ? -1 : offsets_E1[choice] + counts_E[choice]++;
  }
}

}  // namespace molen::math
