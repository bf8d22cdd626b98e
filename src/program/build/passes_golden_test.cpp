// Tests each pass alone, on texts that a person has read: the program before the pass, and the program after it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/file.h"
#include "program/build/build.h"
#include "program/test_edit.h"
#include "program/text/text.h"

namespace molen::program {
namespace {

using BuilderPass = std::function<Program(Program)>;
struct NamedPass {
  const char* name;
  BuilderPass pass;
};

Program by_its_schedule(Program p) {
  const Setting& s = p.setting;
  const Schedule schedule =
      make_schedule(s.pipeline.schedule, s.stages(), s.pipeline.chunks, static_cast<int>(s.micro_batches()));
  return pass::pipeline(std::move(p), schedule);
}

// Returns the passes in the order of build().
const std::vector<NamedPass>& all_passes() {
  static const std::vector<NamedPass> all{{"exchange_experts", pass::exchange_experts},
                                          {"recompute", pass::recompute},
                                          {"exchange_context", pass::exchange_context},
                                          {"exchange_tensors", pass::exchange_tensors},
                                          {"pipeline", by_its_schedule},
                                          {"pipeline_forward", pass::pipeline_forward},
                                          {"micro_batch_loop", pass::micro_batch_loop},
                                          {"offload_activations", pass::offload_activations},
                                          {"shard_parameters", pass::shard_parameters},
                                          {"reduce_gradients", pass::reduce_gradients},
                                          {"update", pass::update},
                                          {"costs", pass::costs},
                                          {"order_streams", pass::order_streams}};
  return all;
}

// Returns a layout in which the pass changes the program, and in which as few other passes as possible do.
Setting setting_for(const std::string& name) {
  Setting s = setting_of(name == "shard_parameters" || name == "reduce_gradients" || name == "update" ? 2 : 1, 0, false,
                         name.starts_with("pipeline") ? 4 : 2);
  s.micro_batch = 1;
  s.sequence = 12;
  if (name == "exchange_experts") s.mesh[mesh::Axis::kEp] = 2;
  if (name == "recompute") s.recompute = recompute_from_text("attention,activation");
  if (name == "exchange_context") s.mesh[mesh::Axis::kCp] = 2;
  if (name == "exchange_tensors") s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true;
  if (name.starts_with("pipeline")) {
    s.mesh[mesh::Axis::kPp] = 2;
    s.pipeline = pipeline_of(ScheduleKind::k1f1b, 1);
  }
  if (name == "pipeline_forward") s.purpose = Purpose::kEvaluate;
  if (name == "offload_activations") s.offload = {true, false, false, true};
  if (name == "shard_parameters") s.zero = 3;
  if (name == "reduce_gradients") s.zero = 2, s.reduce = DType::kBF16;
  if (name == "update") s.zero = 1;
  if (name == "order_streams") s.mesh[mesh::Axis::kTp] = 2, s.mesh[mesh::Axis::kDpShard] = 2, s.global_batch = 4;
  return s;
}

bool takes_part(const std::string& pass, const Setting& s) {
  if (pass == "recompute") return s.recompute.any();
  if (pass == "pipeline" || pass == "pipeline_forward")
    return s.pipelined() && (pass == "pipeline") == (s.purpose == Purpose::kTrain);
  if (pass == "micro_batch_loop") return !s.pipelined();
  if (pass == "offload_activations") return s.offload.activations;
  return true;
}

// Returns the text of a program between two passes, without the costs if no pass has set them yet.
std::string text_between(const Program& p) {
  const std::string none = " scratch=0 model_flops=0 hardware_flops=0 moved=0";
  std::string text = print(p);
  for (auto at = text.find(none); at != std::string::npos; at = text.find(none)) text.erase(at, none.size());
  return text;
}

// Reads such a text. The parser requires a schedule, which the chunks of a pipeline do not have yet, and it computes
// the costs of ops that state none.
Program parse_between(std::string text, bool costed) {
  const bool scheduled = !text.ends_with("schedule\n");
  if (!scheduled) {
    const auto name = text.find("\nbody ") + 6;
    text.insert(text.size() - 1, " " + text.substr(name, text.find('\n', name) - name) + ":0");
  }
  Program p = parse(text, "before");
  if (!scheduled) p.schedule.clear();
  if (!costed)
    for (Body& body : p.bodies)
      for (Step& step : body.steps) {
        step.scratch = {}, step.model_flops = step.hardware_flops = {}, step.moved = {};
        step.epilogues.clear();
      }
  return p;
}

// Compares with the file in tests/golden/program/passes. MOLEN_UPDATE_GOLDEN=1 writes the file.
void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path file = std::filesystem::path("tests/golden/program/passes") / name;
  if (std::getenv("MOLEN_UPDATE_GOLDEN")) {
    std::filesystem::create_directories(file.parent_path());
    write_file_atomic(file, text);
  }
  EXPECT_EQ(text, read_file(file)) << file;
}

class EachPass : public ::testing::TestWithParam<int> {};

TEST_P(EachPass, TurnsTheGoldenTextIntoTheGoldenText) {
  const auto pass = std::next(all_passes().begin(), GetParam());
  const Setting setting = setting_for(pass->name);
  auto arch = tiny();
  arch.layers = setting.pipelined() ? 2 : 1;
  if (setting.offload.activations) arch.layers = 2;
  if (setting.shares_experts()) arch.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 20};
  Program before = pass::micro_batch(arch, setting);
  for (auto earlier = all_passes().begin(); earlier != pass; ++earlier)
    if (takes_part(earlier->name, setting)) before = earlier->pass(std::move(before));
  expect_golden(fmt::format("{}.before.txt", pass->name), text_between(before));
  // From here on the test uses only the text of the file.
  const std::string text = read_file(fmt::format("tests/golden/program/passes/{}.before.txt", pass->name));
  const Program after = pass->pass(parse_between(text, std::string(pass->name) == "order_streams"));
  EXPECT_NE(text_between(after), text) << "the pass has nothing to do";
  expect_golden(fmt::format("{}.after.txt", pass->name), text_between(after));
}

INSTANTIATE_TEST_SUITE_P(Passes, EachPass, ::testing::Range(0, static_cast<int>(all_passes().size())),
                         [](const auto& info) {
                           return std::string(all_passes()[static_cast<std::size_t>(info.param)].name);
                         });

}  // namespace
}  // namespace molen::program
