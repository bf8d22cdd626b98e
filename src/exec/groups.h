// The communicators of a program: one for each axis that its ops communicate over.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "program/ir/program.h"

namespace molen::exec {

class Groups {
 public:
  // Splits `world` for the axes that the program's ops name (in a pipeline, for all axes). Collective over `world`,
  // which may be null when no op communicates.
  Groups(const program::Program& program, int rank, comm::Communicator* world);

  // Returns null for an axis that no op names.
  comm::Communicator* of(program::Axis axis) const { return groups_[static_cast<std::size_t>(axis)]; }
  // Returns whether all these communicators must be called one at a time (comm/communicator.h).
  bool one_at_a_time() const { return !made_.empty() && made_.front()->one_at_a_time(); }
  // Does what comm/communicator.h says, and nothing when no op communicates.
  void add_callers(int change) const noexcept {
    if (!made_.empty()) made_.front()->add_callers(change);
  }
  const mesh::PerAxis& coordinates() const { return coordinates_; }

 private:
  std::array<comm::Communicator*, program::kAllAxes.size()> groups_{};
  std::vector<std::unique_ptr<comm::Communicator>> made_;
  mesh::PerAxis coordinates_;
};

}  // namespace molen::exec
