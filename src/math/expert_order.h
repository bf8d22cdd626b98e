// The order of a mixture of experts. It says which row each (token, expert) pair of a router's choice takes when the
// rows of every expert are stored together, and which pairs a capacity drops. It has only integers and is the same for
// all element types.
//
// A choice is the number of an expert, or its complement when the pair is dropped (`dropped`). The router's backward
// reads which experts were chosen, and the order leaves out dropped pairs.
//
// Letters of all files of a mixture of experts: N tokens (rows) of a micro-batch, d hidden, E experts, k experts a
// token, f width of an expert's FFN, M = N*k slots. Slot n*k + j is choice j of token n.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/position_run.h"

namespace molen::math {

inline std::int32_t dropped(std::int32_t expert) {
  return ~expert;
}
inline bool is_dropped(std::int32_t choice) {
  return choice < 0;
}
inline std::int32_t expert_of(std::int32_t choice) {
  return is_dropped(choice) ? ~choice : choice;
}

// Marks the choices beyond the capacity. In each of the B sequences, an expert takes the slots of its first `capacity`
// tokens (0 or more), and the slots of later tokens are dropped (GShard, arXiv 2006.16668, section 2.2). The order is
// that of positions, so no token's experts depend on later tokens. Tokens with a label below 0 take the capacity that
// the others leave; when labels_N is null, there are no such tokens. GShard's algorithm 1 lets first choices of all
// tokens go before second choices; here a token's choices go together. Returns the number of dropped slots of tokens
// with a label.
//
//   taken_E   overwritten
std::int64_t limit_experts(std::int64_t N, std::int64_t k, std::int64_t E, std::int64_t B, std::int64_t capacity,
                           const std::int32_t* labels_N, std::int32_t* choice_Nk, std::int32_t* taken_E);

// Several ranks may share the sequences. Each has up to kMostRuns runs of neighbouring positions of a sequence, in
// ascending order, and no rank knows alone which of an expert's tokens are the first ones. Each rank therefore counts
// the choices of its tokens by sequence, run, kind of token (with a label, without one) and expert. With the counts of
// all ranks, each rank drops the choices that limit_experts drops in whole sequences.
inline constexpr std::int64_t kMostRuns = 2;
inline constexpr std::int64_t kTokenKinds = 2;

// Counts the choices of a rank with the positions `runs` of each sequence. counts_B22E is overwritten.
void count_choices(std::int64_t k, std::int64_t E, std::int64_t B, std::span<const PositionRun> runs,
                   const std::int32_t* labels_N, const std::int32_t* choice_Nk, std::int32_t* counts_B22E);

// Marks the choices beyond the capacity on rank `rank` of the ranks with the positions `runs`. Returns the number of
// this rank's dropped slots of tokens with a label.
//
//   counts_cB22E   count_choices of each of the c ranks
//   taken_E        overwritten
std::int64_t limit_shared_experts(std::int64_t k, std::int64_t E, std::int64_t B, std::int64_t capacity,
                                  std::span<const std::vector<PositionRun>> runs, std::int64_t rank,
                                  const std::int32_t* labels_N, const std::int32_t* counts_cB22E,
                                  std::int32_t* choice_Nk, std::int32_t* taken_E);

// Sorts the slots that are not dropped by (expert, token) and numbers the rows.
//
//   counts_E     slots of the expert
//   offsets_E1   [E + 1]: the expert's rows are offsets_E1[e] to offsets_E1[e + 1]; the last number is that of all rows
//   place_Nk     the slot's row; -1: dropped
//
// Makes two passes over M integers on the calling thread, without scratch. They take about 2 ns per slot, while an
// expert's products take microseconds. Throws Error when a choice is not an expert, or when M is beyond the range of
// int32.
void expert_order(std::int64_t N, std::int64_t k, std::int64_t E, const std::int32_t* choice_Nk, std::int32_t* counts_E,
                  std::int32_t* offsets_E1, std::int32_t* place_Nk);

// The slots, as seen by the functions that move rows between token order and expert order. A row has d elements.
struct Slots {
  std::int64_t N, k, d;
  const std::int32_t* place_Nk;  // as above; every row has one slot
};

// One linear layer for each expert, W_e [out, in], on the expert's rows.
struct Groups {
  std::int64_t E, out, in;
  const std::int32_t* offsets_E1;  // as above
  std::int64_t first(std::int64_t e) const { return offsets_E1[e]; }
  std::int64_t rows(std::int64_t e) const { return offsets_E1[e + 1] - offsets_E1[e]; }
};

}  // namespace molen::math
