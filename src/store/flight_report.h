// Turns the flight records of all ranks into a report: what each rank does, where in the program it is, and which rank
// holds the others up. Pure functions; store/watch.h and `molen runs flight` read the files and look at processes.
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
  kEnded,    // ended, as it recorded itself
  kFailed,   // ended after an error, as it recorded itself
  kAlarmed,  // ended the job because of another rank
  kDead,     // its process is gone
  kStopped,  // its process is stopped (SIGSTOP, a debugger)
  kSilent,   // does not beat, and its process is on a host where this process cannot look
  kBusy,     // beats, outside of steps (validation, a checkpoint, ...)
  kWaiting,  // has begun a collective
  kBetween,  // between two steps
  kHung,     // in an op, or between two, without progress
  kRunning,  // in an op
};
std::string_view name_of(RankState state);

// Observations of one rank. `beats` and `advances` compare two looks; they are absent after a single look.
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
  std::vector<int> culprits;  // empty: nobody holds the others up, or it cannot be told
  std::vector<int> waiting;   // ranks in a collective
  // The first op in which a rank waits, among the ranks that run the program of the first waiting rank.
  std::optional<int> waits_in;
  std::string summary;  // one sentence
};
Judgement judge(std::vector<Sighting> ranks, const OpTexts& ops);

std::string to_text(const Judgement& judgement, const OpTexts& ops);
Json to_json(const Judgement& judgement, const OpTexts& ops);

}  // namespace molen::store
