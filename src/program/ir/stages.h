// The programs of all stages of a pipeline, and which of their ops run together.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// Returns the pipeline stage to which the program's chunks belong.
int stage_shown(const Program& program);

// Returns all stages that take part in an op of a program: the two ends of a message, or the stages of a collective
// between stages, in increasing order. Returns none for an op that stays within its stage.
std::vector<int> stages_of(const Program& program, const Op& op);

// The expanded programs of all stages. An op that waits for other stages is a member of a meeting: the two ends of a
// message, or the same collective on each of its stages.
class Stages {
 public:
  struct Member {
    int stage = 0;
    std::size_t op = 0;  // index in the expansion of the stage
  };

  // Takes the programs of stages 0, 1, ..., which `verify_world` has accepted, or the program of one stage alone, which
  // then meets nobody. Throws Error when the stages differ in the number of ops that they run together.
  explicit Stages(std::vector<Program> programs);
  explicit Stages(Program program) : Stages(std::vector{std::move(program)}) {}
  // The expansions point into the programs, which a move leaves where they are.
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;
  Stages(Stages&&) = default;
  Stages& operator=(Stages&&) = default;

  // Ops of a stage's expansion: [first, end).
  struct OpRange {
    std::size_t first = 0, end = 0;
  };
  // Returns stages of the same programs with other ops, which have neither edges nor meetings: they serve sums over a
  // Timeline and no simulation.
  Stages with_ops(std::vector<std::vector<Expanded>> ops) const;
  // Gives the programs back, which no other object may share.
  std::vector<Program> take_programs() &&;

  std::size_t size() const { return programs_->size(); }
  const Program& program(std::size_t stage) const { return programs_->at(stage); }
  const std::vector<Expanded>& ops(std::size_t stage) const { return ops_.at(stage); }
  // Returns the number of the meeting that an op is a member of, or -1.
  int meeting_of(std::size_t stage, std::size_t op) const { return meeting_of_.at(stage).at(op); }
  const std::vector<Member>& members(int meeting) const { return meetings_.at(static_cast<std::size_t>(meeting)); }
  std::size_t meetings() const { return meetings_.size(); }

 private:
  Stages() = default;
  void find_meetings();

  std::shared_ptr<std::vector<Program>> programs_;
  std::vector<std::vector<Expanded>> ops_;
  std::vector<std::vector<int>> meeting_of_;
  std::vector<std::vector<Member>> meetings_;
};

}  // namespace molen::program
