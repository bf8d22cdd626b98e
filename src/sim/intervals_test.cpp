#include "sim/intervals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "program/build/build.h"
#include "sim/attended.h"
#include "sim/described_errors.h"
#include "sim/simulate.h"
#include "sim/test_costs.h"

namespace molen::sim {
namespace {

constexpr double kDeviationsOf80 = 1.2816;

program::Setting device_setting(std::int64_t sequence = 512) {
  program::Setting s;
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  s.global_batch = 32, s.micro_batch = 1, s.sequence = sequence;
  return s;
}

arch::Architecture wide_model() {
  auto a = arch::preset("llama-tiny");
  a.layers = 4, a.hidden = 1024, a.ffn = 4096, a.heads = a.kv_heads = 8, a.head_dim = 128, a.max_sequence = 4096;
  return a;
}

cluster::Cluster without_spreads() {
  cluster::Cluster c = cluster::find("dgx-a100");
  for (cluster::Figure* f : {&c.device.peak_fp32, &c.device.peak_16bit, &c.device.peak_fp8, &c.device.bandwidth,
                             &c.device.gemm_efficiency, &c.device.attention_efficiency, &c.device.memory_efficiency,
                             &c.device.launch, &c.node.host_bandwidth, &c.node.host_link})
    f->spread = 0.0;
  for (cluster::Tier& tier : c.tiers) tier.bandwidth.spread = tier.efficiency.spread = tier.latency.spread = 0.0;
  return c;
}

// Each kind of op has an error of its own.
class ByKind : public OpErrors {
 public:
  explicit ByKind(bool alike) : alike_(alike) {}
  std::vector<Errors> of(const program::Program&, const program::Step& step) const override {
    std::vector<Errors> all{{{alike_ ? "all" : program::kind_of(step.op), 0.1}}};
    for (const auto& e : step.epilogues) all.push_back({{alike_ ? "all" : program::kind_of(e.kind), 0.1}});
    return all;
  }

 private:
  bool alike_;
};

TEST(Intervals, OneSourceAddsUpAndSeveralAddInQuadrature) {
  EXPECT_DOUBLE_EQ(spread_of({{"a", 0.3}, {"b", 0.4}}), 0.5);
  EXPECT_EQ(spread_of({}), 0.0);
  EXPECT_DOUBLE_EQ(ends_of(3.0, 0.5).first, 2.0);
  EXPECT_DOUBLE_EQ(ends_of(3.0, 0.5).second, 4.5);
  const program::Stages stages(program_of(1, 0, 8));
  const auto timelines =
      simulate(stages, MeasuredCosts(CostModel::fit(samples_from({stages.program(0)}, 0.0)), {}, "self"));
  const Errors alike = errors_of_step(stages, timelines, ByKind(true));
  ASSERT_EQ(alike.size(), 1u);
  EXPECT_NEAR(alike.at("all"), 0.1, 1e-12);
  // A step of one rank is what it computes, so each kind has its share of the step.
  const auto rows = program::compare(stages.ops(0), timelines[0], timelines[0]).rows;
  double squares = 0.0, total = 0.0;
  for (const auto& row : rows) total += row.predicted_s;
  for (const auto& row : rows) squares += std::pow(0.1 * row.predicted_s / total, 2.0);
  EXPECT_NEAR(spread_of(errors_of_step(stages, timelines, ByKind(false))), std::sqrt(squares), 1e-12);
  EXPECT_LT(std::sqrt(squares), 0.08);
  for (const auto& [kind, spread] : spreads_of_kinds(stages.program(0), stages.ops(0), timelines[0], ByKind(false)))
    EXPECT_NEAR(spread, 0.1, 1e-12) << kind;
}

struct Layout {
  const char* name;
  program::Setting setting;
};
std::vector<Layout> several_layouts() {
  Layout alone{"alone", device_setting()}, sharded{"sharded", device_setting()}, stages{"stages", device_setting()},
      offloaded{"offloaded", device_setting()};
  sharded.setting.mesh[mesh::Axis::kDpShard] = 16, sharded.setting.zero = 3;
  stages.setting.mesh[mesh::Axis::kPp] = 4, stages.setting.mesh[mesh::Axis::kTp] = 4;
  offloaded.setting.mesh[mesh::Axis::kDpShard] = 4, offloaded.setting.zero = 3;
  offloaded.setting.offload = {.optimizer = true, .gradients = true, .parameters = true, .activations = false};
  return {alone, sharded, stages, offloaded};
}

// The error that a figure makes is the one by which the step grows when the figure is moved and everything is simulated
// anew. It is of first order: a longer op may hide what was seen before.
TEST(Intervals, TheStepMovesByAFigureAsItsErrorSays) {
  const Factors& factors = Factors::shipped();
  const auto slow = [](cluster::Figure& figure) { figure.value /= 1.1, figure.spread = 0.1; };
  const std::vector<std::pair<std::string, std::function<void(cluster::Cluster&)>>> figures{
      {"device.gemm_efficiency", [&](cluster::Cluster& c) { slow(c.device.gemm_efficiency); }},
      {"device.bandwidth", [&](cluster::Cluster& c) { slow(c.device.bandwidth); }},
      {"node.host_link", [&](cluster::Cluster& c) { slow(c.node.host_link); }},
      {"tiers.InfiniBand HDR.bandwidth", [&](cluster::Cluster& c) { slow(c.tiers.back().bandwidth); }}};
  std::set<std::string> seen;
  for (const auto& [name, setting] : several_layouts()) {
    const program::Stages stages(program::build_stages(wide_model(), setting));
    for (const auto& [figure, move] : figures) {
      cluster::Cluster moved = without_spreads(), here = without_spreads();
      move(moved);
      here.device.gemm_efficiency.spread = here.device.bandwidth.spread = here.node.host_link.spread =
          here.tiers.back().bandwidth.spread = 0.1;
      const auto timelines = simulate(stages, DescribedCosts(here, factors));
      const double before = step_seconds(timelines),
                   change = step_seconds(simulate(stages, DescribedCosts(moved, factors))) / before - 1.0;
      const Errors errors = errors_of_step(stages, timelines, DescribedErrors(here, factors));
      const auto found = errors.find(figure);
      const double said = found == errors.end() ? 0.0 : found->second;
      EXPECT_NEAR(said, change, 0.25 * change + 0.004) << name << ", " << figure;
      if (said > 0.005) seen.insert(figure);
    }
  }
  EXPECT_EQ(seen.size(), figures.size()) << "each figure decides some step";
}

// The rates of the host widen the interval of a step that offloads, and of no other.
TEST(Intervals, FiguresOfTheHostWidenStepsThatOffload) {
  const Factors& factors = Factors::shipped();
  cluster::Cluster known = without_spreads(), unsure = known;
  unsure.node.host_link.spread = 0.3, unsure.node.host_bandwidth.spread = 0.3;
  for (const auto& [name, setting] : several_layouts()) {
    const program::Stages stages(program::build_stages(wide_model(), setting));
    const auto timelines = simulate(stages, DescribedCosts(known, factors));
    const auto spread = [&](const cluster::Cluster& c) {
      return spread_of(errors_of_step(stages, timelines, DescribedErrors(c, factors)));
    };
    if (name == std::string("offloaded"))
      EXPECT_GT(spread(unsure), 1.05 * spread(known));
    else
      EXPECT_EQ(spread(unsure), spread(known)) << name;
  }
}

TEST(DescribedErrors, AreThoseOfTheFiguresAndOfTheClass) {
  const Factors& factors = Factors::shipped();
  cluster::Cluster c = without_spreads();
  c.device.gemm_efficiency.spread = 0.05, c.device.memory_efficiency.spread = 0.2, c.device.launch.spread = 0.5;
  program::Setting s = device_setting();
  s.mesh[mesh::Axis::kTp] = 4, s.mesh[mesh::Axis::kDpShard] = 4, s.zero = 2, s.mesh[mesh::Axis::kPp] = 2;
  const DescribedCosts costs(c, factors);
  const DescribedErrors errors(c, factors);
  std::set<std::string> classes;
  for (const program::Program& p : program::build_stages(wide_model(), s))
    for (const auto& body : p.bodies)
      for (const auto& step : body.steps) {
        const auto of = errors.of(p, step);
        ASSERT_EQ(of.size(), 1 + step.epilogues.size());
        for (const auto& [source, error] : of[0]) {
          EXPECT_GT(error, 0.0) << source;
          EXPECT_LE(error, source == "device.launch" ? 0.5 : 0.2 + factors.spread()) << source;
          if (source.find('.') != std::string::npos) continue;
          classes.insert(source);
          EXPECT_DOUBLE_EQ(error, factors.spread());
        }
        // An op that only launches a kernel is as uncertain as the launch.
        if (step.moved.value == 0 && step.hardware_flops.value == 0.0 && !program::is_communication(step.op))
          EXPECT_NEAR(of[0].at("device.launch"), 0.5, 1e-9);
        for (std::size_t k = 1; k < of.size(); ++k) EXPECT_EQ(of[k].at("memory"), factors.spread());
      }
  EXPECT_EQ(classes, (std::set<std::string>{"attention", "collectives between nodes", "collectives within nodes",
                                            "memory", "messages", "products"}));
}

// A fit's spread is its scatter; one more sample that scatters as all do keeps a fit of few samples from being exact.
TEST(MeasuredErrors, AreTheScatterOfTheFits) {
  std::vector<Sample> samples;
  for (int i = 0; i < 40; ++i) {
    const double bytes = 1e3 * (1 + i);
    samples.push_back({"copy", {1.0, std::log(bytes)}, bytes * 1e-9 * (i % 2 == 0 ? 1.1 : 1.0 / 1.1)});
  }
  samples.push_back({"once", {1.0, std::log(1e4)}, 1e-5});
  CostModel model = CostModel::fit(samples);
  const double residual = model.fits().at("copy").residual;
  EXPECT_NEAR(residual, std::log(1.1), 0.01);
  const double of_all = 40.0 * residual * residual / 41.0;
  EXPECT_NEAR(model.spread("copy"), std::expm1(kDeviationsOf80 * std::sqrt(residual * residual + of_all / 40.0)),
              1e-12);
  EXPECT_NEAR(model.spread("once"), std::expm1(kDeviationsOf80 * std::sqrt(of_all)), 1e-9);
  EXPECT_EQ(model.factor_spread(), 0.0);
  model.set_calibration_factor(1.0, 0.02);
  EXPECT_NEAR(model.factor_spread(), std::expm1(kDeviationsOf80 * 0.02), 1e-12);
}

TEST(MeasuredErrors, NameTheFitOfEachOp) {
  const program::Stages stages(program_of(2, 2, 8));
  const program::Program& p = stages.program(0);
  CostModel model = CostModel::fit(samples_from({p}, 0.1));
  model.set_calibration_factor(1.0, 0.03);
  const MeasuredCosts costs(model, {4, 2, 1}, "threads");
  const MeasuredErrors errors(costs);
  for (const auto& step : p.bodies.at(1).steps) {
    const auto of = errors.of(p, step);
    ASSERT_EQ(of.size(), 1 + step.epilogues.size());
    EXPECT_EQ(of[0].at("whole steps"), model.factor_spread());
    EXPECT_EQ(of[0].at(fitted_kind(p, step)), model.spread(fitted_kind(p, step)));
    EXPECT_EQ(of[0].size(), 2u);
  }
  // A step is less uncertain than its ops, and no less than the factor of all of them.
  const auto timelines = simulate(stages, costs);
  const double spread = spread_of(errors_of_step(stages, timelines, errors));
  EXPECT_GT(spread, model.factor_spread());
  EXPECT_LT(spread, model.spread("forward down"));
}

// Kernels in tiles leave out what lies beyond a document: twice the scores take twice the FLOPs, and nothing else.
TEST(DocumentErrors, AreOfAttentionWithinDocumentsAlone) {
  const Factors& factors = Factors::shipped();
  const cluster::Cluster c = without_spreads();
  program::Setting s = device_setting(4096);
  s.document_mask = true;
  auto programs = program::build_stages(wide_model(), s);
  attend_within_documents(programs, 0.25, true);
  const DescribedCosts costs(c, factors);
  const DescribedErrors others(c, factors);
  const DocumentErrors errors(others, costs, 1.2, true);
  int attended = 0;
  for (const auto& body : programs[0].bodies)
    for (const auto& step : body.steps) {
      const Errors of = errors.of(programs[0], step).at(0);
      const bool within = leaves_out_documents(programs[0], step, true);
      EXPECT_EQ(of.contains("documents"), within);
      if (!within) continue;
      ++attended;
      EXPECT_GT(of.at("documents"), 0.1);
      EXPECT_LE(of.at("documents"), 0.2 + 1e-12);
    }
  EXPECT_GT(attended, 0);
  const program::Stages stages(std::move(programs));
  const auto timelines = simulate(stages, costs);
  const double with = spread_of(errors_of_step(stages, timelines, errors)),
               without = spread_of(errors_of_step(stages, timelines, others));
  EXPECT_GT(with, without);
  EXPECT_EQ(spread_of(errors_of_step(stages, timelines, DocumentErrors(others, costs, 1.0, true))), without);
}

}  // namespace
}  // namespace molen::sim
