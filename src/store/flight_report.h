// Turns the flight records of all ranks into a report: the activity of each rank, the rank that holds the others up,
// and the place in the program. Pure functions; store/watch.h and `molen runs flight` read the files and look at
// processes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "store/flight.h"

namespace molen::store {

// An op of the expanded program, for people.
struct OpText {
  std::string name;     // "all_reduce axis=dp", on one line
  std::string excerpt;  // the lines around it, with "<-- here"; may be empty
};
// Returns the op's text in the program with this digest (FlightIdentity); each pipeline stage has its own program. May
// be empty: then ops have numbers only.
using OpTexts = std::function<OpText(const std::string& program_digest, int op)>;

enum class RankState {
  kAbsent,   // no file
  kEnded,    // left by its own account
  kFailed,   // as above, after an error
  kAlarmed,  // ended the job because of another rank
  kDead,     // its process is gone
  kStopped,  // its process is stopped (SIGSTOP, a debugger)
  kSilent,   // does not beat; its process is out of sight
  kBusy,     // beats, outside of steps (validation, a checkpoint, ...)
  kWaiting,  // has begun a collective
  kBetween,  // between two steps
  kHung,     // in an op, or between two, without progress
  kRunning,  // in an op
};
std::string_view name_of(RankState state);

// Observations of one rank. `beats` and `advances` compare two looks; absent after a single look.
struct Sighting {
  int rank = 0;
  std::optional<FlightState> flight;
  ProcessState process = ProcessState::kUnknown;
  std::optional<bool> beats, advances;
};
RankState state_of(const Sighting& seen);

struct Judgement {
  struct Rank {
    Sighting seen;
    RankState state{};
    std::string doing;  // "waiting in all_reduce ...", "stopped in ..."
  };
  std::vector<Rank> ranks;
  std::vector<int> culprits;    // empty: nobody holds the others up, or it cannot be told
  std::vector<int> waiting;     // ranks in a collective
  std::optional<int> waits_in;  // the op that the first waiting rank waits in; of ranks with its program the first op
  std::string summary;          // one sentence
};
Judgement judge(std::vector<Sighting> ranks, const OpTexts& ops);

std::string to_text(const Judgement& judgement, const OpTexts& ops);
Json to_json(const Judgement& judgement, const OpTexts& ops);

}  // namespace molen::store
