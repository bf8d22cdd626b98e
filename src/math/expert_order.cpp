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

void check_runs(std::span<const PositionRun> runs) {
  MOLEN_CHECK(std::ssize(runs) <= kMostRuns, "{} runs of positions of a sequence", runs.size());
}

// Returns the number of the counts of a run's tokens of one kind among those of all sequences, runs and kinds.
std::int64_t place_of_counts(std::int64_t sequence, std::int64_t run, bool labelled) {
  return (sequence * kMostRuns + run) * kTokenKinds + (labelled ? 0 : 1);
}

// The tokens of one kind among those from `first` to `last`: those with a label, or the others.
struct TokensOfKind {
  std::int64_t first, last;
  bool labelled;
  bool has(const std::int32_t* labels_N, std::int64_t n) const { return (!labels_N || labels_N[n] >= 0) == labelled; }
};

// Marks the choices of tokens of one kind. Earlier tokens have taken places of each expert, or asked for them in vain.
// Returns the number of dropped slots.
std::int64_t limit_kind(std::int64_t k, std::int64_t E, std::int64_t capacity, const TokensOfKind& tokens,
                        const std::int32_t* labels_N, std::int32_t* choice_Nk, std::int32_t* taken_E) {
  std::int64_t beyond = 0;
  for (std::int64_t n = tokens.first; n < tokens.last; ++n) {
    if (!tokens.has(labels_N, n)) continue;
    for (std::int64_t slot = n * k; slot < (n + 1) * k; ++slot) {
      const std::int32_t expert = checked_expert(k, E, choice_Nk, slot);
      const bool takes = taken_E[expert] < capacity;
      choice_Nk[slot] = takes ? expert : dropped(expert);
      taken_E[expert] += takes;
      beyond += !takes;
    }
  }
  return beyond;
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
    const std::int64_t first = b * (N / B), last = (b + 1) * (N / B);
    beyond += limit_kind(k, E, capacity, {first, last, true}, labels_N, choice_Nk, taken_E);
    limit_kind(k, E, capacity, {first, last, false}, labels_N, choice_Nk, taken_E);
  }
  return beyond;
}

void count_choices(std::int64_t k, std::int64_t E, std::int64_t B, std::span<const PositionRun> runs,
                   const std::int32_t* labels_N, const std::int32_t* choice_Nk, std::int32_t* counts_B22E) {
  check_slots(B * count_positions(runs), k, E);
  check_runs(runs);
  std::fill_n(counts_B22E, B * kMostRuns * kTokenKinds * E, 0);
  std::int64_t first = 0;
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t r = 0; r < std::ssize(runs); ++r) {
      const std::int64_t last = first + runs[static_cast<std::size_t>(r)].size();
      for (const bool labelled : {true, false}) {
        std::int32_t* counts = counts_B22E + place_of_counts(b, r, labelled) * E;
        const TokensOfKind tokens{first, last, labelled};
        for (std::int64_t n = first; n < last; ++n)
          for (std::int64_t slot = n * k; tokens.has(labels_N, n) && slot < (n + 1) * k; ++slot)
            ++counts[checked_expert(k, E, choice_Nk, slot)];
      }
      first = last;
    }
}

std::int64_t limit_shared_experts(std::int64_t k, std::int64_t E, std::int64_t B, std::int64_t capacity,
                                  std::span<const std::vector<PositionRun>> runs, std::int64_t rank,
                                  const std::int32_t* labels_N, const std::int32_t* counts_cB22E,
                                  std::int32_t* choice_Nk, std::int32_t* taken_E) {
  MOLEN_CHECK(capacity >= 0, "experts of a capacity of {} tokens", capacity);
  MOLEN_CHECK(rank >= 0 && rank < std::ssize(runs), "rank {} of {}", rank, runs.size());
  for (const auto& of_rank : runs) check_runs(of_rank);
  const std::vector<PositionRun>& own = runs[static_cast<std::size_t>(rank)];
  check_slots(B * count_positions(own), k, E);
  // Finds what the tokens before those of one kind in a run have asked for: the earlier tokens of the same kind and,
  // before tokens without a label, all tokens with one.
  const auto find_earlier = [&](std::int64_t b, std::int64_t position, bool labelled) {
    std::fill_n(taken_E, E, 0);
    for (std::int64_t c = 0; c < std::ssize(runs); ++c)
      for (std::int64_t r = 0; r < std::ssize(runs[static_cast<std::size_t>(c)]); ++r)
        for (const bool other : {true, false}) {
          const bool before = runs[static_cast<std::size_t>(c)][static_cast<std::size_t>(r)].first < position;
          if (other == labelled ? !before : !other) continue;
          const std::int32_t* counts = counts_cB22E + place_of_counts(c * B + b, r, other) * E;
          for (std::int64_t e = 0; e < E; ++e) taken_E[e] += counts[e];
        }
  };
  std::int64_t beyond = 0, first = 0;
  for (std::int64_t b = 0; b < B; ++b)
    for (const PositionRun& run : own) {
      for (const bool labelled : {true, false}) {
        find_earlier(b, run.first, labelled);
        const std::int64_t out =
            limit_kind(k, E, capacity, {first, first + run.size(), labelled}, labels_N, choice_Nk, taken_E);
        if (labelled) beyond += out;
      }
      first += run.size();
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
