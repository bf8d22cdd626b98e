#include "plan/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "base/csv.h"
#include "base/error.h"
#include "plan/plot.h"
#include "plan/sweep_plots.h"

namespace molen::plan {
namespace {

constexpr const char* kModel =
    "[model]\nfamily = \"llama\"\nlayers = 2\nhidden = 24\nffn = 40\nheads = 4\nvocabulary = 320\n"
    "[data]\nsequence_length = 16\n[batch]\nglobal = 8\n";

// An experiment whose trials take the time that a test says, without programs.
struct MadeUp {
  SweepPlan plan;
  std::map<std::string, TrialRow> kept;
  std::vector<std::string> tried;
  std::vector<std::int64_t> begun, ended;  // indices of trials
  std::mutex trying;
  std::function<void(const config::Config&, const TrialRow&, Outcome&)> outcome = [](const config::Config&,
                                                                                     const TrialRow&, Outcome&) {};

  explicit MadeUp(const std::vector<std::string>& grid, std::vector<int> nodes = {1},
                  Scaling scaling = Scaling::kNone) {
    plan.grid = parse_grid(grid);
    plan.scaling = scaling;
    plan.cluster = "made-up";
    for (const int n : nodes) plan.sizes.push_back({n, 4 * n});
  }
  std::vector<TrialRow> run() {
    SweepCalls calls;
    calls.load = [](const std::vector<std::string>& sets) { return config::parse(kModel, "run.toml", sets); };
    calls.attempt = [&](const config::Config& config, TrialRow& row) {
      {
        const std::lock_guard lock(trying);
        tried.push_back(label_of(plan, row));
      }
      Outcome o;
      o.kind = Outcome::Kind::kStep;
      o.figures.tokens = config.batch.global * config.data.sequence_length;
      o.figures.ranks = row.size.ranks;
      // A rank takes a second for each of its sequences: an ideal job.
      o.figures.step_s = static_cast<double>(config.batch.global) / row.size.ranks;
      o.figures.low_s = 0.9 * o.figures.step_s, o.figures.high_s = 1.2 * o.figures.step_s;
      o.figures.step_j = 36.0, o.figures.mfu = 0.25, o.figures.layout = "NO_SHARD";
      o.memory = Bytes(1 << 20);
      outcome(config, row, o);
      return o;
    };
    const auto note = [&](std::vector<std::int64_t>& indices, std::int64_t index) {
      const std::lock_guard lock(trying);
      indices.push_back(index);
    };
    calls.begin = [&](const TrialRow&, std::int64_t index) { note(begun, index); };
    calls.end = [&](const TrialRow&, std::int64_t index) { note(ended, index); };
    return run_sweep(plan, calls, kept);
  }
};

TEST(Sweep, TriesEachPointOnEachSizeInOrder) {
  MadeUp made({"batch.micro=1,2", "math.flash_attention=true,false"}, {1, 2}, Scaling::kStrong);
  const auto rows = made.run();
  ASSERT_EQ(rows.size(), 8U);
  EXPECT_EQ(made.tried[0], "micro 1, flash_attention true");
  EXPECT_EQ(made.tried[1], "micro 1, flash_attention true");
  EXPECT_EQ(made.tried[2], "micro 1, flash_attention false");
  EXPECT_EQ(made.tried[7], "micro 2, flash_attention false");
  for (auto* const said : {&made.begun, &made.ended})
    EXPECT_EQ(*said, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(rows[1].size.nodes, 2);
  EXPECT_EQ(rows[2].keys, (Json{{"batch.micro", 1}, {"math.flash_attention", false}}));
}

// A job in which every rank works all the time: of twice the size, strong scaling halves the step at the same batch,
// and weak scaling keeps the step at twice the batch. Either is ideal.
TEST(Sweep, AnIdealJobHasAnEfficiencyOfOne) {
  for (const Scaling scaling : {Scaling::kStrong, Scaling::kWeak}) {
    MadeUp made({}, {1, 2, 8}, scaling);
    const auto rows = made.run();
    const bool weak = scaling == Scaling::kWeak;
    for (const TrialRow& row : rows) {
      EXPECT_EQ(row.global_batch, weak ? 8 * row.size.nodes : 8);
      EXPECT_DOUBLE_EQ(row.outcome.figures.step_s, weak ? 2.0 : 2.0 / row.size.nodes);
      EXPECT_DOUBLE_EQ(*row.speed_up, row.size.nodes);
      EXPECT_DOUBLE_EQ(*row.ideal, row.size.nodes);
      EXPECT_DOUBLE_EQ(*row.efficiency, 1.0);
    }
  }
}

// A model that does not fit on one node: the smallest size that has figures is the one that others compare with.
TEST(Sweep, ComparesWithTheFirstSizeThatHasFigures) {
  MadeUp made({}, {1, 2, 4}, Scaling::kStrong);
  made.outcome = [](const config::Config&, const TrialRow& row, Outcome& o) {
    if (row.size.nodes == 1) o = {}, o.kind = Outcome::Kind::kOutOfMemory, o.why = "too large";
    if (row.size.nodes == 4) o.figures.step_s *= 2.0;  // half of what the larger job could do
  };
  const auto rows = made.run();
  EXPECT_FALSE(rows[0].speed_up);
  EXPECT_DOUBLE_EQ(*rows[1].ideal, 2.0);
  EXPECT_DOUBLE_EQ(*rows[1].speed_up, 2.0);
  EXPECT_DOUBLE_EQ(*rows[2].ideal, 4.0);
  EXPECT_DOUBLE_EQ(*rows[2].speed_up, 2.0);
  EXPECT_DOUBLE_EQ(*rows[2].efficiency, 0.5);
}

// 3 sequences on 2 nodes are 4.5 on 3. A batch that the grid replaces is used by no trial.
TEST(Sweep, WeakBatchesThatAreUsedAreChecked) {
  const auto sizes = std::vector<int>{2, 3};
  EXPECT_THROW(require_weak_batches(MadeUp({}, sizes, Scaling::kWeak).plan, 3), UsageError);
  EXPECT_NO_THROW(require_weak_batches(MadeUp({"batch.global=8,16"}, sizes, Scaling::kWeak).plan, 3));
  EXPECT_THROW(require_weak_batches(MadeUp({"batch.global=8,7"}, sizes, Scaling::kWeak).plan, 8), UsageError);
  EXPECT_NO_THROW(require_weak_batches(MadeUp({}, sizes, Scaling::kStrong).plan, 3));
}

// Trials that wait for each other end only if they run at the same time; their rows stay in order.
TEST(Sweep, TrialsRunAtTheSameTime) {
  MadeUp made({"batch.micro=1,2,4,8"});
  made.plan.concurrent = 2;
  std::mutex mutex;
  std::condition_variable arrived;
  int here = 0;
  made.outcome = [&](const config::Config& config, const TrialRow&, Outcome& o) {
    std::unique_lock lock(mutex);
    if (++here % 2 == 0)
      arrived.notify_all();
    else
      arrived.wait(lock, [&, mine = here] { return here > mine; });
    o.figures.step_s = static_cast<double>(config.batch.micro);
  };
  const auto rows = made.run();
  ASSERT_EQ(rows.size(), 4U);
  for (const TrialRow& row : rows) EXPECT_EQ(Json(row.outcome.figures.step_s), row.keys["batch.micro"]);
}

TEST(Sweep, WithoutScalingHasNoSpeedUp) {
  EXPECT_FALSE(MadeUp({"batch.micro=1,2"}).run().front().speed_up);
}

// Values that contradict each other are a row, as a trial that throws is, and neither ends the sweep.
TEST(Sweep, ContradictionsAreRows) {
  MadeUp made({"batch.micro=1,3,8"});
  made.outcome = [](const config::Config& config, const TrialRow&, Outcome&) {
    if (config.batch.micro == 8) throw UsageError("--set batch.micro: 8 is too much");
  };
  const auto rows = made.run();
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_TRUE(rows[0].has_step());
  EXPECT_EQ(rows[1].outcome.kind, Outcome::Kind::kRefused);
  EXPECT_EQ(rows[1].outcome.why, "--grid batch.micro: 3 does not divide batch.global = 8");
  EXPECT_EQ(rows[2].outcome.why, "--grid batch.micro: 8 is too much");
  EXPECT_EQ(made.tried.size(), 2U);
}

// A trial without a step is tried again: data that were missing, or memory that another job took, may be there now.
TEST(Sweep, KeepsTrialsWithAStepOfTheSameConfiguration) {
  MadeUp made({"batch.micro=1,2,4,8"});
  made.outcome = [](const config::Config& config, const TrialRow&, Outcome& o) {
    if (config.batch.micro == 2) o.kind = Outcome::Kind::kFailed;
    if (config.batch.micro == 4) o.kind = Outcome::Kind::kOutOfMemory;
    if (config.batch.micro == 8) throw UsageError("no such file");
  };
  const auto first = made.run();
  for (const auto& row : first) made.kept[row.trial] = row;
  EXPECT_EQ(made.kept.size(), 4U) << "each trial has an identity of its own";
  made.tried.clear(), made.begun.clear(), made.ended.clear();
  const auto second = made.run();
  EXPECT_EQ(made.begun, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(made.ended, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(made.tried, (std::vector<std::string>{"micro 2", "micro 4", "micro 8"})) << "those without a step";
  EXPECT_TRUE(second[0].kept);
  EXPECT_FALSE(second[1].kept);
  EXPECT_DOUBLE_EQ(second[0].outcome.figures.step_s, first[0].outcome.figures.step_s);
  made.tried.clear();
  made.plan.conditions = "another launcher";
  made.run();
  EXPECT_EQ(made.tried.size(), 4U);
}

TEST(Sweep, IdentityIsOfTheTrainingAlone) {
  const SweepPlan plan = MadeUp({}).plan;
  const JobSize size{1, 4};
  const auto identity = [&](const std::vector<std::string>& sets, JobSize of) {
    return identity_of_trial(plan, of, config::parse(kModel, "run.toml", sets));
  };
  const std::string own = identity({}, size);
  EXPECT_EQ(own, identity({"run.name=other", "checkpoint.keep=1"}, size));
  EXPECT_NE(own, identity({"batch.micro=2"}, size));
  EXPECT_NE(own, identity({}, {2, 8}));
}

TEST(SweepRows, ALineIsTheRowAgain) {
  MadeUp made({"batch.micro=1,2"}, {1, 2}, Scaling::kStrong);
  made.outcome = [](const config::Config&, const TrialRow& row, Outcome& o) {
    o.machine = {"a processor", "a device", "1.2 (abc)"};
    if (row.point[0] == "2") o = {}, o.kind = Outcome::Kind::kOutOfMemory, o.why = "too large", o.memory = Bytes(9);
  };
  const auto rows = made.run();
  for (const TrialRow& row : rows) {
    const Json line = to_json(made.plan, row);
    const TrialRow again = row_from_json(line, "sweep.jsonl:1");
    EXPECT_EQ(again.trial, row.trial);
    EXPECT_EQ(again.outcome.kind, row.outcome.kind);
    EXPECT_EQ(again.outcome.why, row.outcome.why);
    EXPECT_EQ(again.outcome.memory, row.outcome.memory);
    EXPECT_EQ(again.outcome.figures.step_s, row.outcome.figures.step_s);
    EXPECT_EQ(again.outcome.figures.mfu, row.outcome.figures.mfu);
    EXPECT_EQ(again.outcome.machine, row.outcome.machine);
  }
  EXPECT_EQ(to_json(made.plan, rows[0])["device"], "a device");
  const Json line = to_json(made.plan, rows[0]);
  EXPECT_EQ(line["outcome"], "step");
  EXPECT_DOUBLE_EQ(line["tokens_per_s_per_device"], 8 * 16 / 2.0 / 4);
  EXPECT_DOUBLE_EQ(line["kwh_per_step"], 36.0 / 3.6e6);
  EXPECT_DOUBLE_EQ(line["j_per_token"], 36.0 / (8 * 16));
  EXPECT_TRUE(to_json(made.plan, rows[2])["step_s"].is_null());
  Json unknown = line;
  unknown["memory_bytes"] = nullptr;
  EXPECT_FALSE(row_from_json(unknown, "sweep.jsonl:1").outcome.memory) << "it is not known, rather than 0";
}

TEST(SweepRows, RefuseALineOfAnotherForm) {
  Json line = to_json(MadeUp({}).plan, MadeUp({}).run().front());
  const auto refused = [](const Json& with) {
    try {
      row_from_json(with, "sweep.jsonl:7");
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused(line), "");
  for (const auto& [key, value] : {std::pair<const char*, Json>{"outcome", "lost"},
                                   {"step_s", "soon"},
                                   {"tokens", 1.5},
                                   {"step_s", 0.0},
                                   {"ranks", nullptr}}) {
    Json with = line;
    with[key] = value;
    EXPECT_EQ(refused(with).substr(0, 13), "sweep.jsonl:7") << key;
    EXPECT_NE(refused(with).find(fmt::format("\"{}\"", key)), std::string::npos) << refused(with);
  }
  EXPECT_NE(refused(Json{{"trial", "x"}}), "");
}

TEST(SweepRows, CsvHasALineForEachTrial) {
  MadeUp made({"parallel.sharding=FULL_SHARD,NO_SHARD", "batch.micro=1,2"});
  made.outcome = [](const config::Config& config, const TrialRow&, Outcome& o) {
    if (config.batch.micro == 2) o = {}, o.why = "a, \"quoted\" reason";
  };
  const auto rows = made.run();
  const std::string text = to_csv(made.plan, rows);
  CsvReader reader(text, "sweep.csv", 100);
  std::vector<std::string> header, cells;
  ASSERT_TRUE(reader.next(header));
  const auto column = [&](const char* name) {
    return static_cast<std::size_t>(std::find(header.begin(), header.end(), name) - header.begin());
  };
  std::size_t lines = 0;
  for (; reader.next(cells); ++lines) {
    ASSERT_EQ(cells.size(), header.size());
    EXPECT_EQ(cells[column("parallel.sharding")], rows[lines].point[0]);
    EXPECT_EQ(cells[column("step_s")], lines % 2 == 0 ? "2.0" : "");
    EXPECT_EQ(cells[column("why")], lines % 2 == 0 ? "" : "a, \"quoted\" reason");
  }
  EXPECT_EQ(lines, 4U);
}

TEST(SweepRows, TableSaysWhyATrialHasNoFigures) {
  MadeUp made({"batch.micro=1,3"});
  const auto table = table_of(made.plan, made.run());
  ASSERT_EQ(table.size(), 3U);
  EXPECT_EQ(table[0].front(), "micro");
  EXPECT_EQ(table[1].back(), "NO_SHARD");
  EXPECT_EQ(table[2].back(), "refused: --grid batch.micro: 3 does not divide batch.global = 8");
  for (const auto& row : table) EXPECT_EQ(row.size(), table[0].size());
}

TEST(SweepRows, TableOfAScalingHasTheSizes) {
  MadeUp weak({"batch.micro=1"}, {1, 4}, Scaling::kWeak);
  auto table = table_of(weak.plan, weak.run());
  ASSERT_EQ(table.size(), 3U);
  const auto first = [&](std::size_t row) { return std::vector(table[row].begin(), table[row].begin() + 3); };
  EXPECT_EQ(first(0), (std::vector<std::string>{"micro", "nodes", "batch"}));
  EXPECT_EQ(first(1), (std::vector<std::string>{"1", "1", "8"}));
  EXPECT_EQ(first(2), (std::vector<std::string>{"1", "4", "32"}));
  for (JobSize& size : weak.plan.sizes) size.nodes = 0;
  table = table_of(weak.plan, weak.run());
  EXPECT_EQ(first(0), (std::vector<std::string>{"micro", "ranks", "batch"}));
  EXPECT_EQ(first(2), (std::vector<std::string>{"1", "16", "32"}));
}

TEST(SweepRows, TheTimeToALossNeedsANoiseScale) {
  MadeUp made({"batch.global=8,64"});
  for (const char* key : {"loss_s_per_mtoken", "noise_scale_tokens"})
    EXPECT_TRUE(to_json(made.plan, made.run()[0])[key].is_null()) << key;
  made.plan.noise_scale = 128.0;  // the tokens of the first batch
  const auto rows = made.run();
  // A sequence of 16 tokens takes 1/4 s on 4 ranks.
  EXPECT_DOUBLE_EQ(to_json(made.plan, rows[0])["loss_s_per_mtoken"].get<double>(), 2.0 * 1e6 / 64.0);
  EXPECT_DOUBLE_EQ(to_json(made.plan, rows[1])["loss_s_per_mtoken"].get<double>(), 9.0 * 1e6 / 64.0);
  EXPECT_EQ(to_json(made.plan, rows[1])["noise_scale_tokens"], 128.0);
  const auto table = table_of(made.plan, rows);
  EXPECT_EQ(table[0][3], "time to loss");
  EXPECT_EQ(table[1][3], human(Seconds(31250.0)));
  MadeUp failed({"batch.micro=3"});
  failed.plan.noise_scale = 128.0;
  EXPECT_TRUE(to_json(failed.plan, failed.run()[0])["loss_s_per_mtoken"].is_null());
}

TEST(SweepRows, NameTheDifferentMachinesOfTheirSteps) {
  MadeUp made({"batch.micro=1,2,4,8"});
  made.outcome = [](const config::Config& config, const TrialRow&, Outcome& o) {
    o.machine = {"a processor", config.batch.micro < 4 ? "cpu" : "a device", "1.2 (abc)"};
    if (config.batch.micro == 4) o.kind = Outcome::Kind::kFailed;
  };
  EXPECT_EQ(machines_of(made.run()), (std::vector<std::string>{"cpu (a processor)", "a device (a processor)"}));
  EXPECT_TRUE(machines_of(MadeUp({}).run()).empty()) << "predictions have none";
}

TEST(SweepRows, TheTitleSaysWhoseStepsTheyAre) {
  MadeUp both({"framework.kind=molen,pytorch"}), one({"framework.kind=pytorch", "batch.micro=1,2"});
  EXPECT_EQ(framework_of(both.run()), std::nullopt);
  EXPECT_EQ(title_of(both.plan, both.run()), "custom on 1 node of made-up, predicted");
  EXPECT_EQ(framework_of(one.run()), "pytorch");
  EXPECT_EQ(title_of(one.plan, one.run()), "custom with framework.kind = \"pytorch\" on 1 node of made-up, predicted");
}

// The interval of a prediction is a probability; that of a measurement is of the steps that there were.
TEST(SweepRows, NameTheIntervalForWhatItIs) {
  MadeUp made({"batch.micro=1,2"});
  const auto rows = made.run();
  const auto has = [&](const char* name) { return std::ranges::count(table_of(made.plan, rows)[0], name); };
  EXPECT_EQ(has("80 % likely"), 1);
  made.plan.measured = true;
  EXPECT_EQ(has("80 % likely"), 0);
  EXPECT_EQ(has("10th - 90th percentile"), 1);
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

const std::string& plot_named(const std::vector<SweepPlot>& plots, const std::string& file) {
  static const std::string none;
  for (const auto& plot : plots)
    if (plot.file == file) return plot.svg;
  ADD_FAILURE() << "no plot " << file;
  return none;
}

// Two groups of two bars, of which one trial failed; the longest bar ends at its value.
TEST(SweepPlots, GridHasABarForEachTrial) {
  MadeUp made({"batch.micro=1,2", "parallel.sharding=FULL_SHARD,NO_SHARD"});
  made.outcome = [](const config::Config& config, const TrialRow& row, Outcome& o) {
    if (config.batch.micro == 2) o.figures.step_s /= 2;
    if (row.point == std::vector<std::string>{"1", "NO_SHARD"}) o = {}, o.kind = Outcome::Kind::kOutOfMemory;
  };
  const auto plots = plots_of(made.plan, made.run());
  ASSERT_EQ(plots.size(), 3U);
  const std::string& svg = plot_named(plots, "tokens_per_s_per_device.svg");
  EXPECT_NE(svg.find(">custom on 1 node of made-up, predicted<"), std::string::npos) << svg;
  EXPECT_EQ(count_of(svg, ">out of memory<"), 1U);
  EXPECT_EQ(count_of(svg, ">micro 1<"), 1U);
  EXPECT_EQ(count_of(svg, ">32</text>"), 2U) << "8 x 16 tokens in 1 s on 4 ranks";
  EXPECT_EQ(count_of(svg, ">16</text>"), 1U) << "in 2 s";
  EXPECT_NE(svg.find(">sharding:<"), std::string::npos);
  plot_named(plots, "mfu.svg");
  plot_named(plots, "kwh_per_step.svg");
}

TEST(SweepPlots, AreOfTheFiguresThatThereAre) {
  MadeUp made({"batch.micro=1,2"});
  made.outcome = [](const config::Config&, const TrialRow&, Outcome& o) {
    o.figures.mfu.reset(), o.figures.step_j.reset();
  };
  const auto plots = plots_of(made.plan, made.run());
  ASSERT_EQ(plots.size(), 1U);
  EXPECT_EQ(plots[0].file, "tokens_per_s_per_device.svg");
}

// The axis speaks for all bars, so that it names a coverage only where all share it.
TEST(SweepPlots, EnergyCoverageIsNamedWhereAllAgree) {
  MadeUp made({"batch.micro=1,2"});
  made.plan.measured = true;
  made.outcome = [](const config::Config&, const TrialRow&, Outcome& o) { o.figures.energy_coverage = "gpu only"; };
  const auto same = plots_of(made.plan, made.run());
  EXPECT_EQ(count_of(plot_named(same, "kwh_per_step.svg"), "(gpu only)"), 1U);
  made.outcome = [](const config::Config& config, const TrialRow&, Outcome& o) {
    if (config.batch.micro == 1) o.figures.energy_coverage = "gpu only";
  };
  const auto mixed = plots_of(made.plan, made.run());
  EXPECT_EQ(count_of(plot_named(mixed, "kwh_per_step.svg"), "(gpu only)"), 0U);
  EXPECT_EQ(count_of(plot_named(mixed, "kwh_per_step.svg"), "different parts"), 1U);
}

TEST(SweepPlots, LargeGridShowsItsFastestTrials) {
  std::string micro = "batch.global=8", tensor = "train.seed=0";
  for (int i = 2; i <= 20; ++i) micro += "," + std::to_string(8 * i);
  for (int i = 1; i < 10; ++i) tensor += "," + std::to_string(i);
  MadeUp made({micro, tensor});
  const auto plots = plots_of(made.plan, made.run());
  EXPECT_NE(plots[0].svg.find("of 200 trials, these 150 have the most tokens/s per device"), std::string::npos);
  EXPECT_EQ(count_of(plots[0].svg, "text-anchor=\"end\">global "), kMostBars);
}

// Lines of both points and the ideal one; the trial that does not fit is a note.
TEST(SweepPlots, ScalingHasLinesBesideTheIdealOne) {
  MadeUp made({"parallel.sharding=FULL_SHARD,NO_SHARD"}, {1, 2, 16}, Scaling::kWeak);
  made.outcome = [](const config::Config&, const TrialRow& row, Outcome& o) {
    if (row.point[0] == "NO_SHARD" && row.size.nodes < 3) o = {}, o.kind = Outcome::Kind::kOutOfMemory;
  };
  const auto plots = plots_of(made.plan, made.run());
  ASSERT_EQ(plots.size(), 5U);
  const std::string& svg = plot_named(plots, "speed_up.svg");
  EXPECT_NE(svg.find(">weak scaling of custom on made-up, predicted<"), std::string::npos) << svg;
  EXPECT_EQ(count_of(svg, "<circle"), 4U);
  EXPECT_EQ(count_of(svg, "stroke-dasharray=\"5 4\""), 2U) << "the ideal line, and its name";
  EXPECT_NE(svg.find(">NO_SHARD: out of memory; nodes: 1, 2<"), std::string::npos);
  EXPECT_NE(svg.find(">16</text>"), std::string::npos);
  EXPECT_EQ(count_of(plot_named(plots, "mfu.svg"), "stroke-dasharray=\"5 4\""), 0U);
  plot_named(plots, "efficiency.svg");
}

// Notes leave the plot its room: eight lines, and the number of the others.
TEST(SweepPlots, ScalingNamesTheFirstFailuresAndCountsTheOthers) {
  std::string micro = "batch.micro=1";
  for (int i = 2; i <= 11; ++i) micro += "," + std::to_string(i);
  MadeUp made({micro}, {1, 2}, Scaling::kWeak);
  made.outcome = [](const config::Config& config, const TrialRow&, Outcome& o) {
    if (config.batch.micro != 1) o = {}, o.kind = Outcome::Kind::kOutOfMemory;
  };
  const std::string svg = plot_named(plots_of(made.plan, made.run()), "speed_up.svg");
  EXPECT_EQ(count_of(svg, "; nodes: 1, 2<"), 8U) << svg;
  EXPECT_EQ(count_of(svg, ">and 2 more such lines<"), 1U);
}

TEST(Plot, TicksAreRound) {
  std::vector<double> values;
  for (const auto& tick : round_ticks(47.0, 5)) values.push_back(tick.value);
  EXPECT_EQ(values, (std::vector<double>{0, 10, 20, 30, 40}));
  EXPECT_EQ(round_ticks(2e9, 4, 1e9).back().label, "2");
}

TEST(Plot, LogarithmicScaleIsEvenInRatios) {
  const PlotScale scale{1.0, 16.0, 100.0, 500.0, true};
  EXPECT_DOUBLE_EQ(scale.at(1.0), 100.0);
  EXPECT_DOUBLE_EQ(scale.at(4.0), 300.0);
  EXPECT_DOUBLE_EQ(scale.at(16.0), 500.0);
}

TEST(Plot, NamesAreMovedApart) {
  EXPECT_EQ(heights_apart({100, 98, 300, 97}, 15, 400), (std::vector<double>{100, 85, 300, 70}));
  EXPECT_EQ(heights_apart({500}, 15, 400), std::vector<double>{400});
}

TEST(Plot, ATickLabelWithoutRoomIsLeftOut) {
  PlotFrame frame;
  frame.x = {0.0, 1000.0, 0.0, 500.0, false}, frame.y = {0.0, 1.0, 400.0, 50.0, false};
  const std::string svg = axes_svg(frame, {{500, "500"}, {501, "501"}, {600, "600"}}, {}, "<x>", "y");
  EXPECT_EQ(count_of(svg, ">501<"), 0U);
  EXPECT_EQ(count_of(svg, ">600<"), 1U);
  EXPECT_NE(svg.find(">&lt;x&gt;<"), std::string::npos);
}

}  // namespace
}  // namespace molen::plan
