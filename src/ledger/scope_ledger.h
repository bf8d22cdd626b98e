// The joules of each phase of training on one scope of energy (a GPU, a package), from its counter and the times of the
// phases of all ranks that share it. docs/decisions/0015-ledger.md has the model and its derivation.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "ledger/activity.h"
#include "ledger/counter_changes.h"
#include "ledger/lag.h"
#include "ledger/least_squares.h"

namespace molen::ledger {

// Names of the entries that are no phases.
inline constexpr const char* kBase = "base";                  // the power of the scope when no phase runs
inline constexpr const char* kUnattributed = "unattributed";  // ticks that no phase and no base explain

struct Entry {
  std::string name;  // of a phase, kBase, kUnattributed, or "a+b" for phases whose powers cannot be told apart
  std::int64_t ticks = 0;
  Joules energy;
  // The standard error of the energy as an estimate for this name. A 95 % interval is 1.96 of it to either side. Null
  // for unattributed, which is a difference and no estimate.
  std::optional<Joules> standard_error;
  double rank_seconds = 0;  // the time in the phases, over ranks; for the base: the time of the scope
  std::string note;         // why phases share an entry
};

struct Account {
  // Phases in their order, each in its own entry or in a shared one; the base, unless phases contain it; unattributed.
  std::vector<Entry> entries;
  std::int64_t ticks = 0;  // of the counter; the sum of the entries' ticks, exactly
  std::optional<Seconds> lag, lag_error;
  // Powers times seconds gave more than the counter counted, and were multiplied by this; 1 otherwise.
  double scaled_by = 1.0;
  std::string refusal;       // why no phase has an entry; empty if they have
  std::int64_t changes = 0;  // of the counter, that the estimate rests on
};

struct LedgerOptions {
  // The number of changes from which the lag is estimated first. If it is refused, the number is doubled, up to the
  // most; after that nothing is attributed.
  int first_changes = 400, most_changes = 6400;
  // If more must be held (ScopeLedger::held) before the lag is known, nothing is attributed: many short phases would
  // otherwise take hundreds of MiB.
  std::size_t most_held = std::size_t{1} << 19;
};

// Not thread-safe.
class ScopeLedger {
 public:
  // Throws Error when two phases have the same name, when a phase is called as an entry of another kind, and for what
  // Activity and CounterChanges refuse.
  ScopeLedger(Counter counter, std::vector<std::string> phases, int ranks, LedgerOptions options = {});

  // As in Activity. Samples wait for the phases of their time, so the two may come in any order.
  void add_phase(int rank, int phase, double start_s, double end_s) { activity_.add(rank, phase, start_s, end_s); }
  void complete_phases(int rank, double until_s);
  void add_sample(const Sample& sample);

  // Returns the account of all samples so far. Ticks whose phases are not complete yet are unattributed for now.
  Account account() const;
  // Returns the gaps of the counter since the last call.
  std::vector<Gap> take_gaps() { return changes_.take_gaps(); }
  std::size_t held() const { return waiting_.size() + activity_.knots(); }  // what memory grows with

 private:
  void take();
  void begin();
  void use(const Change& change);
  struct Shares;
  Shares shares() const;

  CounterChanges changes_;
  Activity activity_;
  std::vector<std::string> phases_;
  LedgerOptions options_;
  std::deque<Change> waiting_;  // for their phases, or for the lag
  int next_try_;                // the number of changes at which the lag is estimated
  std::string refusal_;
  bool given_up_ = false;

  // Once there is a lag:
  std::optional<Lag> lag_;
  Whitening whitening_{0.0, 1.0};
  Moments moments_;               // columns: base, phases, slope by the lag
  Eigen::VectorXd coefficients_;  // of these columns, as they were last solved for
  Eigen::VectorXd totals_;        // seconds of the base and of the phases, then joules
  std::int64_t used_ticks_ = 0;   // of the changes in moments_
  std::optional<Edge> last_used_;
};

}  // namespace molen::ledger
