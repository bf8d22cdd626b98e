#include "measure/calibrate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "arch/architecture.h"
#include "program/build/build.h"
#include "sim/simulate.h"

namespace molen::measure {
namespace {

std::set<std::string> kinds_of(const program::Program& p) {
  std::set<std::string> kinds;
  for (const program::Body& body : p.bodies)
    for (const program::Step& step : body.steps) kinds.insert(program::kind_of(step.op));
  return kinds;
}

// Whatever model `molen simulate` does not refuse has ops of known cost only: a part that a preset has and the
// calibration's models have not would end its simulation, and calibrating again would not help.
TEST(Calibrate, MeasuresWhatThePresetsNeed) {
  for (const int ranks : {1, 2})
    for (const std::int64_t widest : {std::int64_t{0}, calibrated_width(1)}) {
      CalibrateOptions options;
      options.widest = widest;
      std::set<std::string> measured;
      for (const auto& p : calibration_programs(options, ranks)) measured.merge(kinds_of(p));
      for (const arch::Architecture& preset : arch::presets())
        for (const int zero : {0, 1}) {
          program::Setting s;
          s.mesh[mesh::Axis::kDpShard] = ranks;
          s.zero = zero;
          s.micro_batch = 1, s.global_batch = ranks, s.sequence = 64;
          if ((zero > 0 && ranks == 1) || program::sparse_refused(preset, s)) continue;
          ASSERT_FALSE(sim::unsimulated(s));
          for (const std::string& kind : kinds_of(program::build(preset, s)))
            EXPECT_TRUE(measured.count(kind))
                << preset.name << ", " << ranks << " ranks, zero " << zero << ": " << kind;
        }
    }
}

}  // namespace
}  // namespace molen::measure
