// The calls that a step's communication makes to a rank's communicators, and their bytes. They are compared with the
// communicators' own counts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// Returns the number of elements that an operand names, on the rank at `at`.
std::int64_t used_elements(const Program& program, const Use& use, const mesh::PerAxis& at);
std::int64_t used_bytes(const Program& program, const Use& use, const mesh::PerAxis& at);

// Returns the bytes that the rank at `at` gives to the communicator calls of an op: all elements that are reduced or
// gathered, sent or received. Step::moved is for the rank whose coordinates are all 0; other ranks give fewer bytes
// when shards or rows are uneven.
Bytes payload_bytes(const Program& program, const Step& step, const mesh::PerAxis& at);

struct CallBytes {
  std::int64_t calls = 0, bytes = 0;
  bool operator==(const CallBytes&) const = default;
};
// Calls of a step's ops, by axis and by the communicator call that the op makes ("all_reduce", "send", ...).
using CallsByAxis = std::map<std::pair<Axis, std::string>, CallBytes>;
CallsByAxis calls_of(const Program& program, const std::vector<Expanded>& ops, const mesh::PerAxis& at);

}  // namespace molen::program
