// How far predicted seconds may be off.
//
// An op's seconds depend on sources of error: figures of a cluster's description, classes of ops, fits of a
// calibration, or the documents of the data. A source lengthens all ops that depend on it together, and says nothing of
// another source. So what one source changes adds up over ops, and what several sources change adds up in quadrature.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "program/ir/comparison.h"
#include "program/ir/stages.h"
#include "program/ir/timeline.h"

namespace molen::sim {

// By source: how much longer something takes, relative to its seconds, where the source is at that end of its own 80 %
// interval at which it takes longest.
using Errors = std::map<std::string, double>;

// Returns the spread of such errors: with a probability of 80 %, the true seconds are between those that were predicted
// over 1 + spread and those times 1 + spread.
double spread_of(const Errors& errors);

// The ends of that interval of `seconds`.
std::pair<double, double> ends_of(double seconds, double spread);

// The errors of ops.
class OpErrors {
 public:
  virtual ~OpErrors() = default;
  // Returns the errors of an op without its epilogues, followed by those of each epilogue. Throws UsageError for an op
  // whose cost is not known.
  virtual std::vector<Errors> of(const program::Program& program, const program::Step& step) const = 0;
};

// Returns the errors of a step's time. They are those of the ops on its longest path: an op that runs beside a longer
// one does not count, and what a stage waits for in other stages does. This is of first order: a source that lengthens
// an op beside the path may put it on the path.
Errors errors_of_step(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                      const OpErrors& errors);

// Returns the spread of each kind of op and of epilogue (program::Work) of a stage that takes time.
std::map<std::string, double> spreads_of_kinds(const program::Program& program,
                                               const std::vector<program::Expanded>& ops,
                                               const program::Timeline& timeline, const OpErrors& errors);

// Sets the spreads of a comparison of `stage`, whose predicted times are those of `timelines`.
void set_spreads(program::Comparison& comparison, const program::Stages& stages, std::size_t stage,
                 const std::vector<program::Timeline>& timelines, const OpErrors& errors);

}  // namespace molen::sim
