// What a step's communication asks of a rank's communicators, beside which their counts are held.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "program/program.h"

namespace molen::program {

// What operands name, on the rank at `at`.
std::int64_t used_elements(const Program& program, const Use& use, const mesh::PerAxis& at);
std::int64_t used_bytes(const Program& program, const std::vector<Use>& uses, const mesh::PerAxis& at);

// What the rank at `at` gives to the calls that a communication op makes: all elements of what is reduced or gathered,
// what is sent, what is received. Less than Step::moved, which is of the rank whose coordinates are all 0, where shards
// or rows are uneven.
Bytes payload_of(const Program& program, const Step& step, const mesh::PerAxis& at);

struct Payload {
  std::int64_t calls = 0, bytes = 0;
  bool operator==(const Payload&) const = default;
};
// Of a step's ops, by axis and by the call that an op makes, as communicators name it ("all_reduce", "send", ...).
using Payloads = std::map<std::pair<Axis, std::string>, Payload>;
Payloads payloads_of(const Program& program, const std::vector<Expanded>& ops, const mesh::PerAxis& at);

}  // namespace molen::program
