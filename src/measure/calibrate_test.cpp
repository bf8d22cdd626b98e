#include "measure/calibrate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "arch/architecture.h"
#include "base/error.h"
#include "comm/threads/threads.h"
#include "data/attended.h"
#include "measure/calibration_programs.h"
#include "program/build/build.h"
#include "program/parts/part.h"
#include "program/schedule/schedule.h"
#include "program/values/optimizer.h"
#include "sim/simulate.h"

namespace molen::measure {
namespace {

std::set<std::string> kinds_of(const program::Program& p) {
  std::set<std::string> kinds;
  for (const program::Body& body : p.bodies)
    for (const program::Step& step : body.steps) {
      kinds.insert(sim::fitted_kind(p, step));
      for (const auto& epilogue : step.epilogues) kinds.insert(program::kind_of(epilogue.kind));
    }
  return kinds;
}

// Returns the kinds whose samples a calibration has: those of rank 0 and, in stages, those of the last rank.
std::set<std::string> measured_kinds(const CalibrateOptions& options, int ranks) {
  std::set<std::string> measured;
  for (const int rank : {0, ranks - 1})
    for (const auto& [p, once, name, documents] : calibration_programs(options, ranks, rank))
      if (rank == 0 || p.setting.pipelined()) measured.merge(kinds_of(p));
  return measured;
}

// A recomputation has the cost of its forward.
bool derived(const std::string& kind) {
  return kind.starts_with("recompute ");
}

void expect_kinds_measured(const std::vector<program::Program>& stages, const std::set<std::string>& measured,
                           const std::string& what) {
  for (const auto& p : stages)
    for (const std::string& kind : kinds_of(p))
      if (!derived(kind)) {
        EXPECT_TRUE(measured.contains(kind)) << what << ": " << kind;
      }
}

// If a preset has a part that none of the calibration's models has, `molen simulate` fails for it, and calibrating
// again does not help. So every kind of op of a preset that can be simulated must be measured.
TEST(Calibrate, MeasuresWhatThePresetsNeed) {
  for (const int ranks : {1, 2})
    for (const std::int64_t widest : {std::int64_t{0}, calibrated_width(1)}) {
      CalibrateOptions options;
      options.widest = widest;
      const std::set<std::string> measured = measured_kinds(options, ranks);
      for (const arch::Architecture& preset : arch::presets())
        for (const int zero : {0, 1, 2, 3}) {
          program::Setting s;
          s.mesh[mesh::Axis::kDpShard] = ranks;
          s.zero = zero;
          s.micro_batch = 1, s.global_batch = 2 * ranks, s.sequence = 64;
          if (zero > 0 && ranks == 1) continue;
          expect_kinds_measured({program::build(preset, s)}, measured,
                                fmt::format("{}, {} ranks, zero {}", preset.name, ranks, zero));
        }
    }
}

// The options of a calibration in a type, and the same of a run.
CalibrateOptions in_type(DType compute) {
  CalibrateOptions options;
  options.compute = compute, options.kernels = sim::calibrated_kernels(compute);
  return options;
}
program::Setting setting_in(DType compute) {
  program::Setting s;
  s.compute = compute, s.kernels = sim::calibrated_kernels(compute);
  s.master = s.reduce = compute == DType::kF64 ? DType::kF64 : DType::kF32;
  s.micro_batch = 1, s.sequence = 64;
  return s;
}

constexpr DType kComputeTypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16};

// The same for everything that two ranks can choose: axes, schedules, forms, pieces, types and optimizers. A run in
// fp16 also checks its gradients for overflow and scales them back.
TEST(Calibrate, MeasuresEveryChoice) {
  using Change = std::function<void(program::Setting&)>;
  const auto along = [](mesh::Axis axis) -> Change { return [=](program::Setting& s) { s.mesh[axis] = 2; }; };
  std::map<std::string, std::vector<Change>> choices{
      {"stages, tied", {along(mesh::Axis::kPp)}},
      {"tensor ranks", {along(mesh::Axis::kTp)}},
      {"pieces", {along(mesh::Axis::kTp), [](auto& s) { s.sequence_parallel = true, s.tensor_chunks = 2; }}},
      {"keys gathered", {along(mesh::Axis::kCp)}},
      {"a ring", {along(mesh::Axis::kCp), [](auto& s) { s.context_form = program::ContextForm::kRing; }}},
      {"16 bits: bf16 in messages",
       {along(mesh::Axis::kDpShard), [](auto& s) { s.zero = 2, s.reduce = DType::kBF16; }}},
      {"16 bits: bf16 in sums", {along(mesh::Axis::kDpShard), [](auto& s) { s.reduce = DType::kBF16; }}},
      {"16 bits: fp16 in sums", {along(mesh::Axis::kDpShard), [](auto& s) { s.reduce = DType::kF16; }}},
      {"all on the host",
       {along(mesh::Axis::kDpShard),
        [](auto& s) {
          s.zero = 3, s.offload = {true, true, true, true};
        }}},
      {"documents", {along(mesh::Axis::kDpShard), [](auto& s) { s.document_mask = true; }}},
      {"documents on context ranks", {along(mesh::Axis::kCp), [](auto& s) { s.document_mask = true; }}},
      {"documents in a ring",
       {along(mesh::Axis::kCp), [](auto& s) { s.document_mask = true, s.context_form = program::ContextForm::kRing; }}},
      {"recompute", {along(mesh::Axis::kDpShard), [](auto& s) { s.recompute = program::Recompute::full(); }}}};
  for (const auto kind : program::kAllScheduleKinds)
    choices[std::string(name_of(kind))] = {along(mesh::Axis::kPp), [=](program::Setting& s) {
                                             const bool two = kind == program::ScheduleKind::kInterleaved ||
                                                              kind == program::ScheduleKind::kZbV;
                                             s.pipeline = program::pipeline_of(kind, two ? 2 : 1);
                                           }};
  for (const auto& optimizer : program::optimizers())
    for (const mesh::Axis axis : {mesh::Axis::kDpShard, mesh::Axis::kTp})
      choices[fmt::format("{}{}", optimizer.name, axis == mesh::Axis::kTp ? ", tensor ranks" : "")] = {
          along(axis), [&](program::Setting& s) { s.optimizer = optimizer.name; }};
  for (const DType compute : kComputeTypes) {
    const std::set<std::string> measured = measured_kinds(in_type(compute), 2);
    for (const bool tied : {false, true})
      for (const auto& [name, changes] : choices) {
        if (compute == DType::kF64 && name.starts_with("16 bits")) continue;  // refused
        arch::Architecture a = arch::preset("llama-tiny");
        a.layers = 4;
        a.tied = tied;
        program::Setting s = setting_in(compute);
        for (const Change& change : changes) change(s);
        s.global_batch = 4 * s.data_ranks();
        expect_kinds_measured(program::build_stages(a, s), measured, fmt::format("{}, {}", name, name_of(compute)));
      }
  }
}

// The ops of one rank of every type, with a dense model and a sparse one where the type computes it.
TEST(Calibrate, MeasuresARankOfEveryType) {
  for (const DType compute : kComputeTypes) {
    const std::set<std::string> measured = measured_kinds(in_type(compute), 1);
    for (const arch::Architecture& preset : arch::presets()) {
      const bool refused = std::ranges::any_of(arch::parts_in_order(preset), [&](arch::Part part) {
        return program::kernels_refused(sim::calibrated_kernels(compute), part,
                                        {.compute = compute, .head_dim = preset.head_dim})
            .has_value();
      });
      if (refused) continue;
      program::Setting s = setting_in(compute);
      s.global_batch = 2;
      expect_kinds_measured({program::build(preset, s)}, measured,
                            fmt::format("{}, {}", preset.name, name_of(compute)));
    }
  }
}

// Each type has programs, on one rank and on several.
TEST(Calibrate, HasProgramsOfEveryType) {
  for (const DType compute : kComputeTypes)
    for (const int ranks : {1, 2}) {
      CalibrateOptions options = in_type(compute);
      options.widest = calibrated_width(1);
      EXPECT_GT(calibration_programs(options, ranks).size(), 5u) << name_of(compute) << ", " << ranks << " ranks";
    }
}

// The reference kernels of fp64 are so slow that only a width that was asked for is measured beyond a limit.
TEST(Calibrate, LimitsTheWidthOfTheReferenceKernels) {
  const auto widest_of = [](CalibrateOptions options, std::int64_t asked) {
    options.widest = asked;
    std::int64_t widest = 0;
    for (const auto& p : calibration_programs(options, 1)) widest = std::max(widest, p.program.arch.hidden);
    return widest;
  };
  EXPECT_EQ(widest_of(in_type(DType::kF64), 0), kWidestReference);
  EXPECT_EQ(widest_of(in_type(DType::kF64), 320), 320);
  EXPECT_EQ(widest_of(in_type(DType::kF64), 128), 128);
  for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) EXPECT_EQ(widest_of(in_type(compute), 0), 768);
}

TEST(Calibrate, RefusesAWidthBelowTheNarrowest) {
  CalibrateOptions options;
  options.widest = calibrated_width(1) - 1;
  try {
    calibration_programs(options, 1);
    ADD_FAILURE() << "no shape is left";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.what(),
              fmt::format("--widest: {}; the narrowest shape is {} wide", options.widest, options.widest + 1));
  }
}

// A mask of four documents leaves attention less work than one of a single document, and every other op as much.
TEST(Calibrate, AttentionHasTheWorkThatItsDocumentsLeave) {
  std::map<std::string, std::map<std::int64_t, std::map<std::string, double>>> flops;  // by model and documents
  std::map<std::string, double> share;
  for (const auto& [p, once, name, documents] : calibration_programs({}, 1)) {
    if (!p.setting.document_mask) continue;
    std::string model = name;
    model.replace(model.find(fmt::format(" with {} document", documents)), std::string::npos, "");
    for (const program::Body& body : p.bodies)
      for (const program::Step& step : body.steps)
        flops[model][documents][sim::fitted_kind(p, step)] += step.hardware_flops.value;
    if (documents == 4) share[model] = data::attended_share(equal_documents(p.setting.sequence, documents));
  }
  ASSERT_FALSE(flops.empty());
  int attention = 0;
  for (const auto& [model, of] : flops) {
    EXPECT_NEAR(share.at(model), 0.25, 0.01) << "of the pairs of two positions";
    for (const auto& [kind, whole] : of.at(1)) {
      const bool masked = kind.find("attention") != std::string::npos;
      attention += masked;
      EXPECT_DOUBLE_EQ(of.at(4).at(kind), (masked ? share.at(model) : 1.0) * whole) << model << ": " << kind;
    }
  }
  EXPECT_GE(attention, 2) << "forward and backward";
}

// Whatever their number, ranks can share the experts of a measured model.
TEST(Calibrate, MeasuresExpertRanks) {
  for (const int ranks : {2, 3, 5, 7, 16}) {
    std::set<std::string> measured;
    for (const auto& [p, once, name, documents] : calibration_programs({}, ranks)) measured.merge(kinds_of(p));
    EXPECT_TRUE(measured.count("all_to_all")) << ranks << " ranks";
  }
}

// Context ranks that apply a capacity together have a part of their own, which no other program has. Whatever their
// number, they can share a sequence of a measured model.
TEST(Calibrate, MeasuresContextRanksWithACapacity) {
  for (const int ranks : {2, 3, 5, 7, 16}) {
    std::set<std::string> measured;
    for (const auto& [p, once, name, documents] : calibration_programs({}, ranks)) measured.merge(kinds_of(p));
    EXPECT_TRUE(measured.count("forward limit")) << ranks << " ranks";
  }
}

// Rank 0's clock alone decides that no time is left for the second round: rank 1 has all the time.
TEST(Calibrate, FitsEveryKindAndReportsItsProgressOnRankZeroOnly) {
  CalibrateOptions options;
  options.widest = calibrated_width(1);
  options.rounds = 2, options.repeats = 1;
  comm::ThreadWorld ranks(2);
  std::vector<double> shares[2];  // by rank; each rank's thread writes its own
  std::optional<sim::Calibration::Entry> kept;
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        const auto world = ranks.communicator(r);
        CalibrateOptions of = options;
        of.seconds = r == 0 ? 0.0 : 1e6;
        auto entry =
            calibrate(of, "threads", *world, [&, r](double share, const std::string&) { shares[r].push_back(share); });
        if (r == 0) kept = std::move(entry);
      });
  }
  EXPECT_TRUE(shares[1].empty());
  // Before and after each program, and at the end.
  ASSERT_EQ(shares[0].size(), 2 * calibration_programs(options, 2).size() + 1);
  EXPECT_EQ(shares[0].front(), 0.0);
  EXPECT_EQ(shares[0].back(), 1.0);
  EXPECT_TRUE(std::is_sorted(shares[0].begin(), shares[0].end()));
  // Each kind of op and of epilogue that these programs have is known afterwards.
  for (const std::string& kind : measured_kinds(options, 2)) EXPECT_TRUE(kept->costs.knows(kind)) << kind;
  // A median of measured times over modelled ones is not 1 to the last bit, which a model has that nobody scaled.
  EXPECT_NE(kept->costs.calibration_factor(), 1.0);
}

// Where no time is left, each shape is measured once, and the bar still reaches its end.
TEST(Calibrate, MeasuresOnceMoreWhileTimeIsLeft) {
  CalibrateOptions options;
  options.widest = calibrated_width(1);
  options.rounds = 3, options.repeats = 1;
  const auto world = comm::ThreadWorld(1).communicator(0);
  const auto programs = calibration_programs(options, 1);
  const auto again = std::ranges::count(programs, false, &CalibrationProgram::once);
  ASSERT_GT(again, 0);
  for (const auto& [seconds, wanted] :
       {std::pair{0.0, programs.size()}, {1e6, programs.size() + static_cast<std::size_t>(2 * again)}}) {
    options.seconds = seconds;
    std::vector<double> shares;
    std::set<std::string> measured;
    const auto entry = calibrate(options, "self", *world, [&](double share, const std::string& what) {
      shares.push_back(share);
      measured.insert(what);
    });
    EXPECT_EQ(measured.size(), wanted) << seconds << " s";
    EXPECT_EQ(shares.back(), 1.0);
    EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
    for (const std::string& kind : measured_kinds(options, 1)) EXPECT_TRUE(entry.costs.knows(kind)) << kind;
  }
}

TEST(Teams, ShareTheCoresAmongRanks) {
  const auto text = [](int cores) {
    std::string said;
    for (const Team& team : teams_of(cores)) said += fmt::format("{}x{} ", team.ranks, team.threads);
    return said;
  };
  EXPECT_EQ(text(1), "1x1 ");
  EXPECT_EQ(text(2), "1x2 2x1 1x1 ");
  EXPECT_EQ(text(3), "1x3 2x1 1x1 ");
  EXPECT_EQ(text(4), "1x4 2x2 4x1 1x1 ");
  EXPECT_EQ(text(64), "1x64 2x32 4x16 8x8 1x1 ");
}

TEST(Cores, AreNamedAsRangesOrAlone) {
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  comm::ThreadWorld ranks(1);
  const auto world = ranks.communicator(0);
  const sim::Cores alone = cores_of(*world);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(alone.affinity, std::to_string(cpu));
  EXPECT_EQ(alone.physical, 1);
  if (CPU_ISSET(cpu + 1, &before)) {
    EXPECT_TRUE(cores_of(*world).affinity.starts_with(std::to_string(cpu) + "-"));
  }
}

}  // namespace
}  // namespace molen::measure
