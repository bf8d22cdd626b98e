// How many seconds each phase ran until a time, over all ranks that share a scope.
#pragma once

#include <deque>
#include <functional>
#include <queue>
#include <vector>

namespace molen::ledger {

// The integral over time of the number of ranks that are in a phase. Phases of one rank may overlap, as computation and
// communication do. Memory grows with the time that was not forgotten, not with the length of a run.
class Activity {
 public:
  // Throws Error without a rank.
  Activity(int phases, int ranks);

  // Adds that a rank is in a phase from start_s to end_s. Throws Error when the interval is reversed or begins before
  // the time up to which the rank is complete, and when there is no such rank or phase.
  void add(int rank, int phase, double start_s, double end_s);
  // States that all intervals of a rank that begin before until_s were added.
  void complete(int rank, double until_s);
  // The time up to which every rank is complete.
  double complete_until_s() const { return complete_until_s_; }

  // Returns the rank-seconds of a phase from the first interval until time_s. Throws Error when time_s is not complete
  // or was forgotten.
  double seconds(int phase, double time_s) const;
  // Releases what is not needed for times from `before_s` on.
  void forget(double before_s);

  int phases() const { return static_cast<int>(phases_.size()); }
  std::size_t knots() const;  // the size of what is kept

 private:
  struct Knot {  // from its time on, `ranks` ranks are in the phase
    double time_s, seconds, ranks;
  };
  struct Step {
    double time_s, ranks;
    bool operator>(const Step& other) const { return time_s > other.time_s; }
  };
  struct Phase {
    std::deque<Knot> knots;
    std::priority_queue<Step, std::vector<Step>, std::greater<>> later;  // steps that are not complete yet
  };
  std::vector<Phase> phases_;
  std::vector<double> rank_until_s_;
  double complete_until_s_, forgotten_until_s_;
};

}  // namespace molen::ledger
