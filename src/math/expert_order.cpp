#include "math/expert_order.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace molen::math {

void expert_order(std::int64_t N, std::int64_t k, std::int64_t E, std::int64_t capacity, const std::int32_t* choice_Nk,
                  std::int32_t* counts_E, std::int32_t* offsets_E1, std::int32_t* place_Nk) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  MOLEN_CHECK(N >= 0 && k >= 1 && E >= 1 && k <= E, "{} tokens choose {} of {} experts", N, k, E);
  MOLEN_CHECK(N <= kMost / k, "{} tokens with {} experts each are more slots than an int32 counts", N, k);
  MOLEN_CHECK(capacity >= kNoCapacity, "experts of a capacity of {} tokens", capacity);
  const std::int64_t slots = N * k;
  std::fill_n(counts_E, E, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int32_t expert = choice_Nk[slot];
    MOLEN_CHECK(expert >= 0 && expert < E, "token {} chooses expert {} of {}", slot / k, expert, E);
    ++counts_E[expert];
  }
  const auto most = static_cast<std::int32_t>(capacity == kNoCapacity ? kMost : std::min(capacity, kMost));
  offsets_E1[0] = 0;
  for (std::int64_t e = 0; e < E; ++e) offsets_E1[e + 1] = offsets_E1[e] + std::min(counts_E[e], most);
  std::fill_n(counts_E, E, 0);  // counts again, as the number of the expert's earlier slots
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int32_t expert = choice_Nk[slot], before = counts_E[expert]++;
    place_Nk[slot] = before < most ? offsets_E1[expert] + before : -1;
  }
}

}  // namespace molen::math
