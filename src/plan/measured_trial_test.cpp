#include "plan/measured_trial.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "config/config.h"
#include "plan/memory_need.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/text/text.h"

namespace molen::plan {
namespace {

store::StepMetrics line_of_step(std::int64_t step, double seconds) {
  store::StepMetrics m;
  m.step = step, m.step_s = seconds, m.memory_peak_bytes = 1000 + step;
  m.mfu = 0.5 / seconds, m.j_per_token = 2.0 * seconds;
  return m;
}

// Two steps of warm-up and eleven measured ones: the median is the sixth, and the tenth and ninetieth percentiles are
// the second and the tenth, because ten intervals lie between eleven values.
TEST(MeasuredTrial, HasQuantilesOfTheStepsAfterTheWarmUp) {
  std::vector<store::StepMetrics> metrics{line_of_step(1, 100.0), line_of_step(2, 90.0)};
  for (const int s : {5, 1, 9, 3, 11, 7, 2, 10, 4, 8, 6}) metrics.push_back(line_of_step(2 + s, s));
  const Outcome o = outcome_of_metrics(metrics, 11, 64, 4);
  ASSERT_EQ(o.kind, Outcome::Kind::kStep);
  EXPECT_DOUBLE_EQ(o.figures.step_s, 6.0);
  EXPECT_DOUBLE_EQ(o.figures.low_s, 2.0);
  EXPECT_DOUBLE_EQ(o.figures.high_s, 10.0);
  EXPECT_DOUBLE_EQ(o.figures.tokens_per_s_per_device(), 64 / 6.0 / 4);
  EXPECT_DOUBLE_EQ(*o.figures.mfu, 0.5 / 6.0);
  EXPECT_DOUBLE_EQ(*o.figures.step_j, 2.0 * 6.0 * 64);
  EXPECT_EQ(*o.memory, Bytes(1013));
}

// Of two values in the middle the upper one is the median, as everywhere in molen; the percentiles lie around it.
TEST(MeasuredTrial, QuantilesAreMeasuredSteps) {
  const Outcome two = outcome_of_metrics({line_of_step(1, 3.0), line_of_step(2, 1.0)}, 2, 1, 1);
  EXPECT_DOUBLE_EQ(two.figures.step_s, 3.0);
  EXPECT_DOUBLE_EQ(two.figures.low_s, 1.0);
  EXPECT_DOUBLE_EQ(two.figures.high_s, 3.0);
  EXPECT_DOUBLE_EQ(*two.figures.step_j, 2.0 * 3.0) << "the same median for each figure";
  for (int steps = 1; steps <= 40; ++steps) {
    std::vector<store::StepMetrics> metrics;
    for (int i = 1; i <= steps; ++i) metrics.push_back(line_of_step(i, i));
    const StepFigures f = outcome_of_metrics(metrics, steps, 1, 1).figures;
    EXPECT_LE(f.low_s, f.step_s) << steps;
    EXPECT_LE(f.step_s, f.high_s) << steps;
    EXPECT_DOUBLE_EQ(f.low_s, 1 + (steps - 1) / 10) << "the first has no step before it";
    EXPECT_DOUBLE_EQ(f.high_s, steps - (steps - 1) / 10);
  }
}

TEST(MeasuredTrial, LacksAFigureThatSomeStepLacks) {
  std::vector<store::StepMetrics> metrics{line_of_step(1, 1.0), line_of_step(2, 1.0)};
  metrics[1].mfu.reset(), metrics[0].j_per_token.reset();
  const Outcome o = outcome_of_metrics(metrics, 2, 64, 1);
  EXPECT_FALSE(o.figures.mfu);
  EXPECT_FALSE(o.figures.step_j);
  EXPECT_TRUE(outcome_of_metrics(metrics, 1, 64, 1).figures.step_j) << "the step before is warm-up";
}

TEST(MeasuredTrial, TellsFailuresApart) {
  using Kind = Outcome::Kind;
  const Outcome memory = outcome_of_failure(
      2, fmt::format("# reading\nmolen: the step program needs 9 GiB of {} 2 GiB\n", kTooLittleMemory));
  EXPECT_EQ(memory.kind, Kind::kOutOfMemory);
  EXPECT_EQ(memory.why, fmt::format("the step program needs 9 GiB of {} 2 GiB", kTooLittleMemory));
  EXPECT_EQ(outcome_of_failure(1, "molen: CUDA out of memory. Tried ...").kind, Kind::kOutOfMemory);
  EXPECT_EQ(outcome_of_failure(137, "slurmstepd: error: Detected 1 oom_kill: Out Of Memory").kind, Kind::kOutOfMemory);
  const Outcome refused =
      outcome_of_failure(2, "molen: --set parallel.tensor: 3 does not divide\nmpirun: a rank ended\n");
  EXPECT_EQ(refused.kind, Kind::kRefused);
  EXPECT_EQ(refused.why, "--set parallel.tensor: 3 does not divide") << "the message of molen, not of its launcher";
  const Outcome failed = outcome_of_failure(139, "step 1\nSegmentation fault\n\n");
  EXPECT_EQ(failed.kind, Kind::kFailed);
  EXPECT_EQ(failed.why, "exit status 139: Segmentation fault");
  EXPECT_EQ(outcome_of_failure(137, "").why, "exit status 137");
}

TEST(MeasuredTrial, TellsWhenALauncherStartedAnotherSize) {
  MeasureOptions options;
  options.ranks = 2;
  EXPECT_EQ(other_size(options, 2, 2), "");
  EXPECT_EQ(other_size(options, 1, 1), "the launcher started 1 rank, not 2");
  options.ranks = 0;
  EXPECT_EQ(other_size(options, 3, 3), "") << "the launcher decides";
  options.nodes = 2;
  EXPECT_EQ(other_size(options, 8, 4), "");
  EXPECT_EQ(other_size(options, 7, 4), "") << "4 ranks on one node, and 3 on the other";
  EXPECT_EQ(other_size(options, 8, 8), "the launcher started 8 ranks on 1 node, not on 2");
}

// A folder with a program in the place of molen, which writes the records of a training that was made up.
class Trained : public testing::Test {
 protected:
  Trained() {
    std::string name = (fs::temp_directory_path() / "molen_trial_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    config_ = config::parse(
        "[model]\nfamily = \"llama\"\nlayers = 2\nhidden = 24\nffn = 40\nheads = 4\nvocabulary = 320\n"
        "[data]\nsequence_length = 16\n[batch]\nglobal = 4\n[train]\nuntil = \"40 steps\"\n[device]\nkind = \"cpu\"\n"
        "[checkpoint]\nevery = \"1 steps\"\n[run]\nname = \"other\"\n",
        "t.toml");
    config::Config c = config_;
    const auto arch = resolve_architecture(c);
    Machine machine;
    machine.ranks = machine.local_ranks = 2;
    machine.threads = 1;
    const auto p = program::build(arch, resolve_setting(c, arch, machine));
    write_file_atomic(folder_ / "program.txt", program::print(p, program::plan_memory(p)));
    write_file_atomic(folder_ / "environment.json", Json{{"cpu", "a processor"},
                                                         {"device", "cuda"},
                                                         {"gpu", "a device"},
                                                         {"local_ranks", 2},
                                                         {"molen", "1.2"},
                                                         {"git", "abc"}}
                                                        .dump());
    options_.steps = 3, options_.ranks = 2;
    options_.folder = folder_ / "runs/trial-1", options_.molen = folder_ / "molen.sh";
  }
  ~Trained() override { remove_tree(folder_); }

  // Lets the program write so many lines of metrics and end with a status.
  void trains(int lines, int status = 0, const std::string& says = "") {
    std::string metrics;
    for (int i = 1; i <= lines; ++i) metrics += store::to_line(line_of_step(i, i)) + "\n";
    write_file_atomic(folder_ / "metrics.jsonl", metrics);
    write_file_atomic(folder_ / "molen.sh",
                      fmt::format("#!/bin/sh\necho \"$@\" > {0}/words\nmkdir -p {0}/runs/trial-1/checkpoints/step-5\n"
                                  "cp {0}/*.json* {0}/program.txt {0}/runs/trial-1/\necho '{1}' >&2\nexit {2}\n",
                                  folder_.string(), says, status));
    fs::permissions(folder_ / "molen.sh", fs::perms::owner_all);
  }
  config::Config written() const { return config::load(folder_ / "runs/trial-1.toml"); }

  fs::path folder_;
  config::Config config_;
  MeasureOptions options_;
};

TEST_F(Trained, IsMeasuredFromItsRecords) {
  trains(5);
  const Outcome o = measure(config_, options_);
  ASSERT_EQ(o.kind, Outcome::Kind::kStep) << o.why;
  EXPECT_DOUBLE_EQ(o.figures.step_s, 4.0) << "the median of steps 3 to 5";
  EXPECT_EQ(o.figures.tokens, 4 * 16);
  EXPECT_EQ(o.figures.ranks, 2);
  EXPECT_EQ(o.figures.layout.substr(0, 8), "NO_SHARD");
  EXPECT_EQ(o.machine, (TrialMachine{"a processor", "a device", "1.2 (abc)"}));
  EXPECT_FALSE(fs::exists(folder_ / "runs/trial-1/checkpoints"));
  EXPECT_TRUE(fs::exists(folder_ / "runs/trial-1/metrics.jsonl"));
  EXPECT_EQ(read_file(folder_ / "words"),
            fmt::format("train {}/runs/trial-1.toml --resume never --ranks 2\n", folder_.string()));
}

TEST_F(Trained, TrainsForItsStepsInItsFolder) {
  trains(5);
  measure(config_, options_);
  const config::Config c = written();
  EXPECT_EQ(c.train.stop_after, config::steps(3 + kWarmupSteps));
  EXPECT_EQ(c.train.until, config::steps(40)) << "the schedule is the one of the configuration";
  EXPECT_EQ(c.checkpoint.every, config::steps(4 + kWarmupSteps)) << "no checkpoint before the end";
  EXPECT_EQ(c.run.dir, (folder_ / "runs").string());
  EXPECT_EQ(c.run.name, "trial-1");
  EXPECT_EQ(c.origins.count("math.kernels"), 0U) << "a default that gives way to fp64, where a set value does not";
  for (const std::string_view until : {"4 steps", "100 tokens"}) {  // 2 steps of 64 tokens: shorter than a trial
    config::Config shorter = config_;
    config::assign(shorter, "train.until", until, {});
    EXPECT_EQ(training_of(shorter, options_).train.until, config::steps(3 + kWarmupSteps)) << until;
  }
}

TEST_F(Trained, IsStartedByItsLauncher) {
  trains(5);
  options_.launch.emplace("env TRIAL=1");
  ASSERT_EQ(measure(config_, options_).kind, Outcome::Kind::kStep);
  EXPECT_EQ(read_file(folder_ / "words").find("--ranks"), std::string::npos) << "the launcher starts the ranks";
  options_.launch.emplace("no-such-launcher");
  const Outcome o = measure(config_, options_);
  EXPECT_EQ(o.kind, Outcome::Kind::kFailed);
  EXPECT_EQ(o.why, "exit status 127: no-such-launcher: no such program");
}

// A variable of the batch system would win over the policy that the trial is to have.
TEST_F(Trained, DoesNotTakeVariablesOfTheBatchSystem) {
  trains(5);
  const std::string script = read_file(folder_ / "molen.sh");
  write_file_atomic(folder_ / "molen.sh",
                    fmt::format("#!/bin/sh\nenv | grep -c ^MOLEN_ENERGY_ > {}/seen\n{}", folder_.string(), script));
  fs::permissions(folder_ / "molen.sh", fs::perms::owner_all);
  ::setenv("MOLEN_ENERGY_POLICY", "sweep", 1);
  Outcome o = measure(config_, options_);
  ::unsetenv("MOLEN_ENERGY_POLICY");
  ASSERT_EQ(o.kind, Outcome::Kind::kStep) << o.why;
  EXPECT_EQ(read_file(folder_ / "seen"), "0\n");
  // The launcher sets them, as srun does with the option of its job.
  options_.launch.emplace("env MOLEN_ENERGY_POLICY=sweep MOLEN_ENERGY_SLOWDOWN=0.5 'MOLEN_ENERGY_POWER_BUDGET=1 kW'");
  fs::remove(folder_ / "seen");
  measure(config_, options_);
  EXPECT_EQ(read_file(folder_ / "seen"), "0\n");
}

TEST_F(Trained, FailsOnOtherRanksThanAsked) {
  trains(5);
  options_.launch.emplace("env");
  options_.ranks = 3;
  const Outcome o = measure(config_, options_);
  EXPECT_EQ(o.kind, Outcome::Kind::kFailed);
  EXPECT_EQ(o.why, "the launcher started 2 ranks, not 3");
  options_.ranks = 0;
  EXPECT_EQ(measure(config_, options_).kind, Outcome::Kind::kStep) << "the launcher decides";
}

// The training reads a file that the user never saw; its messages are to name what the user wrote.
TEST_F(Trained, MessagesNameTheUsersFileAndOptions) {
  config::assign(config_, "batch.micro", 2, {config::Origin::Kind::kSet, "--set"});
  trains(5);
  measure(config_, options_);
  const std::string file = (folder_ / "runs/trial-1.toml").string(), text = read_file(file);
  const auto line_of_key = [&](const std::string& key) {
    return std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find(key + " = ")), '\n') + 1;
  };
  const auto line_of_heads = line_of_key("model.heads"), line_of_micro = line_of_key("batch.micro");
  trains(0, 2,
         fmt::format("molen: {0}:{1}: model.heads: 4 is odd, {0}:{2}: batch.micro: 2 is too, see {0}:{1}", file,
                     line_of_heads, line_of_micro));
  EXPECT_EQ(measure(config_, options_).why,
            "t.toml:6: model.heads: 4 is odd, --set batch.micro: 2 is too, see t.toml:6: model.heads");
}

// A signal that would end this process ends the training first: nothing goes on without the sweep.
TEST_F(Trained, ASignalEndsTheTrainingToo) {
  write_file_atomic(folder_ / "molen.sh",
                    fmt::format("#!/bin/sh\ntrap 'sleep 0.2; echo saved > {0}/ended; exit 0' TERM\necho > {0}/begun\n"
                                "while :; do sleep 0.02; done\n",
                                folder_.string()));
  fs::permissions(folder_ / "molen.sh", fs::perms::owner_all);
  std::jthread signals([&] {
    while (!fs::exists(folder_ / "begun")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(::getpid(), SIGTERM);
  });
  try {
    measure(config_, options_);
    ADD_FAILURE() << "the sweep would go on";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(::strsignal(SIGTERM)), std::string::npos) << error.what();
  }
  EXPECT_EQ(read_file(folder_ / "ended"), "saved\n") << "the training ended by itself, and was waited for";
  struct sigaction now {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_DFL) << "between trials a signal ends the sweep itself";
}

// A launcher that starts the training and does not end it.
TEST_F(Trained, TimeLimitIsAFailureWithTheEndOfTheLog) {
  write_file_atomic(folder_ / "molen.sh", fmt::format("#!/bin/sh\necho $$ > {}/training\nfor i in $(seq 100); do echo "
                                                      "line $i; done\necho\nsleep 60\n",
                                                      folder_.string()));
  fs::permissions(folder_ / "molen.sh", fs::perms::owner_all);
  options_.launch.emplace("sh -c '\"$@\" & wait' sh");
  options_.limit = Seconds(3.0), options_.grace = Seconds(5.0);
  const Outcome o = measure(config_, options_);
  EXPECT_EQ(o.kind, Outcome::Kind::kFailed);
  EXPECT_EQ(o.why, "it did not end within its time limit, 3.00 s");
  ASSERT_EQ(o.log.size(), kLogLines);
  EXPECT_EQ(o.log.back(), "line 100");
  EXPECT_EQ(read_file(folder_ / "runs/trial-1.log").substr(0, 7), "line 1\n");
  EXPECT_NE(::kill(std::stoi(read_file(folder_ / "training")), 0), 0) << "the training goes on";
  trains(5);
  EXPECT_EQ(measure(config_, options_).kind, Outcome::Kind::kStep) << "a training that ends earlier";
}

TEST(MeasuredTrial, LastLinesAreTextForATerminal) {
  EXPECT_EQ(last_lines("\n a \n\n\tb\x1b[1m\xff\nc"), (std::vector<std::string>{"a", "b\\x1b[1m\\xff", "c"}));
  EXPECT_EQ(last_lines(std::string(5000, 'x')), (std::vector<std::string>{std::string(kLogLineChars, 'x')}));
  EXPECT_TRUE(last_lines("").empty());
}

// The launcher's places have the values of the trial.
TEST_F(Trained, FillsTheLaunchersPlaces) {
  trains(5);
  options_.launch.emplace(
      fmt::format("{}/launch.sh {{ranks}} {{nodes}} {{first_node}} {{config}} {{run}}", folder_.string()));
  write_file_atomic(folder_ / "launch.sh", fmt::format("#!/bin/sh\necho \"$1 $2 $3 $4 $5\" > {}/places\nshift 5\nexec "
                                                       "\"$@\"\n",
                                                       folder_.string()));
  fs::permissions(folder_ / "launch.sh", fs::perms::owner_all);
  options_.nodes = 1, options_.first_node = 3;
  ASSERT_EQ(measure(config_, options_).kind, Outcome::Kind::kStep);
  const std::string run = (folder_ / "runs/trial-1").string();
  EXPECT_EQ(read_file(folder_ / "places"), fmt::format("2 1 3 {0}.toml {0}\n", run));
}

TEST_F(Trained, FailsWithAReason) {
  trains(4);  // a signal ends a training with status 0
  EXPECT_EQ(measure(config_, options_).why, "the training ended after 4 of 5 steps");
  trains(0, 2, "molen: parallel.tensor: 3 does not divide");
  const Outcome o = measure(config_, options_);
  EXPECT_EQ(o.kind, Outcome::Kind::kRefused);
  EXPECT_EQ(o.why, "parallel.tensor: 3 does not divide");
  EXPECT_EQ(o.log, (std::vector<std::string>{"molen: parallel.tensor: 3 does not divide"}));
}

}  // namespace
}  // namespace molen::plan
