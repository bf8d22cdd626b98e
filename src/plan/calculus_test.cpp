#include "plan/calculus.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <regex>

#include "arch/parameters.h"
#include "base/error.h"
#include "plan/calculus_table.h"
#include "program/build/build.h"

namespace molen::plan {
namespace {

constexpr double kSecondsOfDay = 86400.0;

cluster::Figure figure(double value, double spread = 0.0) {
  return {value, spread, "of this test"};
}

// 22 nodes of 4 H100 with the peak that the GPT-NL project counts, and round figures elsewhere.
cluster::Cluster test_cluster() {
  cluster::Cluster c;
  c.name = "test-h100";
  c.title = "H100 <of a test>";
  c.nodes = 22;
  c.node = {4, figure(1000.0, 0.3), figure(768e9), figure(4e11), figure(2e10)};
  c.device.name = "H100";
  c.device.kind = "cuda";
  c.device.peak_16bit = figure(989e12, 0.01);
  c.device.memory = figure(94e9);
  c.device.idle_power = figure(100.0, 0.1);
  c.device.peak_power = figure(700.0, 0.05);
  c.site = {
      figure(1.2, 0.1), figure(0.27 / 3.6e6, 0.2), figure(1.5e-3 / 3.6e6, 0.5), figure(0.2 / 3.6e6, 0.4), {}, {}, {}};
  return c;
}

TrainingPlan test_plan() {
  TrainingPlan plan;
  plan.cluster = test_cluster();
  plan.devices = 88;
  plan.tokens = 450e9;
  plan.mfu = figure(0.4);
  return plan;
}

TEST(Calculus, DaysOfTheGptNlProject) {
  TrainingPlan plan = test_plan();
  const double flops = flops_per_token(model_of_size(30e9), FlopsRule::kSixN).value();
  EXPECT_EQ(flops, 180e9);
  // 8.1e22 FLOP at 88 x 989e12 x 0.4 = 3.48128e16 FLOP/s are 2,326,730 s.
  EXPECT_NEAR(training_seconds(plan, flops).value, 2326730.4, 0.1);
  EXPECT_NEAR(training_seconds(plan, flops).value / kSecondsOfDay, 26.93, 0.005);
  // The project reports 34 days, which is an MFU of 0.32.
  plan.mfu = figure(0.32);
  EXPECT_NEAR(training_seconds(plan, flops).value / kSecondsOfDay, 34.0, 0.5);
  // The full recompute of 8 N takes 4/3 of the time.
  EXPECT_DOUBLE_EQ(flops_per_token(model_of_size(30e9), FlopsRule::kEightN).value(), flops / 3 * 4);
}

TEST(Calculus, ExactCountOfFlopsFollowsTheProgram) {
  const auto arch = arch::preset("llama-tiny");
  const TrainedModel model = model_of(arch, 64);
  program::Setting setting;
  setting.sequence = 64;
  setting.micro_batch = setting.global_batch = 2;
  double built = 0.0;
  for (const auto& body : program::build(arch, setting).bodies)
    for (const auto& step : body.steps) built += step.model_flops.value;
  EXPECT_DOUBLE_EQ(flops_per_token(model, FlopsRule::kExact).value(), built / 128.0);
  // The recomputed forward is that of all layers, a third of their FLOPs; the head is computed once.
  const double head = 6.0 * static_cast<double>(arch.vocabulary * arch.hidden);
  EXPECT_NEAR(flops_per_token(model, FlopsRule::kExactRecompute).value(), (4.0 * built / 128.0 - head) / 3.0,
              1e-9 * built);
  EXPECT_FALSE(flops_per_token(model_of_size(1e9), FlopsRule::kExact).has_value());
  EXPECT_EQ(rule_of(model, false), FlopsRule::kExact);
  EXPECT_EQ(rule_of(model, true), FlopsRule::kExactRecompute);
  EXPECT_EQ(rule_of(model_of_size(1e9), true), FlopsRule::kEightN);
}

TEST(Calculus, CostsFollowFromEachFigureOfTheCluster) {
  const TrainingPlan plan = test_plan();
  const TrainingCosts costs = training_costs(plan, 180e9);
  const double load = training_load().value;
  const double power = 88 * (100.0 + 600.0 * load) + 22 * 1000.0, kwh = power * costs.seconds.value / 3.6e6;
  EXPECT_DOUBLE_EQ(costs.power.value, power);
  EXPECT_DOUBLE_EQ(costs.device_seconds.value, 88 * costs.seconds.value);
  EXPECT_NEAR(costs.computer_energy.value / 3.6e6, kwh, 1e-9 * kwh);
  EXPECT_NEAR(costs.energy.value / 3.6e6, 1.2 * kwh, 1e-9 * kwh);
  EXPECT_NEAR(costs.emissions.value, 1.2 * kwh * 0.27, 1e-9 * kwh);
  EXPECT_NEAR(costs.water.value, kwh * 1.5e-3, 1e-9 * kwh);  // of the computers' energy, without PUE
  EXPECT_NEAR(costs.electricity.value, 1.2 * kwh * 0.2, 1e-9 * kwh);
  EXPECT_EQ(costs.device_hours.value, 0.0);
  TrainingPlan charged = plan;
  charged.cluster.site.device_hour = cluster::Figure{1.5 / 3600.0, 0.2, "a contract"};
  const Estimate hours = training_costs(charged, 180e9).device_hours;
  EXPECT_NEAR(hours.value, costs.device_seconds.value / 3600.0 * 1.5, 1e-9 * hours.value);
  EXPECT_NEAR(hours.spread, std::hypot(costs.device_seconds.spread, 0.2), 1e-12);
  EXPECT_NEAR(costs.car.value / 1e3, costs.emissions.value / 0.1081, 1e-6 * costs.emissions.value);
}

TEST(Calculus, EmissionsOfTheGptNlProject) {
  // The project reports 34 days and 14 t for 30 B parameters on 450 B tokens.
  TrainingPlan plan = test_plan();
  plan.cluster = cluster::find("snellius-h100");
  plan.mfu = figure(0.32, 0.05);
  const TrainingCosts costs = training_costs(plan, 180e9);
  EXPECT_LT(costs.seconds.low() / kSecondsOfDay, 34.0);
  EXPECT_GT(costs.seconds.high() / kSecondsOfDay, 34.0);
  EXPECT_LT(costs.emissions.low(), 14e3);
  EXPECT_GT(costs.emissions.high(), 14e3);
}

TEST(Calculus, WholeNodesArePowered) {
  TrainingPlan plan = test_plan();
  plan.devices = 5;
  const double device = 100.0 + 600.0 * training_load().value;
  EXPECT_DOUBLE_EQ(computer_power(plan).value, 5 * device + 2 * 1000.0);
}

TEST(Calculus, SpreadsAddInQuadrature) {
  const Estimate a{10.0, 0.3}, b{5.0, 0.4};
  EXPECT_DOUBLE_EQ((a * b).spread, 0.5);
  EXPECT_DOUBLE_EQ((a / b).spread, 0.5);
  EXPECT_DOUBLE_EQ((a / b).value, 2.0);
  EXPECT_DOUBLE_EQ((3.0 * a).spread, 0.3);
  EXPECT_DOUBLE_EQ((a + b).spread, std::hypot(3.0, 2.0) / 15.0);
  EXPECT_DOUBLE_EQ(a.low() * a.high(), 100.0);

  TrainingPlan plan = test_plan();
  plan.mfu.spread = 0.2;
  const TrainingCosts costs = training_costs(plan, 180e9);
  EXPECT_DOUBLE_EQ(costs.seconds.spread, std::hypot(0.01, 0.2));
  // Power of a device: the spreads of idle and peak in their shares, and that of the load on the difference.
  const double load = training_load().value, device = 100.0 + 600.0 * load;
  const double of_device =
      std::hypot(std::hypot(100.0 * (1 - load) * 0.1, 700.0 * load * 0.05), 600.0 * load * training_load().spread);
  EXPECT_NEAR(costs.power.spread, std::hypot(88 * of_device, 22 * 1000.0 * 0.3) / (88 * device + 22e3), 1e-12);
  EXPECT_NEAR(costs.energy.spread, std::hypot(costs.computer_energy.spread, 0.1), 1e-12);
  EXPECT_NEAR(costs.emissions.spread, std::hypot(costs.energy.spread, 0.2), 1e-12);
  EXPECT_NEAR(costs.car.spread, std::hypot(costs.emissions.spread, car_emissions().spread), 1e-12);
}

TEST(Calculus, FrontierRule) {
  const FrontierRule rule = frontier_rule(1e12, 20e12);
  EXPECT_DOUBLE_EQ(rule.optimal_flops, 120e24);  // "120 million exaFLOP"
  EXPECT_DOUBLE_EQ(rule.energy.value, rule.optimal_energy.value);
  EXPECT_NEAR(frontier_rule(1e12, 5e12).energy.value, rule.energy.value / 4, 1e-6 * rule.energy.value);
  // Each of the three published estimates lies in the interval.
  for (const auto& [parameters, joules] :
       {std::pair{22e9, 284e9}, std::pair{175e9, 17.65e12}, std::pair{1e12, 662e12}}) {
    const Estimate energy = frontier_rule(parameters, 20 * parameters).energy;
    EXPECT_GE(joules, energy.low() * (1 - 1e-12)) << parameters;
    EXPECT_LE(joules, energy.high() * (1 + 1e-12)) << parameters;
  }
  EXPECT_LT(rule.energy.spread, 0.1);
}

TEST(Calculus, MemoryOfTheZeroPaper) {
  // Rajbhandari et al. 2020, figure 1: 7.5 B parameters over 64 devices.
  const double published[] = {120.0, 31.4, 16.6, 1.9};
  for (int stage = 0; stage <= 3; ++stage)
    EXPECT_NEAR(zero_bytes(kZeroPaper, stage, 7.5e9, 64) / 1e9, published[stage], 0.05) << stage;
  // The Frontier series counts 6, 4 and 8 bytes: 132, 88 and 176 GB of 22 B parameters.
  EXPECT_EQ(22 * (kWideGradients.weights + kWideGradients.master), 132);
  EXPECT_EQ(22 * kWideGradients.gradients, 88);
  EXPECT_EQ(22 * kWideGradients.moments, 176);
  // OpenGPT-X: 56.9 GB on each of 32 devices with ZeRO-1 for 13 B.
  EXPECT_NEAR(zero_bytes(kZeroPaper, 1, 13e9, 32) / 1e9, 56.9, 0.05);
  for (const StateBytes& bytes : kStateBytes)
    for (int stage = 0; stage <= 3; ++stage)
      EXPECT_DOUBLE_EQ(zero_bytes(bytes, stage, 1e9, 1), 1e9 * bytes.total()) << bytes.name;
}

TEST(Calculus, LossOfChinchilla) {
  ASSERT_EQ(scaling_laws().size(), 2u);
  // 70 B parameters on 1.4 T tokens: 1.69 + 406.4 / 4868 + 410.7 / 2517.
  EXPECT_NEAR(scaling_laws()[0].loss(70e9, 1.4e12), 1.937, 0.001);
  EXPECT_NEAR(scaling_laws()[1].loss(70e9, 1.4e12), 1.974, 0.001);
  TrainingPlan plan = test_plan();
  plan.tokens = 1.4e12;
  const CalculusReport report = calculate(plan, {model_of_size(70e9)});
  EXPECT_DOUBLE_EQ(report.models[0].optimal_tokens, 1.0);
  // Gopher, 280 B parameters on 300 B tokens, has more loss for the same compute by both laws, as the paper found.
  for (const ScalingLaw& law : scaling_laws()) EXPECT_GT(law.loss(280e9, 300e9), law.loss(70e9, 1.4e12)) << law.name;
  EXPECT_NEAR(scaling_laws()[0].loss(280e9, 300e9), 1.993, 0.001);
  EXPECT_TRUE(calculate(plan, {model_of(arch::preset("mixtral-8x7b"), 4096)}).models[0].losses.empty());
}

TEST(Calculus, BatchesAtTheNoiseScale) {
  TrainingPlan plan = test_plan();
  EXPECT_TRUE(batch_rows(plan, 180e9).empty());
  plan.noise_scale = 4e6;
  plan.batch_tokens = 3e6;
  const auto rows = batch_rows(plan, 180e9);
  ASSERT_EQ(rows.size(), 8u);
  const double least_steps = plan.tokens / plan.noise_scale;
  for (const BatchRow& row : rows) {
    EXPECT_NEAR(row.steps * row.batch, row.tokens, 1e-9 * row.tokens);
    EXPECT_NEAR(row.steps, least_steps * row.step_ratio, 1e-9 * row.steps);
    EXPECT_NEAR((row.step_ratio - 1.0) * (row.token_ratio - 1.0), 1.0, 1e-12);
    EXPECT_NEAR(row.seconds.value, row.steps * row.step_seconds.value, 1e-9 * row.seconds.value);
  }
  EXPECT_EQ(rows[3].batch, 3e6);
  EXPECT_EQ(rows[4].batch, 4e6);  // twice the tokens and twice the steps
  EXPECT_DOUBLE_EQ(rows[4].token_ratio, 2.0);
  EXPECT_DOUBLE_EQ(rows[4].step_ratio, 2.0);
  EXPECT_DOUBLE_EQ(rows[4].seconds.value, 2.0 * training_seconds(plan, 180e9).value);
}

TEST(Calculus, DaysTableOfTheFigure) {
  const CalculusReport report = calculate(test_plan(), {model_of_size(30e9)});
  const DaysTable& days = report.days;
  ASSERT_EQ(days.models.size(), 6u);
  EXPECT_EQ(days.models[4].name, "30 B");
  const std::vector<double> tokens{200e9, 400e9, 450e9, 600e9, 800e9, 1000e9, 1200e9, 1400e9};
  EXPECT_EQ(days.tokens, tokens);
  // 120 days, the end of the figure's axis: 70 B reach it at 860 B tokens.
  const auto& seventy = days.seconds[5];
  EXPECT_LT(seventy[4].value / kSecondsOfDay, 120.0);
  EXPECT_GT(seventy[5].value / kSecondsOfDay, 120.0);
  EXPECT_DOUBLE_EQ(days.seconds[4][2].value, report.models[0].costs.seconds.value);
}

RC_GTEST_PROP(Calculus, DaysAreLinearInTokensAndInverseInDevices, ()) {
  TrainingPlan plan = test_plan();
  plan.cluster.nodes = 1000;
  plan.devices = *rc::gen::inRange(1, 1000);
  plan.tokens = 1e6 * *rc::gen::inRange(1, 10000000);
  const int factor = *rc::gen::inRange(1, 5);
  const double flops = 6e6 * *rc::gen::inRange(1, 1000000), seconds = training_seconds(plan, flops).value;
  TrainingPlan longer = plan, wider = plan;
  longer.tokens *= factor;
  wider.devices *= factor;
  RC_ASSERT(std::abs(training_seconds(longer, flops).value - factor * seconds) <= 1e-12 * factor * seconds);
  RC_ASSERT(std::abs(training_seconds(wider, flops).value * factor - seconds) <= 1e-12 * seconds);
  // The time that devices work does not depend on their number.
  RC_ASSERT(std::abs(training_costs(wider, flops).device_seconds.value - plan.devices * seconds) <=
            1e-12 * plan.devices * seconds);
}

RC_GTEST_PROP(Calculus, IntervalsContainTheValue, ()) {
  const auto spread = [] { return 0.01 * *rc::gen::inRange(0, 100); };
  TrainingPlan plan = test_plan();
  for (cluster::Figure* f :
       {&plan.cluster.device.peak_16bit, &plan.cluster.device.idle_power, &plan.cluster.device.peak_power,
        &plan.cluster.node.host_power, &plan.cluster.site.pue, &plan.cluster.site.intensity, &plan.cluster.site.water,
        &plan.cluster.site.price, &plan.mfu})
    f->spread = spread();
  const TrainingCosts costs = training_costs(plan, 180e9);
  for (const Estimate& e : {costs.seconds, costs.device_seconds, costs.power, costs.computer_energy, costs.energy,
                            costs.emissions, costs.water, costs.electricity, costs.car}) {
    RC_ASSERT(e.low() > 0.0);
    RC_ASSERT(e.low() <= e.value);
    RC_ASSERT(e.value <= e.high());
  }
  // A product is never more certain than its factors.
  RC_ASSERT(costs.energy.spread >= costs.power.spread);
  RC_ASSERT(costs.energy.spread >= costs.seconds.spread);
  RC_ASSERT(costs.emissions.spread >= costs.energy.spread);
}

std::string calculus_refusal(const TrainingPlan& plan) {
  try {
    calculate(plan, {model_of_size(1e9)});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Calculus, RefusesWhatIsOutOfRange) {
  EXPECT_EQ(calculus_refusal(test_plan()), "");
  for (const double mfu : {0.0, -0.1, 1.01, std::nan("")}) {
    TrainingPlan plan = test_plan();
    plan.mfu.value = mfu;
    EXPECT_NE(calculus_refusal(plan).find("--mfu"), std::string::npos) << mfu;
  }
  TrainingPlan plan = test_plan();
  plan.mfu.value = 1.0;
  EXPECT_EQ(calculus_refusal(plan), "");
  plan.mfu.spread = 1.0;
  EXPECT_NE(calculus_refusal(plan).find("--mfu-spread"), std::string::npos);
  for (const double tokens : {0.0, -1.0, std::nan("")}) {
    plan = test_plan();
    plan.tokens = tokens;
    EXPECT_NE(calculus_refusal(plan).find("--tokens"), std::string::npos) << tokens;
  }
  plan = test_plan();
  plan.devices = 89;
  EXPECT_NE(calculus_refusal(plan).find("test-h100 has 88 devices in 22 nodes of 4, not 89"), std::string::npos)
      << calculus_refusal(plan);
  plan.devices = 0;
  EXPECT_NE(calculus_refusal(plan).find("--devices"), std::string::npos);
  plan = test_plan();
  plan.noise_scale = -1.0;
  EXPECT_NE(calculus_refusal(plan).find("--noise-scale"), std::string::npos);
  plan = test_plan();
  plan.cluster.device.peak_16bit.value = 0.0;
  EXPECT_NE(calculus_refusal(plan).find("no 16-bit peak"), std::string::npos);
}

TEST(Calculus, TextMarkdownAndJsonShowTheSameFigures) {
  TrainingPlan plan = test_plan();
  plan.mfu.spread = 0.2;
  plan.noise_scale = 4e6;
  const CalculusReport report = calculate(plan, {model_of_size(30e9)});
  const std::string text = to_text(tables_of(report)), markdown = to_markdown(tables_of(report));
  const Json json = to_json(report);
  EXPECT_NEAR(json["models"][0]["costs"]["days"]["value"].get<double>(), 26.93, 0.005);
  for (const std::string& shown :
       {std::string("26.9 (22.4 to 32.3)"), std::string("56900"), std::string("of this test")}) {
    EXPECT_NE(text.find(shown), std::string::npos) << shown << "\n" << text;
    EXPECT_NE(markdown.find(shown), std::string::npos) << shown << "\n" << markdown;
  }
  for (const CalculusTable& table : tables_of(report))
    for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.header.size()) << table.title;
  EXPECT_EQ(json["models"][0]["memory"][0]["zero_bytes_per_device"][0], 480e9);
  EXPECT_EQ(json["models"][0]["batches"].size(), 7u);
  EXPECT_EQ(json["days"]["rows"].size(), 6u);
}

TEST(Calculus, NumbersHaveThreeDigits) {
  TrainingPlan plan = test_plan();
  plan.cluster.device.memory = figure(99.96536e9);  // not "100.0"
  const std::string text = to_text(tables_of(calculate(plan, {model_of_size(1e9)})));
  EXPECT_NE(text.find("A device has 100 GB"), std::string::npos) << text;
  // Assumptions are shown in the units of data sheets. No line ends in blanks.
  EXPECT_TRUE(std::regex_search(text, std::regex("16-bit peak of a device +989 TFLOP/s \\+- 1.00 %"))) << text;
  EXPECT_FALSE(std::regex_search(text, std::regex(" \n"))) << text;
  plan.cluster.site.water = figure(0.0);
  const std::string dry = to_text(tables_of(calculate(plan, {model_of_size(1e9)})));
  EXPECT_TRUE(std::regex_search(dry, std::regex(" 0( L|  |$|\n)"))) << "zero has no digits after the point\n" << dry;
  EXPECT_EQ(dry.find("0.00"), std::string::npos) << dry;
  plan.cluster.site.price = figure(1e-20);
  const std::string cheap = to_text(tables_of(calculate(plan, {model_of_size(1e9)})));
  EXPECT_TRUE(std::regex_search(cheap, std::regex(" [1-9]\\.[0-9][0-9]e-[0-9][0-9]"))) << "below 10^-4\n" << cheap;
  EXPECT_EQ(cheap.find("0.00000"), std::string::npos) << cheap;
}

TEST(Calculus, PlotHasOneLineForEachModelAndSeparateNames) {
  const CalculusReport report = calculate(test_plan(), figure_models());
  const std::string svg = to_svg(report);
  const std::regex line("<polyline"), name("<text x=\"[0-9.]+\" y=\"([0-9.]+)\" fill=\"#[0-9a-f]+\">([0-9]+ B)</text>");
  EXPECT_EQ(std::distance(std::sregex_iterator(svg.begin(), svg.end(), line), std::sregex_iterator()), 6);
  std::vector<double> heights;
  for (std::sregex_iterator at(svg.begin(), svg.end(), name); at != std::sregex_iterator(); ++at)
    heights.push_back(std::stod((*at)[1]));
  ASSERT_EQ(heights.size(), 6u);
  for (std::size_t i = 1; i < heights.size(); ++i) EXPECT_GE(heights[i - 1] - heights[i], 14.9) << i;
  // The marks of both axes begin at an axis: those of days run across, and those of tokens are 5 long.
  const std::regex mark("<line x1=\"([0-9.]+)\" y1=\"([0-9.]+)\" x2=\"([0-9.]+)\" y2=\"([0-9.]+)\"");
  int across = 0, along = 0;
  for (std::sregex_iterator at(svg.begin(), svg.end(), mark); at != std::sregex_iterator(); ++at) {
    const double x1 = std::stod((*at)[1]), y1 = std::stod((*at)[2]), x2 = std::stod((*at)[3]), y2 = std::stod((*at)[4]);
    if (y1 == y2) {
      ++across;
      EXPECT_GT(x2, x1 + 100.0);
    } else {
      ++along;
      EXPECT_EQ(x1, x2);
      EXPECT_EQ(y2, y1 + 5.0);
    }
  }
  EXPECT_GT(across, 3);
  EXPECT_GT(along, 3);
  EXPECT_NE(svg.find(">tokens, billions<"), std::string::npos);
  EXPECT_NE(svg.find(">days<"), std::string::npos);
  TrainingPlan odd = test_plan();
  odd.cluster.device.name = "A<B&C";
  EXPECT_NE(to_svg(calculate(odd, figure_models())).find("A&lt;B&amp;C"), std::string::npos);
}

}  // namespace
}  // namespace molen::plan
