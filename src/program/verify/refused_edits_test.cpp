// Edits that only one rule of the verifier refuses, and where the message says the edit is. Each test fails if its rule
// is missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "program/build/build.h"
#include "program/parts/part.h"
#include "program/test_cases.h"
#include "program/text/text.h"
#include "program/types/part_rules.h"
#include "program/values/of_op.h"
#include "program/values/of_setting.h"
#include "program/values/signature.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

std::string said_of(const Program& p) {
  std::string text;
  for (const Finding& f : verify(p)) text += f.text + "\n";
  return text;
}

#define EXPECT_SAYS(program, words) EXPECT_NE(said_of(program).find(words), std::string::npos) << said_of(program)

// Returns the program with another op before op `at` of a body, with the indices in edges corrected.
Program with_op(Program p, std::size_t body, std::size_t at, Step step) {
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (Step& other : p.bodies[b].steps)
      for (OpRef& ref : other.after)
        if ((ref.body < 0 ? b : static_cast<std::size_t>(ref.body)) == body && ref.op >= static_cast<int>(at)) ++ref.op;
  p.bodies[body].steps.insert(p.bodies[body].steps.begin() + static_cast<std::ptrdiff_t>(at), std::move(step));
  return p;
}

struct Found {
  std::size_t body = 0, op = 0;
};
// Returns the first op of a kind. Throws Error when there is none.
Found first_op(const Program& p, const std::function<bool(const Step&)>& wanted) {
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      if (wanted(p.bodies[b].steps[k])) return {b, k};
  throw Error("no such op");
}

Setting on_tensor_ranks(const std::string& optimizer = "adamw") {
  Setting s = small_setting(1, 0);
  s.mesh[mesh::Axis::kTp] = 2;
  s.optimizer = optimizer;
  return s;
}

// Keys and values are gathered in one form of context parallelism, and go around a ring in the other. The exchange
// after the first step of a ring has the operands of a gather.
TEST(RefusedEdits, ExchangesOfTheOtherFormOfContextRanks) {
  Setting s = small_setting(1, 0);
  s.mesh[mesh::Axis::kCp] = 3;
  s.sequence = 24;
  Program gathers = build(tiny(), s);
  ASSERT_EQ(said_of(gathers), "");
  const Found gather = first_op(gathers, [](const Step& step) {
    const auto* o = std::get_if<AllGather>(&step.op);
    return o && o->payload == Payload::kKeys;
  });
  Op& gathered = gathers.bodies[gather.body].steps[gather.op].op;
  gathered = RingExchange{Axis::kCp, Payload::kKeys, std::get<AllGather>(gathered).layer, 2};
  EXPECT_SAYS(gathers, "does not fit this program, in which context ranks gather keys and values");
  s.context_form = ContextForm::kRing;
  Program passes_on = build(tiny(), s);
  ASSERT_EQ(said_of(passes_on), "");
  const Found pass = first_op(passes_on, [](const Step& step) {
    const auto* o = std::get_if<RingExchange>(&step.op);
    return o && o->payload == Payload::kKeys && o->step == 2;
  });
  Op& passed = passes_on.bodies[pass.body].steps[pass.op].op;
  passed = AllGather{Axis::kCp, Payload::kKeys, std::get<RingExchange>(passed).layer};
  EXPECT_SAYS(passes_on, "does not fit this program, in which context ranks pass keys and values on in a ring");
}

// The executor finds the rows of an op by the piece of its buffer, so another piece would be other rows.
TEST(RefusedEdits, ABufferOfAnotherPiece) {
  Setting s = on_tensor_ranks();
  s.sequence_parallel = true;
  s.tensor_chunks = 2;
  const Program p = build(tiny(), s);
  ASSERT_EQ(said_of(p), "");
  int whole = 0, pieces = 0;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    const bool of_rows =
        class_of(p.buffers[i].role) == ValueClass::kSum || class_of(p.buffers[i].role) == ValueClass::kRows;
    if (!of_rows) continue;
    Program q = p;
    std::int64_t& piece = q.buffers[i].portion;
    piece < 0 ? ++whole : ++pieces;
    if (piece < 0) {
      piece = 0;
      EXPECT_SAYS(q, "is for piece 0 of the rows where it must be for all rows");
    } else {
      piece = -1;
      EXPECT_SAYS(q, "is for all rows where it must be for piece");
    }
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(pieces, 0);
  // The same edit, in the text form.
  const std::string text = rewrite(without_costs(print(p)), {"buffer x_sum.0 "}, "role=", "piece=0 role=");
  EXPECT_NE(refusal(text).find("is for piece 0"), std::string::npos) << refusal(text);
}

// A gradient of the whole unit in the place of a shard, and the other way round.
TEST(RefusedEdits, ABufferOfAnotherPartOfItsUnit) {
  const Program p = build(tiny(), small_setting(2, 2));
  ASSERT_EQ(said_of(p), "");
  int shards = 0;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    if (p.buffers[i].extent != Range::kShard) continue;
    ++shards;
    Program q = p;
    q.buffers[i].extent = Range::kAll;
    EXPECT_SAYS(q, "operand " + p.buffers[i].name + " holds all of its unit where it needs shard");
  }
  EXPECT_GT(shards, 0);
}

TEST(RefusedEdits, SumsThatTheLastMicroBatchClearsAgain) {
  const Program p = build(tiny(), small_setting(1, 0));
  const auto clears = [&](const Step& step) {
    return std::holds_alternative<ZeroFill>(step.op) &&
           p.buffers[static_cast<std::size_t>(step.operands.front().buffer)].role == Value::kScalars;
  };
  const Found found = first_op(p, clears);
  const std::size_t last = static_cast<std::size_t>(p.schedule[p.schedule.size() - 2].body);
  ASSERT_NE(last, found.body);
  EXPECT_SAYS(with_op(p, last, 0, p.bodies[found.body].steps[found.op]), "clears the step's sums a second time");
}

bool moves_momentum(const Step& step) {
  const auto* update = std::get_if<OptimizerStep>(&step.op);
  return update && update->stage == UpdateStage::kDirection;
}

TEST(RefusedEdits, MatricesThatTensorRanksUpdateInOneStage) {
  const Program p = build(tiny(), on_tensor_ranks("muon"));
  ASSERT_EQ(said_of(p), "");
  const Found found = first_op(p, moves_momentum);
  Program q = p;
  Step& update = q.bodies[found.body].steps[found.op];
  const int unit = unit_of_step(p, update);
  std::get<OptimizerStep>(update.op).stage = UpdateStage::kWhole;
  update.operands.clear();
  for (const Operand& o : signature(q, update.op, unit).operands)
    update.operands.push_back(
        {o.arg, q.find_buffer(o.value, o.value == Value::kScalars ? -1 : unit), o.range, o.access});
  EXPECT_SAYS(q, "updates in one stage, but tensor ranks hold parts of these matrices");
}

TEST(RefusedEdits, AMomentumThatMovesTwice) {
  const Program p = build(tiny(), on_tensor_ranks("muon"));
  const Found found = first_op(p, moves_momentum);
  EXPECT_SAYS(with_op(p, found.body, found.op, p.bodies[found.body].steps[found.op]),
              "moves the momentum a second time");
}

// Heads of this width cannot be computed in tiles within documents. Both the documents and the width are needed for the
// refusal.
TEST(RefusedEdits, KernelsThatCannotKeepWideHeadsWithinDocuments) {
  for (const bool documents : {false, true})
    for (const std::int64_t width : {arch::kOwnAttentionMaxHead, arch::kOwnAttentionMaxHead + 2}) {
      arch::Architecture a = tiny();
      a.head_dim = width;
      Setting s = small_setting(1, 0);
      s.document_mask = documents;
      s.kernels = arch::Kernels::kReference;
      Program p = build(a, s);
      const Found found = first_op(p, [](const Step& step) {
        const auto* c = std::get_if<Compute>(&step.op);
        return c && c->part == arch::Part::kAttention;
      });
      p.bodies[found.body].steps[found.op].attributes.kernel = arch::Kernels::kFused;
      const bool refused = said_of(p).find("(forward attention): kernel=fused cannot compute it") != std::string::npos;
      EXPECT_EQ(refused, documents && width > arch::kOwnAttentionMaxHead) << said_of(p);
    }
}

// Context ranks share each sequence, so half a sequence more is a whole number of the rank's own rows.
TEST(RefusedEdits, HalfASequenceTooMany) {
  Setting s = small_setting(1, 0);
  s.mesh[mesh::Axis::kCp] = 2;
  Program p = build(tiny(), s);
  ASSERT_EQ(said_of(p), "");
  for (Body& body : p.bodies)
    for (Step& step : body.steps)
      if (step.attributes.positions > 0) step.attributes.positions += s.local_sequence();
  EXPECT_SAYS(p, "are no whole number of sequences of 144");
}

// Builder and checker share the rule for ALiBi's slopes, so the types are stated here once more.
TEST(RefusedEdits, SlopesAreOfTheHeadsOfATensorRank) {
  arch::Architecture a = tiny();
  a.position = arch::Position::kAlibi;
  Setting s = on_tensor_ranks();
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.global_batch = 8;
  const Program p = build(a, s);
  const Found found = first_op(p, [](const Step& step) { return step.find(Arg::kSlopes) != nullptr; });
  const MeshType& type = p.bodies[found.body].steps[found.op].operand(Arg::kSlopes).type;
  EXPECT_EQ(text_of(type[mesh::Axis::kTp]), "shard:heads");
  EXPECT_EQ(text_of(type[mesh::Axis::kDpShard]), "invariant");
}

bool in_chunk(const Step& step, std::int64_t chunk) {
  const auto* c = std::get_if<Compute>(&step.op);
  return c && of_head(c->part) && c->portion == chunk;
}

TEST(RefusedEdits, ChunksOfTheHeadInAnEvaluation) {
  Setting s = small_setting(1, 0);
  s.purpose = Purpose::kEvaluate;
  const Program p = build(tiny(), s);
  ASSERT_EQ(said_of(p), "");
  Program q = p;
  ASSERT_GT(std::erase_if(q.bodies[0].steps, [](const Step& step) { return in_chunk(step, 1); }), 0u);
  EXPECT_SAYS(q, "the head leaves out chunks");
  const Found found = first_op(p, [](const Step& step) { return in_chunk(step, 0); });
  EXPECT_SAYS(with_op(p, found.body, found.op, p.bodies[found.body].steps[found.op]), "chunk 0 of the head runs twice");
}

TEST(RefusedEdits, AStageOfAnotherLayout) {
  Setting s = small_setting(2, 0);
  s.mesh[mesh::Axis::kPp] = 2;
  auto stages = build_stages(tiny(), s);
  ASSERT_TRUE(verify_world(stages).empty());
  s.zero = 2;
  stages[1] = build_stages(tiny(), s)[1];
  const auto findings = verify_world(stages);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].text, "stage 1 is of another model or layout");
}

// A finding about an op of a text names the op's line.
TEST(RefusedEdits, AreNamedByTheirLine) {
  Setting s = small_setting(1, 0);
  s.compute = DType::kBF16;
  s.kernels = arch::Kernels::kAten;
  const std::string text = without_costs(print(build(tiny(), s)));
  const std::string edited = rewrite(text, {" forward part=down layer=1"}, "kernel=aten", "kernel=fused");
  std::size_t line = 1;
  for (std::size_t at = 0; at < edited.size() && edited[at] == text[at]; ++at) line += edited[at] == '\n';
  EXPECT_EQ(refusal(edited).find("line " + std::to_string(line) + ": body "), 0u) << refusal(edited);
  try {
    require_sound(parse(edited, "edited.txt"), "edited.txt");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    const std::string said = error.what();
    EXPECT_EQ(said.find("edited.txt: the step program is refused: line " + std::to_string(line) + ": "), 0u) << said;
    EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 3) << said;
  }
}

}  // namespace
}  // namespace molen::program
