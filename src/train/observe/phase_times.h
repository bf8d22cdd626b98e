// When a rank was in which phase of training: the times by which the ledger divides joules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/loader.h"
#include "program/ir/timeline.h"

namespace molen::train {

// What a rank does outside of steps.
enum class OutsideSteps { kStart, kValidation, kCheckpoint };

// The names of all phases that energy is divided among. An op that computes belongs to its phase of the program, and
// so does its work on the host; communication belongs to the stream of its axis, and a copy to its stream. They may
// overlap. Two phases are waits, which are taken out of the phases of their ops:
//
// - "data_wait": the part of an op that loads a micro-batch in which the loader had none ready.
// - "bubble": the part of a message between stages of a pipeline in which it waits for the other stage
//   (OpTime::waited_s, at the op's beginning) and no other op is open on any stream. A second message that waits as
//   well is not in the way, and a time in which several wait counts once. So a bubble overlaps no other phase of its
//   rank. The collectives between stages (over `pp` and `embedding`) are such messages too.
//
// The last names are those of OutsideSteps, in its order.
const std::vector<std::string>& energy_phases();
int energy_phase_of(OutsideSteps what);
int energy_phase_of(const program::Step& step);

struct PhaseTime {
  std::int64_t phase = 0;                 // an index of energy_phases
  std::int64_t start_ns = 0, end_ns = 0;  // on the steady clock (base/clock.h), which the ranks of a host share
};

// Adds the times of a step. Ops of one phase that follow each other on a stream within kSamePhaseNs are one time,
// because a rank also works between two ops, unless there is a bubble between them. `waits`: when the loader was waited
// for, in the order of time; what lies outside of ops that load does not count. Bubbles need OpTime::waited_s of the
// messages between stages (launch/waiting.h: StageWaiting); where it is 0, there are none. Returns for each op the
// nanoseconds in its own phase, without the waits.
inline constexpr std::int64_t kSamePhaseNs = 100'000;
std::vector<std::int64_t> add_phase_times(const std::vector<program::Expanded>& ops, const program::Timeline& timeline,
                                          const std::vector<data::LoaderWait>& waits, std::vector<PhaseTime>& times);

}  // namespace molen::train
