#include "tune/search.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "tune/journal.h"
#include "tune/plots.h"
#include "tune/sensitivity.h"

namespace molen::tune {
namespace {

using Kind = plan::Outcome::Kind;

SearchPlan planned(int trials = 30) {
  SearchPlan plan{.space = parse_space({"parallel.tensor=1,2,4,8", "batch.micro=1..16", "gas=1,2,4", "nodes=1,2"}),
                  .base = {},
                  .job = {.ranks = 8, .of_node = 8}};
  plan.trials = trials, plan.seed = 3;
  return plan;
}

// A made-up step: faster with more sequences, slower with more tensor ranks, and too large above a size.
plan::Outcome made_up(const config::Config& c, int ranks) {
  plan::Outcome o;
  o.memory = Bytes(200 * c.batch.micro / c.parallel.tensor), o.room = Bytes(1000);
  if (o.memory > Bytes(1000)) {
    o.kind = Kind::kOutOfMemory, o.why = "too large";
    return o;
  }
  o.kind = Kind::kStep;
  o.figures.tokens = c.batch.global * 100, o.figures.ranks = ranks, o.figures.layout = "made up";
  const double micro = static_cast<double>(c.batch.micro), tensor = static_cast<double>(c.parallel.tensor);
  o.figures.step_s = static_cast<double>(o.figures.tokens) / ranks / (1000 * micro / (micro + 2) / (1 + 0.1 * tensor));
  o.figures.low_s = 0.9 * o.figures.step_s, o.figures.high_s = 1.1 * o.figures.step_s;
  o.figures.step_j = 500.0 * ranks * o.figures.step_s;
  return o;
}

TEST(Search, TheLoadOfATrialIsItsShareOfTheRoom) {
  const SearchPlan plan{.space = parse_space({"batch.micro=1,2"}), .base = {}, .job = {}};
  Trial trial;
  trial.point = {0};
  trial.outcome.memory = Bytes(1100);
  EXPECT_FALSE(observation_of(trial, plan).load) << "no room is known";
  trial.outcome.room = Bytes(1000);
  EXPECT_DOUBLE_EQ(observation_of(trial, plan).load.value(), 1.1);
}

SearchCalls made_up_calls() {
  return {.attempt = [](const config::Config& c, int ranks, int) { return made_up(c, ranks); }};
}

std::vector<Point> points_of(const std::vector<Trial>& trials) {
  std::vector<Point> points;
  for (const Trial& t : trials) points.push_back(t.point);
  return points;
}

TEST(Search, FiguresDoNotDependOnTheSizeOfAStep) {
  plan::StepFigures one, two;
  one.step_s = 2.0, one.tokens = 1000, one.ranks = 4, one.step_j = 50.0;
  two.step_s = 4.0, two.tokens = 2000, two.ranks = 4, two.step_j = 100.0;
  for (const Objective o : {Objective::kThroughput, Objective::kTime, Objective::kEnergy})
    EXPECT_DOUBLE_EQ(figure_of(o, one), figure_of(o, two)) << name_of(o);
  EXPECT_DOUBLE_EQ(figure_of(Objective::kThroughput, one), 125.0);
  EXPECT_DOUBLE_EQ(figure_of(Objective::kTime, one), 2000.0);
  EXPECT_DOUBLE_EQ(figure_of(Objective::kEnergy, one), 0.05);
  // At the noise scale a batch needs twice the tokens; in batches that are small beside it none is needed in addition.
  EXPECT_DOUBLE_EQ(figure_of(Objective::kLoss, one, 1000.0), 2.0 * 2000.0);
  EXPECT_DOUBLE_EQ(figure_of(Objective::kLoss, two, 1000.0), 3.0 * 2000.0);
  EXPECT_NEAR(figure_of(Objective::kLoss, one, 1e12), 2000.0, 1e-5);
  one.step_j.reset();
  EXPECT_THROW(figure_of(Objective::kEnergy, one), UsageError);
  for (const Objective o : {Objective::kThroughput, Objective::kTime, Objective::kEnergy, Objective::kLoss})
    EXPECT_EQ(objective_from_name(std::string(name_of(o))), o);
  EXPECT_THROW(objective_from_name("thruput"), UsageError);
}

TEST(Search, FindsTheBestOfEachObjective) {
  for (const Objective objective : {Objective::kThroughput, Objective::kTime, Objective::kEnergy}) {
    SearchPlan plan = planned(48);
    plan.objective = objective;
    double best = 0.0;
    for (std::int64_t i = 0; i < plan.space.points(); ++i) {
      const auto choice = plan.space.choice(plan.space.point_of(i), plan.base, plan.job);
      if (!choice) continue;
      const Trial all{.number = 1,
                      .point = plan.space.point_of(i),
                      .outcome = made_up(choice.value().config, choice.value().ranks)};
      best = std::max(best, observation_of(all, plan).value.value_or(0.0));
    }
    const auto found = ranked(run_search(plan, made_up_calls(), {}), objective);
    ASSERT_FALSE(found.empty());
    EXPECT_DOUBLE_EQ(*observation_of(found.front(), plan).value, best) << name_of(objective) << ": 48 of 384 points";
    for (std::size_t i = 1; i < found.size(); ++i)
      EXPECT_GE(*observation_of(found[i - 1], plan).value, *observation_of(found[i], plan).value);
  }
}

// Whatever was recorded when a search was cut off, it goes on to the same trials.
TEST(Search, EqualTrialsKeepTheirOrder) {
  std::vector<Trial> trials;
  for (const int number : {1, 2, 3, 4}) {
    Trial t{.number = number, .point = {}, .outcome = {}};
    t.outcome.kind = Kind::kStep;
    t.outcome.figures.tokens = 1000, t.outcome.figures.ranks = 1;
    t.outcome.figures.step_s = number == 2 ? 1.0 : 2.0, t.outcome.figures.step_j = t.outcome.figures.step_s;
    trials.push_back(std::move(t));
  }
  for (const Objective objective : {Objective::kThroughput, Objective::kTime, Objective::kEnergy}) {
    std::vector<int> numbers;
    for (const Trial& t : ranked(trials, objective)) numbers.push_back(t.number);
    EXPECT_EQ(numbers, (std::vector{2, 1, 3, 4})) << name_of(objective);
  }
  // Twice the tokens in less than twice the time: more tokens a second, but not sooner at the loss.
  trials[1].outcome.figures.tokens = 2000, trials[1].outcome.figures.step_s = 3.0;
  EXPECT_EQ(ranked(trials, Objective::kTime).front().number, 2);
  EXPECT_EQ(ranked(trials, Objective::kLoss, 1000.0).front().number, 1);
  EXPECT_EQ(ranked(trials, Objective::kLoss, 1e6).front().number, 2);
}

TEST(Search, GoesOnAsIfItHadNotBeenCutOff) {
  const SearchPlan plan = planned(24);
  const auto whole = run_search(plan, made_up_calls(), {});
  ASSERT_EQ(whole.size(), 24U);
  for (const std::set<int>& lost : {std::set<int>{24}, {14, 15, 17, 18, 19, 20, 21, 22, 23, 24}, {1}, {6, 8}}) {
    std::map<int, Trial> kept;
    for (Trial t : whole)
      if (!lost.contains(t.number)) t.kept = true, kept[t.number] = t;
    std::atomic<int> ran = 0;
    SearchCalls calls = made_up_calls();
    calls.end = [&](const Trial& t) { ran += lost.contains(t.number) ? 1 : 100; };
    EXPECT_EQ(points_of(run_search(plan, calls, kept)), points_of(whole));
    EXPECT_EQ(ran, static_cast<int>(lost.size())) << "only what was lost runs again";
  }
  EXPECT_EQ(points_of(run_search(planned(22), made_up_calls(), {})),
            points_of(std::vector(whole.begin(), whole.begin() + 22)))
      << "fewer trials are the first of more";
}

TEST(Search, TrialsOfABatchRunTogether) {
  SearchPlan plan = planned(16);
  plan.parallel = plan.concurrent = 4;
  std::atomic<int> running = 0, most = 0;
  SearchCalls calls;
  calls.attempt = [&](const config::Config& c, int ranks, int) {
    // Each trial waits for a second one, or for two seconds, so trials that run one by one fail the test.
    int now = ++running;
    for (int i = 0; i < 2000 && most < 2; ++i) {
      now = running;
      most = std::max<int>(most, now);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    --running;
    return made_up(c, ranks);
  };
  const auto together = run_search(plan, calls, {});
  EXPECT_GE(most, 2);
  plan.concurrent = 1;
  EXPECT_EQ(points_of(together), points_of(run_search(plan, made_up_calls(), {})));
}

TEST(Search, AnErrorOfATrialEndsTheSearch) {
  SearchPlan plan = planned(16);
  plan.concurrent = 2;
  SearchCalls calls = made_up_calls();
  std::atomic<int> ran = 0;
  calls.attempt = [&](const config::Config& c, int ranks, int number) {
    ++ran;
    if (number == 6) throw IoError(28, "the disk is full");
    return made_up(c, ranks);
  };
  EXPECT_THROW(run_search(plan, calls, {}), IoError);
  EXPECT_LE(ran, 8) << "no later batch begins";
}

TEST(Search, ASpaceThatIsUsedUpEndsEarly) {
  SearchPlan plan = planned(60);
  plan.space = parse_space({"parallel.tensor=1,2", "batch.micro=1..4"});
  EXPECT_EQ(run_search(plan, made_up_calls(), {}).size(), 8U);
}

TEST(Search, APointThatContradictsItselfIsRefused) {
  SearchPlan plan = planned(8);
  plan.space = parse_space({"batch.micro=3,4", "batch.global=8,9"});
  const auto trials = run_search(plan, made_up_calls(), {});
  ASSERT_EQ(trials.size(), 4U);
  EXPECT_EQ(std::ranges::count(trials, Kind::kRefused, [](const Trial& t) { return t.outcome.kind; }), 2)
      << "8 is no multiple of 3, and 9 none of 4";
}

class JournalOfSearch : public ::testing::Test {
 protected:
  JournalOfSearch() {
    std::string name = (fs::path(::testing::TempDir()) / "molen-tune-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~JournalOfSearch() override { remove_tree(folder_); }

  fs::path folder_;
  SearchPlan plan_ = planned(9);
  Conditions conditions_{"frontier", "description"};
  fs::path file() const { return folder_ / "tune.jsonl"; }

  std::vector<Trial> search() {
    Journal journal(folder_, plan_, conditions_);
    SearchCalls calls;
    calls.attempt = [](const config::Config& config, int ranks, int number) {
      plan::Outcome outcome = made_up(config, ranks);
      if (number != 2) outcome.log = {fmt::format("trial {} says", number), "its last lines"};
      return outcome;
    };
    calls.end = [&](const Trial& t) { journal.append(t); };
    return run_search(plan_, calls, journal.kept());
  }
  std::string refusal() {
    try {
      Journal journal(folder_, plan_, conditions_);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(JournalOfSearch, KeepsWhatATrialHad) {
  const auto trials = search();
  const Journal journal(folder_, plan_, conditions_);
  ASSERT_EQ(journal.kept().size(), 9U);
  for (const Trial& t : trials) {
    const Trial& kept = journal.kept().at(t.number);
    EXPECT_EQ(to_json(kept, plan_), to_json(t, plan_)) << "every figure survives, bit for bit";
    EXPECT_EQ(kept.outcome.log, t.outcome.log);
    EXPECT_EQ(kept.outcome.log.size(), t.number == 2 ? 0U : 2U);
    EXPECT_TRUE(kept.kept);
  }
  EXPECT_TRUE(std::ranges::any_of(trials, [](const Trial& t) { return !t.has_step(); }));
  EXPECT_TRUE(std::ranges::any_of(trials, [](const Trial& t) { return t.has_step(); }));
}

// Both would propose the same trials, and the journal would then have each twice.
TEST_F(JournalOfSearch, ASecondSearchIsRefused) {
  auto first = std::make_unique<Journal>(folder_, plan_, conditions_);
  try {
    const Journal second(folder_, plan_, conditions_);
    ADD_FAILURE() << "two searches write in one folder";
  } catch (const store::LeaseHeld& held) {
    const std::string said = held.what();
    EXPECT_NE(said.find(folder_.string()), std::string::npos) << said;
    EXPECT_NE(said.find(store::Owner::self().text()), std::string::npos) << said;
    EXPECT_NE(said.find("another folder (--output)"), std::string::npos) << said;
  }
  first.reset();
  EXPECT_EQ(Journal(folder_, plan_, conditions_).kept().size(), 0U);
}

TEST_F(JournalOfSearch, ASearchThatWasOvertakenWritesNothing) {
  const auto trials = search();
  Journal journal(folder_, plan_, conditions_);
  const std::string before = read_file(file());
  std::set<int> taken;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    int number = 0;
    if (std::sscanf(entry.path().filename().c_str(), "lease-%d.json", &number) == 1) taken.insert(number);
  }
  ASSERT_FALSE(taken.empty());
  write_file_atomic(folder_ / fmt::format("lease-{:09}.json", *taken.rbegin() + 1), "{}");
  EXPECT_THROW(journal.append(trials.front()), store::LeaseHeld);
  EXPECT_EQ(read_file(file()), before);
}

TEST_F(JournalOfSearch, ALineThatWasCutShortRunsAgain) {
  const auto trials = search();
  const std::string whole = read_file(file());
  write_file_atomic(file(), whole.substr(0, whole.size() - 20));
  EXPECT_EQ(Journal(folder_, plan_, conditions_).kept().size(), 8U);
  EXPECT_EQ(points_of(search()), points_of(trials));
  EXPECT_EQ(Journal(folder_, plan_, conditions_).kept().size(), 9U);
}

TEST_F(JournalOfSearch, OfAnotherSearchIsRefusedByWhatDiffers) {
  search();
  const SearchPlan before = plan_;
  EXPECT_EQ(refusal(), "");
  plan_.trials = 20, plan_.parallel = 2;
  EXPECT_EQ(refusal(), "") << "a search may go on for longer, and with other batches";
  const auto expect = [&](const std::string& what) {
    EXPECT_NE(refusal().find(what), std::string::npos) << refusal();
    plan_ = before;
  };
  plan_.base.parallel.pipeline = 2;
  expect("parallel.pipeline = 1 there and 2 here");
  plan_.seed = 4;
  expect("seed = 3 there and 4 here");
  plan_.objective = Objective::kEnergy;
  expect("objective = \"throughput\" there");
  plan_.space = parse_space({"batch.micro=1..16"});
  expect("ranks");
  plan_.space = parse_space({"batch.micro=1..16", "nodes=1,2"});
  expect("space");
  conditions_.text = "another description";
  expect("description of the cluster");
  conditions_ = {"lumi-g", "description"};
  expect("cluster = \"frontier\" there and \"lumi-g\" here");
  write_file_atomic(file(), "{\"format\": \"other\"}\n");
  EXPECT_NE(refusal().find("no journal"), std::string::npos) << refusal();
}

TEST_F(JournalOfSearch, DamagedLinesAreRefusedWithTheirPlace) {
  search();
  const std::string whole = read_file(file());
  const auto with = [&](const std::string& line) {
    write_file_atomic(file(), whole + line + "\n");
    return refusal();
  };
  const std::string keys = R"("keys": {"parallel.tensor": 8, "batch.micro": 16, "gas": 4, "nodes": 2})";
  EXPECT_NE(with("[]").find("tune.jsonl:11"), std::string::npos);
  EXPECT_NE(with("{\"trial\": 0, " + keys + "}").find("trial 0"), std::string::npos);
  EXPECT_NE(with("{\"trial\": 10, " + keys + ", \"outcome\": \"lost\"}").find("'lost'"), std::string::npos);
  EXPECT_NE(with("{\"trial\": 10, " + keys + ", \"outcome\": \"step\"}").find("step_s"), std::string::npos);
  EXPECT_NE(with(whole.substr(whole.rfind("{\"trial\""))).find("twice"), std::string::npos);
}

// f = 3 a + b with levels a of 4 and b of 2, and a product term that has a mean of 0 over either.
TEST(Sensitivity, OfAKnownFunction) {
  const Space space = parse_space({"parallel.tensor=1,2,4,8", "gas=1,2", "data.seed=0..1000"});
  const auto f = [](double product) {
    return [product](const std::vector<Point>& points) {
      Eigen::VectorXd values(static_cast<Eigen::Index>(points.size()));
      for (std::size_t i = 0; i < points.size(); ++i) {
        const double a = static_cast<double>(points[i][0]) - 1.5, b = static_cast<double>(points[i][1]) - 0.5;
        values[static_cast<Eigen::Index>(i)] = 3 * a + b + product * a * b;
      }
      return values;
    };
  };
  // The variances of a and b are 5/4 and 1/4.
  const double a = 9 * 1.25, b = 0.25, all = a + b, product = 4 * 1.25 * 0.25;
  const auto plain = first_order_indices(space, 1, f(0.0)), joint = first_order_indices(space, 1, f(2.0));
  ASSERT_EQ(plain.size(), 3U);
  EXPECT_NEAR(plain[0], a / all, 1e-12);
  EXPECT_NEAR(plain[1], b / all, 1e-12);
  EXPECT_NEAR(plain[2], 0.0, 1e-12);
  EXPECT_NEAR(joint[0], a / (all + product), 1e-12);
  // A space that is too large for its sum: 1024 points tell a variance to sqrt(2 / 1024) of itself, 4.4 %.
  const Space large = parse_space({"parallel.tensor=1,2,4,8", "gas=1,2", "data.seed=0..9999"});
  const auto sampled = first_order_indices(large, 1, f(0.0));
  EXPECT_NEAR(sampled[0], a / all, 4 * 0.044 * a / all);
  EXPECT_NEAR(sampled[1], b / all, 4 * 0.044 * b / all);
  EXPECT_NEAR(sampled[2], 0.0, 1e-12);
}

TEST(Sensitivity, OfASearchNamesTheKeyThatMatters) {
  const SearchPlan plan = planned(40);
  std::vector<Observation> seen;
  for (const Trial& t : run_search(plan, made_up_calls(), {})) seen.push_back(observation_of(t, plan));
  const Sensitivity s = sensitivity_of(Models(plan.space, seen, plan.seed), plan.space, plan.seed);
  ASSERT_EQ(s.load.size(), 4U) << "memory was exceeded";
  EXPECT_TRUE(s.success.empty()) << "nothing else failed";
  // Memory is 200 micro / tensor: its logarithm is a sum of both keys, and the others have no effect.
  EXPECT_GT(s.load[0] + s.load[1], 0.9);
  EXPECT_LT(s.load[2] + s.load[3], 0.02);
  EXPECT_GT(s.value[0] + s.value[1], 0.8);
}

TEST(Plots, ShowEachTrialAndEachKey) {
  SearchPlan plan = planned(20);
  const auto trials = run_search(plan, made_up_calls(), {});
  const std::string path = trajectory_svg(trials, plan.objective, "a < b");
  const auto count = [](const std::string& text, const std::string& of) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(of, at)) != std::string::npos; at += of.size()) ++n;
    return n;
  };
  const auto steps = static_cast<std::size_t>(std::ranges::count_if(trials, &Trial::has_step));
  EXPECT_EQ(count(path, "<circle"), steps + 1) << "one is the legend's";
  EXPECT_EQ(count(path, "M-4 -4L4 4"), 20 - steps + 1);
  EXPECT_NE(path.find("a &lt; b"), std::string::npos);
  EXPECT_NE(path.find("tokens/s per device"), std::string::npos);
  EXPECT_NE(path.find(fmt::format("out of memory ({})", 20 - steps)), std::string::npos);
  EXPECT_EQ(path.find("(0)"), std::string::npos) << "the legend names what there is";
  const Sensitivity s{{0.1, 0.2, 0.3, 0.4}, {}, {0.4, 0.3, 0.2, 0.1}};
  const std::string bars = sensitivity_svg(s, plan.space, plan.objective, "impact");
  for (const char* text : {"log throughput", "success or failure", "parallel.tensor", "batch.micro", "gas", "nodes"})
    EXPECT_NE(bars.find(text), std::string::npos) << text;
  EXPECT_LT(bars.find(">nodes<"), bars.find(">parallel.tensor<")) << "the largest first";
}

// The objective that the verb has: predictions on a description. The best of the whole space is found.
TEST(Search, OfPredictedTrials) {
  const auto on = cluster::find("dgx-h100");
  SearchPlan plan{
      .space = parse_space({"parallel.tensor=1,2,4", "batch.micro=1,2,4", "parallel.zero=0,1"}),
      .base = config::parse("[model]\npreset = \"llama3-8b\"\n[data]\nsequence_length = 4096\n[batch]\nglobal = 32\n",
                            "t.toml"),
      .job = {.ranks = 8, .of_node = 8}};
  plan.trials = 12;
  int calls = 0;
  const Attempt predict = [&](const config::Config& c, int ranks, int) {
    ++calls;
    return plan::predict(c, on, plan::machine_on(on, ranks));
  };
  double best = 0.0;
  for (std::int64_t i = 0; i < plan.space.points(); ++i) {
    const auto choice = plan.space.choice(plan.space.point_of(i), plan.base, plan.job);
    ASSERT_TRUE(choice);
    const auto o = predict(choice.value().config, choice.value().ranks, 0);
    if (o.kind == Kind::kStep) best = std::max(best, o.figures.tokens_per_s_per_device());
  }
  const auto found = ranked(run_search(plan, {.attempt = predict}, {}), plan.objective);
  EXPECT_EQ(calls, 18 + 12);
  ASSERT_FALSE(found.empty());
  EXPECT_DOUBLE_EQ(found.front().outcome.figures.tokens_per_s_per_device(), best);
}

}  // namespace
}  // namespace molen::tune
