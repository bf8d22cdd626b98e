// The verifier's own rules for epilogues: the work that an op does besides what its kind names, and the bytes that this
// work reads and writes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/verify/amounts.h"
#include "program/verify/part_cost_rules.h"

namespace molen::program {

// Bytes of each kind of epilogue; -1: the op has none of this kind.
class EpiloguesAsked {
 public:
  EpiloguesAsked() { bytes_.fill(-1); }
  void add(Epilogue kind, std::int64_t bytes) { bytes_[static_cast<std::size_t>(kind)] = bytes; }
  bool are(const std::vector<EpilogueCost>& stated) const;
  std::vector<EpilogueCost> list() const;

 private:
  std::array<std::int64_t, kNumEpilogues> bytes_;
};

EpiloguesAsked epilogues_asked(const Traits& traits, const PartCostRules& parts, const Step& step,
                               const Amounts& amounts);

}  // namespace molen::program
