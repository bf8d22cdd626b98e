// The cost of a program's ops on a machine whose cores its ranks share: a cost model, extrapolated when needed to
// numbers of ranks that the calibration did not measure. docs/formats/calibration.md has the rules.
#pragma once

#include <optional>
#include <string>

#include "sim/cost_model.h"
#include "sim/interference.h"
#include "sim/intervals.h"

namespace molen::sim {

// The ranks and threads that share the cores of one machine.
struct CoreContention {
  int cores = 1 << 20;         // logical cores that the ranks may use
  int ranks = 1;               // identical ranks that run at once
  int threads = 1;             // of each stream of a rank; streams of communication have one
  bool one_at_a_time = false;  // whether the communicators of a rank take turns (comm/communicator.h)

  // Returns the number of cores that compute keeps busy.
  int busy() const;
  // Returns the speed of every thread while so many threads of all ranks are busy. It is 1 when each of them has a core
  // of its own.
  double rate(double busy_threads) const { return busy_threads > cores ? cores / busy_threads : 1.0; }
  bool operator==(const CoreContention&) const = default;
};

// The seconds of the ops of a program on some machine.
class Costs {
 public:
  virtual ~Costs() = default;
  // Returns the seconds of an op on cores of its own, with its epilogues. Throws UsageError for an op whose cost is not
  // known.
  virtual double seconds(const program::Program& program, const program::Step& step) const = 0;
  // Returns the seconds of each of the op's epilogues.
  virtual std::vector<double> epilogue_seconds(const program::Step& step) const = 0;
  virtual const CoreContention& core_contention() const = 0;
  // Returns what compute loses beside communication. On a CPU it is nothing: streams share cores instead.
  virtual Interference interference() const { return {}; }
  // Whether the reductions of gradients over data-parallel ranks begin when the last of the gradients is complete. If
  // not, each begins where the program has it (pass::reduce_gradients).
  virtual bool reduces_last() const { return false; }
  // Whether the parameters that a step has updated are gathered beside the first forward of the next step. If not, the
  // step ends when they are.
  virtual bool gathers_in_forward() const { return false; }
  // Returns the time that passes between two steps, as a share of the time in which a step's ops run.
  virtual double between_steps() const { return 0.0; }
};

// Returns the bytes that one rank reads and writes in a collective of `bytes` among `ranks`: for "threads" those of the
// algorithms in comm/threads, for all others those of a ring (Thakur, Rabenseifner, Gropp 2005, section 3).
double collective_traffic(const std::string& kind, double bytes, int ranks, const std::string& communicator);

// Costs that were measured on the machine itself, by `molen calibrate`.
class MeasuredCosts : public Costs {
 public:
  // Makes costs as they were measured, with collectives among all ranks over `communicator`.
  MeasuredCosts(CostModel model, CoreContention sharing, const std::string& communicator)
      : compute_(std::move(model)), sharing_(sharing), communicator_(communicator) {
    sharing_.one_at_a_time = communicator_ == "nccl";
  }

  double seconds(const program::Program& program, const program::Step& step) const override;
  std::vector<double> epilogue_seconds(const program::Step& step) const override;
  const CoreContention& core_contention() const override { return sharing_; }

  // Returns the measurements from which the costs are derived; empty when these very conditions were measured.
  const std::string& extrapolated() const { return extrapolated_; }
  // Returns the same for the ops of some programs: it also names the kinds of work that move their bytes at the memory
  // rate of the optimizer step, because the calibration does not have them. An older calibration lacks copies, and one
  // without the kernels of a program may lack its epilogues.
  std::string extrapolated(const std::vector<const program::Program*>& programs) const;

 private:
  friend class Extrapolation;
  friend class MeasuredErrors;

  // Seconds, and the model and the kind of the fit from which they follow; without a model they are exact.
  struct Priced {
    double seconds = 0.0;
    const CostModel* model = nullptr;
    std::string kind = {};
  };
  static Priced priced(const CostModel& model, const std::string& kind, const std::vector<double>& features);

  // Returns how long work takes that takes `near` seconds by compute_, and `other` by the second measurement.
  double under_contention(double near, double other) const;
  Priced own(const program::Program& program, const program::Step& step) const;  // without its epilogues
  Priced compute(const program::Program& program, const program::Step& step) const;
  Priced collective(const program::Program& program, const program::Step& step) const;
  Priced message(const program::Program& program, const program::Step& step) const;
  // The cost model that has an epilogue; null if none has it.
  const CostModel* model_of(const program::EpilogueCost& epilogue) const;
  Priced epilogue(const program::EpilogueCost& epilogue) const;
  // `near`, or what follows from it and the second measurement for the number of busy cores.
  Priced contended(Priced near, const std::string& kind, const std::vector<double>& features) const;
  // A copy between host and device. On a CPU their memory is the same.
  Priced copy(const program::Program& program, const program::Step& step) const;
  // Bytes that are moved at the memory rate of the optimizer step: it reads the source and writes the target, and reads
  // the target too if it adds.
  Priced moved(const program::Step& step, bool adds) const;

  CostModel compute_;
  CoreContention sharing_;
  std::string communicator_;
  std::string extrapolated_;

  // A second measurement, with another number of busy cores. The seconds of an op grow as busy^g; the two measurements
  // give g, limited to [0, 1], for each op.
  struct Contention {
    CostModel other;
    int busy = 1, other_busy = 1;  // of compute_, of other
  };
  std::optional<Contention> contention_;

  // Collectives that were measured among another number of ranks. With ranks 0 they were not measured, and move their
  // bytes at the memory rate of the optimizer step.
  struct Collectives {
    CostModel model;
    int ranks = 0;
  };
  std::optional<Collectives> collectives_;
};

// The errors of measured costs. The sources are the kinds of the calibration's fits, and "whole steps": what its factor
// leaves open. What an extrapolation to other ranks adds is not known.
class MeasuredErrors : public OpErrors {
 public:
  explicit MeasuredErrors(const MeasuredCosts& costs) : costs_(costs) {}  // which must outlive this object
  std::vector<Errors> of(const program::Program& program, const program::Step& step) const override;

 private:
  const MeasuredCosts& costs_;
};

}  // namespace molen::sim
