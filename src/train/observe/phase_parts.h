// The joules of a phase divided further: among the kinds of its ops, groups of layers, and stages of the pipeline. The
// ledger estimates one power for each phase and scope, so a part of a phase gets the phase's joules in proportion to
// its seconds, summed over the ranks of the scope (docs/decisions/0015-ledger.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "program/ir/program.h"
#include "train/observe/phase_times.h"

namespace molen::train {

// The most groups that the layers of a model are divided into. The number of layers of a group is a multiple of a
// unit's, so a unit lies in one group unless a chunk of layers begins within a group.
inline constexpr std::int64_t kLayerGroups = 8;

// The names of an op's parts.
struct OpParts {
  int phase = 0;     // an index of energy_phases
  std::string kind;  // program::kind_of, without the name of the pass if that is the name of the phase
  // "embed", "layers 0-3", "layer 4", "final" (the last norm and the head), or "other" for an op of none of these. An
  // exchange of rows counts for the layer that makes them or needs them. A collective, copy or update of parameters
  // counts for the first layer of its unit; where the head has the embedding's table, that unit is "embed".
  std::string group;
  bool operator==(const OpParts&) const = default;
};
OpParts parts_of(const program::Program& program, const program::Step& step);

// The seconds of one rank since its meters were opened, by phase and by op.
class PhaseParts {
 public:
  // Adds a step of the program. `op_ns`: the nanoseconds of each op in its own phase, without waits (add_phase_times).
  // Throws Error when the program has another number of ops than that of the step before.
  void add_step(const program::Program& program, const std::vector<program::Expanded>& ops,
                const std::vector<std::int64_t>& op_ns);
  // Adds a time of any phase, for the joules of the stage.
  void add(const PhaseTime& time) { phase_ns_[static_cast<std::size_t>(time.phase)] += time.end_ns - time.start_ns; }

  // Returns {"stage": number, "phases": {phase: seconds}, "ops": {phase: {kind: seconds}}, "layers": {phase: {group:
  // seconds}}}, for divide_phases on another rank.
  Json to_json() const;

 private:
  int stage_ = 0;
  std::vector<std::int64_t> phase_ns_ = std::vector<std::int64_t>(energy_phases().size());
  std::vector<OpParts> parts_;        // each once
  std::vector<std::int64_t> ns_;      // by part
  std::vector<std::size_t> part_of_;  // by op of the expanded program
};

// Adds to the account of a scope the parts of its joules, from the seconds of the ranks that the scope counts: to each
// entry in which ops ran "ops" {kind: joules}, which add up to the joules of the entry, and to the account "layers"
// {group: joules}, the same joules by group, and "stages" {number: joules}, those of all phases. Where an entry is
// shared with a phase that has no ops, such as "bubble", this phase is a part of its own in "ops" and "other" in
// "layers".
void divide_phases(Json& account, const std::vector<Json>& ranks);

}  // namespace molen::train
