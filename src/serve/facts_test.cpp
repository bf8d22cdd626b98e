#include "serve/facts.h"

#include <gtest/gtest.h>

#include <cmath>

namespace molen::serve {
namespace {

Json event(const char* text) {
  return parse_json(text, "event");
}

std::vector<std::pair<std::string, std::string>> texts(const RunData& run) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Figure& f : figures_of(run)) all.emplace_back(f.name, f.text);
  return all;
}

TEST(Facts, FiguresOfNoSteps) {
  for (const Figure& f : figures_of({})) {
    EXPECT_EQ(f.text, "-") << f.name;
    EXPECT_EQ(f.value, std::nullopt) << f.name;
  }
}

TEST(Facts, FiguresOfARun) {
  RunData run;
  for (int i = 1; i <= 3; ++i) {
    store::StepMetrics m;
    m.step = 10 * i;
    m.tokens_total = 2000 * i;
    m.loss = 5.0 - i;
    m.step_s = 0.25 * i;
    m.tokens_per_s = 1000.0 * i;
    m.mfu = 0.1 * i;
    m.j_per_token = 0.01 * i;
    m.memory_peak_bytes = i == 2 ? 3 << 20 : 1 << 20;
    run.metrics.steps.push_back(m);
  }
  run.validations = {{10, 4.5, {}}, {20, 3.25, {}}};
  EXPECT_EQ(texts(run), (std::vector<std::pair<std::string, std::string>>{{"steps", "30"},
                                                                          {"tokens", "6.00 k"},
                                                                          {"last loss", "2.0000"},
                                                                          {"held-out loss", "3.2500"},
                                                                          {"step, median", "500.0 ms"},
                                                                          {"tokens/s, median", "2.00 k"},
                                                                          {"MFU, median", "20.0%"},
                                                                          {"memory peak of a rank", "3.00 MiB"},
                                                                          {"J/token, median", "0.02"}}));
  const auto figures = figures_of(run);
  const std::vector<double> values{30, 6000, 2, 3.25, 0.5, 2000, 0.2, 3 << 20, 0.02};
  ASSERT_EQ(figures.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_DOUBLE_EQ(figures[i].value.value(), values[i]) << figures[i].name;
}

TEST(Facts, Medians) {
  const double inf = HUGE_VAL, nan = std::nan("");
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 3) << "of two in the middle, the greater";
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({nan, 5, inf, -inf, 4, 6}), 5);
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_TRUE(std::isnan(median({nan})));
}

// Steps count as events do. A record without a valid time does not count.
TEST(Facts, DatesOfEventsAndSteps) {
  RunData run;
  EXPECT_TRUE(std::isnan(dates_of(run).first));
  EXPECT_TRUE(std::isnan(dates_of(run).last));
  EXPECT_EQ(dates_of(run).starts, 0);
  run.events = {event(R"({"event":"start","wall_time_s":100})"),
                event(R"({"event":"resume","wall_time_s":300})"),
                event(R"({"event":"stop","wall_time_s":200})"),
                event(R"({"event":"stop","wall_time_s":0})"),
                event(R"({"event":"stop","wall_time_s":-5})"),
                event(R"({"event":"stop","wall_time_s":2.1e11})"),
                event(R"({"event":"stop"})")};
  EXPECT_EQ(dates_of(run).first, 100);
  EXPECT_EQ(dates_of(run).last, 300);
  EXPECT_EQ(dates_of(run).starts, 2);
  for (const double wall : {50.0, 400.0}) {
    store::StepMetrics m;
    m.wall_time_s = wall;
    run.metrics.steps.push_back(m);
  }
  EXPECT_EQ(dates_of(run).first, 50);
  EXPECT_EQ(dates_of(run).last, 400);
}

TEST(Facts, ModelsInOneLine) {
  RunData run;
  EXPECT_EQ(model_of(run), "");
  run.values = {{"model.layers", "8"},           {"model.hidden", "512"}, {"model.heads", "4"},
                {"data.sequence_length", "128"}, {"batch.global", "16"},  {"precision.compute", "bf16"}};
  EXPECT_EQ(model_of(run), "layers 8, hidden 512, heads 4, sequence 128, batch 16, bf16");
  run.values["model.family"] = "gpt";
  EXPECT_EQ(model_of(run), "gpt, layers 8, hidden 512, heads 4, sequence 128, batch 16, bf16");
  run.values = {{"model.family", "gpt"}, {"model.preset", "gpt2"}};
  EXPECT_EQ(model_of(run), "gpt2");
  run.events = {event(R"({"event":"start","arch":"gpt2*","parameters":124000000})"),
                event(R"({"event":"stop","arch":"x","parameters":1})")};
  EXPECT_EQ(model_of(run), "gpt2* (124.00 M parameters)");
  run.events.push_back(event(R"({"event":"resume","arch":"llama"})"));
  EXPECT_EQ(model_of(run), "llama");
}

TEST(Facts, LayoutsInOneLine) {
  RunData run;
  run.values = {{"parallel.pipeline", "1"},    {"parallel.virtual_stages", "1"}, {"parallel.tensor", "1"},
                {"parallel.context", "1"},     {"parallel.data_replicate", "1"}, {"parallel.schedule", "1f1b"},
                {"parallel.recompute", "none"}};
  EXPECT_EQ(layout_of(run), "");
  run.environment = Json{{"ranks", 1}};
  EXPECT_EQ(layout_of(run), "1 rank");
  run.events = {event(R"({"event":"start","ranks":4,"communicator":"mpi"})")};
  EXPECT_EQ(layout_of(run), "4 ranks (mpi)");
  run.values = {{"parallel.pipeline", "2"},          {"parallel.virtual_stages", "3"}, {"parallel.tensor", "4"},
                {"parallel.context", "5"},           {"parallel.data_replicate", "6"}, {"parallel.schedule", "zb-v"},
                {"parallel.sharding", "FULL_SHARD"}, {"parallel.zero", "3"},           {"parallel.recompute", "full"}};
  EXPECT_EQ(layout_of(run),
            "4 ranks (mpi), pipeline 2, virtual_stages 3, tensor 4, context 5, data_replicate 6, schedule zb-v, "
            "FULL_SHARD, ZeRO 3, recompute full");
}

TEST(Facts, EndingsInWords) {
  RunData run;
  EXPECT_EQ(ending_of(run).text, "");
  EXPECT_FALSE(ending_of(run).stopped);
  run.events = {event(R"({"event":"start","step":0})"), event(R"({"event":"checkpoint","step":5})")};
  EXPECT_EQ(ending_of(run).text, "no stop recorded: still running, or killed");
  run.events.push_back(event(R"({"event":"stop","step":9})"));
  EXPECT_EQ(ending_of(run).text, "stopped");
  EXPECT_TRUE(ending_of(run).stopped);
  EXPECT_FALSE(ending_of(run).complete);
  run.events.back()["reason"] = "reached train.until (9 steps)";
  EXPECT_TRUE(ending_of(run).complete);
  run.events.push_back(event(R"({"event":"resume","step":9})"));
  EXPECT_FALSE(ending_of(run).stopped);
  EXPECT_FALSE(ending_of(run).complete);
}

}  // namespace
}  // namespace molen::serve
