// The step programs whose ops a calibration measures: small models of many shapes, in every way to run them that has
// kinds of ops of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/options.h"
#include "program/ir/program.h"

namespace molen::measure {

// All widths of the reference kernels would take most of an hour for each team of ranks.
inline constexpr std::int64_t kWidestReference = 192;

// Returns the value of `CalibrateOptions::widest` that covers models of width `hidden`: the next larger measured width,
// or the largest one.
std::int64_t calibrated_width(std::int64_t hidden);

struct CalibrationProgram {
  program::Program program;  // attention has the FLOPs that its documents leave to it
  // Whether it is measured in the first round only: it is there for kinds of ops that no other program has, and a
  // calibration should take minutes.
  bool once = false;
  std::string name;            // "d 128 ffn 352 vocabulary 2048 batch 2 x 128 on tensor ranks"
  std::int64_t documents = 1;  // documents of equal length in a sequence; more than one only with a document mask
};
// Returns the programs of one of so many ranks, in the same order on all of them. A calibration knows the costs of the
// kinds of these ops only. Throws UsageError when CalibrateOptions::widest is below all shapes.
std::vector<CalibrationProgram> calibration_programs(const CalibrateOptions& options, int ranks, int rank = 0);

// Returns, for each position of a sequence of so many documents of one length, where its document starts. The last
// document has what is left.
std::vector<std::int32_t> equal_documents(std::int64_t sequence, std::int64_t documents);

}  // namespace molen::measure
