// Tests the epilogues that ops declare: their bytes, computed by hand, and how a text can change them. The executor
// checks in every run of an op that the kernel does exactly these epilogues (exec/executor.cpp), so every layout of
// prove/ tests this.
#include "program/values/epilogues.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "program/test_edit.h"

namespace molen::program {
namespace {

// Returns the distinct epilogues of all ops of one kind: "none", "add:26880", ...
std::set<std::string> epilogues_of(const Program& p, const std::string& kind,
                                   const std::function<bool(const Step&)>& wanted = nullptr) {
  std::set<std::string> found;
  for (const Body& body : p.bodies)
    for (const Step& step : body.steps)
      if (kind_of(step.op) == kind && (!wanted || wanted(step))) found.insert(text_of(step.epilogues));
  return found;
}
using Texts = std::set<std::string>;

// There are two ranks and two micro-batches: the sum of the second micro-batch is added to that of the first. A layer
// has 24 + 24 (24 + 8 + 8 + 24) + 24 + 3 * 24 * 40 = 4,464 parameters, which are padded to 4,480, in fp32. A rank keeps
// half of their gradients. It reads these gradients and the values to add, and writes the sum.
TEST(Epilogues, ASumThatAddsToAnEarlierOne) {
  const Program p = build(tiny(), setting_of(2, 2, false, 8));
  const auto of_layer = [](const Step& step) { return step.moved.value == 4480 * 4; };
  EXPECT_EQ(epilogues_of(p, "reduce_scatter", of_layer), (Texts{"none", "add:26880"}));
  EXPECT_EQ(epilogues_of(build(tiny(), setting_of(2, 2, false, 4)), "reduce_scatter"), Texts{"none"});
}

// Each of two ranks has 12 of 24 positions, with keys and values of 2 * 2 * 4 columns in fp32, and loads ids and
// labels.
TEST(Epilogues, ContextRanksPackKeysAndUnpackGradients) {
  Setting s;
  s.mesh[mesh::Axis::kCp] = 2;
  s.sequence = 24;
  const Program p = build(tiny(), s);
  EXPECT_EQ(epilogues_of(p, "all_gather"), Texts{"pack:1536"});
  EXPECT_EQ(epilogues_of(p, "reduce_scatter"), Texts{"unpack:1536"});
  EXPECT_EQ(epilogues_of(p, "load_batch"), Texts{"unpack:192"});
  EXPECT_EQ(epilogues_of(build(tiny(), Setting{}), "load_batch"), Texts{"none"});
  s.document_mask = true;
  EXPECT_EQ(epilogues_of(build(tiny(), s), "load_batch"), Texts{"unpack:288"});
  s.document_mask = false;
  // The result and the gradient of the queries are summed in fp32: 12 rows of 24 are read in fp32 and written in bf16.
  s.compute = DType::kBF16;
  const Program narrow = build(tiny(), s);
  EXPECT_EQ(epilogues_of(narrow, "forward attention"), Texts{"copy:1728"});
  EXPECT_EQ(epilogues_of(narrow, "backward attention"), Texts{"copy:1728"});
  EXPECT_EQ(epilogues_of(p, "forward attention"), Texts{"none"});
}

// Each rank has 8 of 24 positions: 512 bytes of keys and values are passed around; queries have 8 x 24 elements.
TEST(Epilogues, ARingPacksAddsAndUnpacks) {
  Setting s;
  s.mesh[mesh::Axis::kCp] = 3;
  s.context_form = ContextForm::kRing;
  s.sequence = 24;
  EXPECT_EQ(epilogues_of(build(tiny(), s), "ring_exchange"),
            (Texts{"pack:1024", "none", "add:1536", "add:1536,unpack:1024"}));
  s.compute = DType::kBF16;
  // The gradients of the queries are summed in fp32 and rounded at the end.
  EXPECT_TRUE(epilogues_of(build(tiny(), s), "ring_exchange").count("add:1536,copy:1152,unpack:768"))
      << ::testing::PrintToString(epilogues_of(build(tiny(), s), "ring_exchange"));
}

// While one slot is sent, the other is received into or computed with, however many ranks the ring has.
TEST(Epilogues, ARingOfAnySizeKeepsTwoSlotsOfKeysAndValues) {
  for (const int ranks : {2, 3, 4}) {
    Setting s;
    s.mesh[mesh::Axis::kCp] = ranks;
    s.context_form = ContextForm::kRing;
    s.sequence = 24;
    const Program p = build(tiny(), s);
    for (const Value role : {Value::kKeys, Value::kDKeys})
      EXPECT_EQ(std::ranges::count(p.buffers, role, &Buffer::role), 2) << ranks;
  }
}

// Three ranks share six query heads with two key and value heads. Each rank has copies of the key and value heads that
// its two query heads need.
TEST(Epilogues, TensorRanksAssembleCopiedHeads) {
  arch::Architecture even = tiny();
  even.ffn = 42, even.vocabulary = 54;
  Setting s = setting_of(1, 0, false, 4);
  s.mesh[mesh::Axis::kTp] = 3;
  const Program p = build(even, s);
  const std::int64_t row = 4 * 24, all = p.local.qkv_size() * row, queries = p.local.query_size() * row;
  const auto assembled = [](std::int64_t bytes) { return Texts{"assemble:" + std::to_string(bytes)}; };
  EXPECT_EQ(epilogues_of(p, "forward norm_qkv"), assembled(2 * all));
  // The first micro-batch overwrites the gradient of the queries. Gradients of keys are always added, since two query
  // heads may share one key head. The second micro-batch adds all gradients.
  EXPECT_EQ(epilogues_of(p, "backward norm_qkv"),
            (Texts{"assemble:" + std::to_string(2 * all + 2 * queries + 4 * (all - queries)),
                   "assemble:" + std::to_string(2 * all + 4 * all)}));
  s.mesh[mesh::Axis::kTp] = 2;
  EXPECT_EQ(epilogues_of(build(even, s), "forward norm_qkv"), Texts{"none"});
}

// Tensor ranks that share the rows sum residual gradients: each of two ranks keeps 150 of 300 rows of 24 in fp32.
TEST(Epilogues, SharedRowsAddToTheResidualGradient) {
  Setting s = setting_of(1, 0, false, 4);
  s.mesh[mesh::Axis::kTp] = 2;
  s.sequence_parallel = true;
  const Texts sums = epilogues_of(build(tiny(), s), "reduce_scatter");
  EXPECT_TRUE(sums.count("add:43200")) << *sums.begin();
}

// If backwards are split into halves, the weights' half still has to read the old residual gradient: 2 x 150 rows of 24
// are copied.
TEST(Epilogues, HalvesCopyTheResidualGradient) {
  Setting s = setting_of(1, 0, false, 8);
  s.mesh[mesh::Axis::kPp] = 2;
  s.pipeline.schedule = ScheduleKind::kZbV, s.pipeline.halves = true;
  s.pipeline.placement = Placement::kV, s.pipeline.chunks = 2;
  arch::Architecture four = tiny();
  four.layers = 4;
  for (const Program& p : build_stages(four, s))
    EXPECT_EQ(epilogues_of(p, "backward_input norm_qkv"), Texts{"copy:57600"});
}

// Each of 5 ranks sends 300 tokens twice: 600 rows of 24 in fp32 are put into the order of experts, or into that of
// ranks.
TEST(Epilogues, ExpertRanksReorderRows) {
  Setting s = setting_of(1, 0, false, 10);
  s.mesh[mesh::Axis::kEp] = 5;
  EXPECT_EQ(epilogues_of(build(tiny_sparse(), s), "all_to_all"), (Texts{"pack:115200", "unpack:115200"}));
}

// A program from a text runs as the text says: `updates` makes the collective add. A line without costs gets the costs
// that follow from its operands.
TEST(Epilogues, FollowTheOperandsOfAText) {
  const Program p = build(tiny(), setting_of(2, 2, false, 8));
  const std::string text = print(p);
  const std::size_t at = text.find(" epilogues=add:26880");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(parse(text, "p.txt"), p);
  const std::size_t begin = text.rfind('\n', at) + 1, end = text.find('\n', at);
  const auto edited = [&](const std::function<void(std::string&)>& edit) {
    std::string line = text.substr(begin, end - begin);
    edit(line);
    return parse(text.substr(0, begin) + line + text.substr(end), "p.txt");
  };
  const auto line_of = [&](const Program& q) {
    for (std::size_t b = 0; b < q.bodies.size(); ++b)
      for (std::size_t k = 0; k < q.bodies[b].steps.size(); ++k)
        if (p.bodies[b].steps[k].epilogues != q.bodies[b].steps[k].epilogues)
          return text_of(q.bodies[b].steps[k].epilogues);
    return std::string("as before");
  };
  const auto uncosted = [](std::string& line) { line = line.substr(0, line.find(" scratch=")); };
  EXPECT_EQ(line_of(edited(uncosted)), "as before");
  EXPECT_EQ(line_of(edited([&](std::string& line) {
              uncosted(line);
              const auto to = line.find("updates=to:");
              ASSERT_NE(to, std::string::npos) << line;
              line.replace(to, 11, "writes=to:");
            })),
            "none");
  const auto wrong = edited([](std::string& line) { line.replace(line.find("add:26880"), 9, "pack:26880"); });
  std::string findings;
  for (const Finding& f : verify(wrong)) findings += f.text + "\n";
  EXPECT_NE(findings.find("its epilogues are pack:26880 where its operands ask for add:26880"), std::string::npos)
      << findings;
  const auto refusal = [&](const std::string& to) {
    try {
      (void)edited([&](std::string& line) { line.replace(line.find("add:26880"), 9, to); });
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refusal("ad:4").find("unknown epilogue"), std::string::npos) << refusal("ad:4");
  EXPECT_NE(refusal("add").find("epilogues=add must be KIND:BYTES, such as add:4096"), std::string::npos);
  EXPECT_NE(refusal("add:-1").find("p.txt:"), std::string::npos) << refusal("add:-1");
}

}  // namespace
}  // namespace molen::program
