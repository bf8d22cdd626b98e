// What the ops of a program cost on a machine whose cores its ranks share: a cost model, carried over to numbers of
// ranks that the calibration did not measure where that is needed. docs/formats/calibration.md has the rules.
#pragma once

#include <optional>
#include <string>

#include "sim/cost_model.h"

namespace molen::sim {

// Who runs on the cores of one machine.
struct Sharing {
  int cores = 1 << 20;  // logical, that the ranks may use
  int ranks = 1;        // alike, at once
  int threads = 1;      // of each stream of a rank but communication, which has one

  // Cores that compute keeps busy.
  int busy() const;
  // Speed of every thread of a rank while its compute stream is busy or not, and `others` more threads are; 1 on a core
  // of its own.
  double rate(bool compute, int others) const;
  bool operator==(const Sharing&) const = default;
};

// Bytes that one rank reads and writes in a collective of `bytes` among `ranks`: the shared-memory algorithms of
// comm/threads for "threads", the ring's (Thakur, Rabenseifner, Gropp 2005, section 3) for all others.
double collective_traffic(const std::string& kind, double bytes, int ranks, const std::string& communicator);

class Costs {
 public:
  // As measured: with collectives among all ranks over that communicator.
  Costs(CostModel model, Sharing sharing, std::string communicator)
      : compute_(std::move(model)), sharing_(sharing), communicator_(std::move(communicator)) {}

  // Seconds of an op on cores of its own; throws UsageError for a kind that was not measured.
  double seconds(const program::Program& program, const program::Step& step) const;
  const Sharing& sharing() const { return sharing_; }

  // Empty: the very conditions were measured. Else from what the costs are derived, for people.
  const std::string& extrapolated() const { return extrapolated_; }

 private:
  friend class Extrapolation;

  double compute_seconds(const program::Program& program, const program::Step& step) const;
  double collective_seconds(const program::Program& program, const program::Step& step) const;
  // On a CPU the host's memory is the device's: at the memory rate of the optimizer step.
  double copy_seconds(const program::Step& step) const;

  CostModel compute_;
  Sharing sharing_;
  std::string communicator_;
  std::string extrapolated_;

  // A second measurement with other cores busy: an op's seconds grow as busy^g, g in [0, 1] by the two for each op.
  struct Contention {
    CostModel other;
    int busy = 1, other_busy = 1;  // of compute_, of other
  };
  std::optional<Contention> contention_;

  // Collectives measured among other ranks, or (ranks 0) not at all: then moved at the memory rate of the optimizer
  // step.
  struct Collectives {
    CostModel model;
    int ranks = 0;
  };
  std::optional<Collectives> collectives_;
};

}  // namespace molen::sim
