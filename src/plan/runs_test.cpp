// Properties of tables of runs, and the lines that are written of predictions.
#include "plan/runs.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "plan/runs_columns.h"
#include "plan/test_runs.h"

namespace molen::plan {
namespace {

// Returns any of the cells that a column may have, or a blank.
rc::Gen<std::string> cell_of(const std::string& column) {
  static const std::map<std::string, std::vector<std::string>> kValues = {
      {"layers", {"24", "48"}},
      {"hidden", {"2048", "4096"}},
      {"ffn", {"", "8192"}},
      {"heads", {"16", "32"}},
      {"kv_heads", {"", "16"}},
      {"mlp", {"", "gelu", "relu2", "swiglu"}},
      {"seq", {"1024", "2048"}},
      {"gpus", {"64", "128"}},
      {"vocab", {"", "50304"}},
      {"gpu", {"B9", "MI250X"}},
      {"gpus_per_node", {"", "4"}},
      {"tp", {"", "1", "2", "4"}},
      {"pp", {"", "1", "2", "4"}},
      {"cp", {"", "1", "2"}},
      {"vpp", {"", "1", "2"}},
      {"mbs", {"", "1", "2"}},
      {"gbs", {"256", "512"}},
      {"schedule", {"", "1f1b", "interleaved_1f1b"}},
      {"zero_stage", {"", "1", "3"}},
      {"shard_group", {"", "2"}},
      {"recompute", {"", "none", "full"}},
      {"precision", {"", "fp16"}},
      {"grad_dtype", {"", "bf16"}},
      {"overlap", {"", "none", "tp+dp"}},
      {"compile", {"", "yes"}},
      {"flash_attention", {"", "no"}},
      {"sequence_parallel", {"", "yes", "no"}},
      {"tied_embeddings", {"", "no"}},
      {"pp_split", {"", "layers"}},
      {"dp", {"", "", "8"}},
      {"peak_16bit_tflops", {"", "312"}},
      {"peak_fp8_tflops", {"", "1979"}},
      {"network_gbps_per_gpu", {"", "100"}}};
  return rc::gen::elementOf(kValues.at(column));
}

CellsByName any_row() {
  CellsByName row;
  for (const RunColumn& column : run_columns())
    row[column.name] = std::string(column.name) == "run_id" ? "r" : *cell_of(column.name);
  return row;
}

// Returns what is read of a row without its name: the run, or the reason why there is none.
std::pair<std::optional<Run>, std::string> nameless(const RunRow& row) {
  if (!row.run) return {std::nullopt, row.run.reason()};
  plan::Run run = row.run.value();
  EXPECT_EQ(run.id, row.id);
  run.id.clear();
  return {run, ""};
}

// Returns the numbers below `size` in any order.
rc::Gen<std::vector<std::size_t>> any_order(std::size_t size) {
  const auto keys = rc::gen::container<std::vector<std::uint32_t>>(size, rc::gen::arbitrary<std::uint32_t>());
  return rc::gen::map(keys, [](const std::vector<std::uint32_t>& key) {
    std::vector<std::size_t> order(key.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key[a] < key[b]; });
    return order;
  });
}

RC_GTEST_PROP(RunsTable, OnlyInputColumnsMatter, ()) {
  const auto rows =
      *rc::gen::resize(8, rc::gen::nonEmpty(rc::gen::container<std::vector<CellsByName>>(rc::gen::exec(any_row))));
  const auto columns = columns_of(rows);
  const auto plain = read_runs(table_of(rows, columns), "t.csv");
  // The other table has its rows and columns in another order, other names and texts, and measurements.
  const auto any_text = rc::gen::container<std::string>(rc::gen::element('a', ',', '"', '\n', ' ', '='));
  std::vector<std::string> more = columns;
  for (const char* name : {"source", "source_ref", "model", "step_s", "tflops_per_gpu", "memory_gib", "assumed"})
    if (*rc::gen::arbitrary<bool>()) more.emplace_back(name);
  const auto order = *any_order(rows.size());
  std::vector<CellsByName> others;
  for (const std::size_t i : order) {
    others.push_back(rows[i]);
    for (const std::string& name : more)
      if (!rows[i].contains(name)) others.back()[name] = *any_text;
    others.back()["run_id"] = "x" + *any_text;
  }
  std::vector<std::string> in_other_order;
  for (const std::size_t place : *any_order(more.size())) in_other_order.push_back(more[place]);
  const auto read = read_runs(table_of(others, in_other_order), "t.csv");
  RC_ASSERT(read.size() == plain.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    RC_ASSERT(nameless(read[i]) == nameless(plain[order[i]]));
    RC_ASSERT(read[i].id == others[i]["run_id"]);
  }
}

// Whoever writes what was assumed into the blanks gets the same run, with nothing assumed.
RC_GTEST_PROP(RunsTable, AssumedValuesGiveTheSameRun, ()) {
  CellsByName row = any_row();
  const RunRow first = only_row(row);
  RC_PRE(first.run.ok());
  plan::Run run = first.run.value();
  for (const auto& [column, value] : run.assumed) {
    RC_ASSERT(row[column].empty());
    row[column] = value;
  }
  run.assumed.clear();
  RC_ASSERT(only_row(row).run.value() == run);
}

RunPrediction prediction() {
  RunPrediction p;
  p.step_s = 4.0, p.errors = {{"device.launch", 0.15}, {"products", 0.2}}, p.model_flops = 64.0 * 4.0 * 150e12;
  p.memory_bytes = 61e9, p.allocator_bytes = 59e9, p.fits = true, p.bubble_s = 0.5;
  p.memory_spread = 0.25, p.device_bytes = 80e9;
  p.exposed_s = {{"tp", 0.25}, {"dp", 0.0}};
  p.kinds_s = {{"forward attention", 1.5}, {"all_gather", 0.5}};
  return p;
}

TEST(RunsJson, KeysOfAPrediction) {
  plan::Run run = read_row(full_row());
  run.assumed = {{"mbs", "2"}, {"vpp", "1"}};
  RunPrediction p = prediction();
  p.chosen = {{"recompute", "full"}, {"vpp", "3"}};
  EXPECT_EQ(to_json(run, p).dump(),
            R"({"run_id":"r","step_s":4.0,"step_s_low":3.2,"step_s_high":5.0,)"
            R"("step_errors":{"device.launch":0.15,"products":0.2},"tokens_per_s_per_gpu":1024.0,)"
            R"("tflops_per_gpu":150.0,"memory_bytes_per_gpu":61000000000,"memory_bytes_per_gpu_low":48800000000,)"
            R"("memory_bytes_per_gpu_high":76250000000,"memory_allocator_bytes_per_gpu":59000000000,)"
            R"("memory_allocator_bytes_per_gpu_low":47200000000,"memory_allocator_bytes_per_gpu_high":73750000000,)"
            R"("fits":true,"bubble_s":0.5,"exposed_comm_s":{"dp":0.0,"tp":0.25},)"
            R"("kinds_s":{"all_gather":0.5,"forward attention":1.5},)"
            R"("assumed":{"mbs":"2","recompute":"full","vpp":"3"}})");
  run.assumed.clear();
  EXPECT_EQ(to_json(run, prediction()).at("assumed").dump(), "{}");
}

// A run that fits takes no more than its device has; one that does not would take more.
TEST(RunsJson, TheMemoryOfARunThatFitsEndsWithTheDevice) {
  const plan::Run run = read_row(full_row());
  RunPrediction p = prediction();
  p.device_bytes = 70e9;
  EXPECT_EQ(to_json(run, p).at("memory_bytes_per_gpu_high"), 70'000'000'000);
  p.fits = false;
  EXPECT_EQ(to_json(run, p).at("memory_bytes_per_gpu_high"), 76'250'000'000);
}

TEST(RunsJson, KeysOfAnError) {
  EXPECT_EQ(to_json("x \"1\"", "gpu: unknown type 'B9'").dump(),
            R"({"run_id":"x \"1\"","error":"gpu: unknown type 'B9'"})");
}

// A figure that is no quantity never reaches a line.
TEST(RunsJson, OnlyQuantitiesAreWritten) {
  const plan::Run run = read_row(full_row());
  const auto refusal = [&](const std::function<void(RunPrediction&)>& change) {
    RunPrediction p = prediction();
    change(p);
    try {
      to_json(run, p);
    } catch (const Error& error) {
      const std::string text = error.what();
      return text.substr(0, text.find(':'));
    }
    return std::string("accepted");
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {std::nan(""), infinity, -infinity, -1.0}) {
    EXPECT_EQ(refusal([&](RunPrediction& p) { p.step_s = bad; }), "step_s");
    EXPECT_EQ(refusal([&](RunPrediction& p) { p.errors["products"] = bad; }), "step_errors");
    EXPECT_EQ(refusal([&](RunPrediction& p) { p.model_flops = bad; }), "tflops_per_gpu");
    EXPECT_EQ(refusal([&](RunPrediction& p) { p.memory_bytes = bad; }), "memory_bytes_per_gpu");
    EXPECT_EQ(refusal([&](RunPrediction& p) { p.allocator_bytes = bad; }), "memory_allocator_bytes_per_gpu");
    EXPECT_EQ(refusal([&](RunPrediction& p) { p.bubble_s = bad; }), "bubble_s");
    EXPECT_EQ(refusal([&](RunPrediction& p) { p.exposed_s["tp"] = bad; }), "exposed_comm_s");
    EXPECT_EQ(refusal([&](RunPrediction& p) { p.kinds_s["all_gather"] = bad; }), "kinds_s");
  }
  EXPECT_EQ(refusal([](RunPrediction& p) { p.step_s = 0.0; }), "step_s");
  EXPECT_EQ(refusal([](RunPrediction& p) { p.step_s = 1e-320; }), "tokens_per_s_per_gpu");
  EXPECT_EQ(refusal([](RunPrediction& p) { p.step_s = 1e308, p.errors["products"] = 10.0; }), "step_s_high");
  EXPECT_EQ(refusal([](RunPrediction& p) { p.model_flops = 0.0; }), "tflops_per_gpu");
  EXPECT_EQ(refusal([](RunPrediction& p) { p.memory_bytes = 1e19; }), "memory_bytes_per_gpu");
  EXPECT_EQ(refusal([](RunPrediction& p) { p.bubble_s = 0.0, p.memory_bytes = 0.0; }), "accepted");
}

RC_GTEST_PROP(RunsJson, RateFollowsFromTime, ()) {
  plan::Run run = read_row(full_row());
  run.global_batch = *rc::gen::inRange<std::int64_t>(1, 10000001);
  run.sequence = *rc::gen::inRange<std::int64_t>(1, 1 << 24);
  run.gpus = *rc::gen::inRange(1, 1000001);
  RunPrediction p = prediction();
  p.step_s = *rc::gen::inRange(1, 1 << 30) / 1024.0;
  const Json line = Json::parse(to_json(run, p).dump());
  const double tokens = static_cast<double>(run.global_batch) * static_cast<double>(run.sequence);
  const double rate = tokens / (line.at("step_s").get<double>() * run.gpus);
  RC_ASSERT(std::abs(line.at("tokens_per_s_per_gpu").get<double>() / rate - 1.0) < 1e-14);
}

}  // namespace
}  // namespace molen::plan
