// Tests rows that travel between tensor ranks piece by piece (Setting::tensor_chunks). Such a layout trains the same
// model, alone and with every other axis. Programs that are broken between two pieces are refused. Pieces hide
// communication, which is measured with a sleep in place of each op.
#include <gtest/gtest.h>

#include "base/error.h"
#include "program/ir/timeline.h"
#include "program/parts/part.h"
#include "program/values/signature.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::AllGather;
using program::Axis;
using program::Compute;
using program::Program;
using program::ReduceScatter;
using program::ScheduleKind;

arch::Architecture deep(arch::Architecture a) {
  a.layers = 4;
  return a;
}
// A model in which every rank holds all keys and values, with biases on all products.
arch::Architecture grouped() {
  auto a = gpt();
  a.heads = 12;
  a.kv_heads = 3;
  a.head_dim = 4;
  a.ffn = 52;
  return a;
}

Layout pieces(std::int64_t chunks, int tensor, int shards = 1, int zero = 0, std::int64_t micro = 2) {
  Layout l{shards, zero, false, micro};
  l.tensor = tensor;
  l.rows = true;
  l.chunks = chunks;
  return l;
}
Layout with_stages(Layout l, int stages, ScheduleKind kind, int chunks) {
  l.stages = stages;
  l.pipeline = program::pipeline_of(kind, chunks);
  return l;
}
Layout shared(Layout l, program::ContextForm form) {
  l.context = 2;
  l.form = form;
  l.sequence = 24;
  return l;
}

class Pieces : public ::testing::TestWithParam<Layout> {};

std::vector<arch::Architecture> chunk_models() {
  return {deep(llama(false)), deep(grouped())};
}

TEST_P(Pieces, SameModelInDouble) {
  for (const auto& a : chunk_models()) {
    SCOPED_TRACE(arch::name_of(a.family));
    if (a.heads % GetParam().tensor != 0) continue;  // 6 heads over 4 ranks
    auto alone = setting_of(1, 0, false, DType::kF64, 3);
    alone.sequence = GetParam().sequence;
    alone.document_mask = GetParam().documents;
    const Outcome& one = train_alone(program::build(a, alone), proof_steps());
    expect_same_model(one, train_threads(proved_stages(a, setting_of(GetParam(), DType::kF64)), proof_steps()));
  }
}

// Runs the fused kernels and ATen's.
TEST_P(Pieces, OneStepInFloatWithinTheBound) {
  for (const auto kernels : {arch::Kernels::kFused, arch::Kernels::kAten}) {
    if (kernels == arch::Kernels::kAten && (GetParam().context > 1 || GetParam().documents)) continue;
    for (const auto& a : chunk_models()) {
      if (a.heads % GetParam().tensor != 0) continue;
      auto alone = setting_of(1, 0, false, DType::kF32, 3), setting = setting_of(GetParam(), DType::kF32);
      alone.kernels = setting.kernels = kernels;
      alone.sequence = setting.sequence;
      alone.document_mask = setting.document_mask;
      const auto stages = proved_stages(a, setting);
      const Difference d = difference(train_alone(program::build(a, alone), 1), train_threads(stages, 1));
      const Bounds bounds = bounds_of(stages.front());
      expect_within(d, bounds);
    }
  }
}

TEST_P(Pieces, SameLayoutTwiceIsIdenticalAndTheDeadAreDead) {
  const auto stages = proved_stages(deep(grouped()), setting_of(GetParam(), DType::kF32));
  expect_dead_buffers_unread(stages);
}

TEST_P(Pieces, AnEvaluationIsSound) {
  for (const auto& a : chunk_models()) {
    program::Setting s = setting_of(GetParam(), DType::kF32);
    if (a.heads % GetParam().tensor != 0) continue;
    s.purpose = program::Purpose::kEvaluate;
    s.offload = {};
    const auto stages = proved_stages(a, s);
    EXPECT_EQ(program::parse(program::print(stages.front()), "text"), stages.front());
  }
}

std::vector<Layout> chunk_layouts() {
  std::vector<Layout> all{pieces(2, 2),
                          pieces(3, 2),
                          pieces(5, 2, 1, 0, 1),
                          pieces(2, 4, 1, 0, 3),
                          pieces(2, 2, 2, 1),
                          pieces(3, 2, 2, 2, 1),
                          pieces(2, 2, 2, 3, 1),
                          pieces(2, 2).recomputing("full"),
                          pieces(3, 2).recomputing("attention,norm_up,activation/2"),
                          pieces(2, 2, 2, 3).recomputing("out_projection,norm_up")};
  all.push_back(with_stages(pieces(2, 2, 1, 0, 3), 2, ScheduleKind::k1f1b, 1));
  all.push_back(with_stages(pieces(3, 2, 1, 0, 3), 2, ScheduleKind::kInterleaved, 2));
  all.push_back(with_stages(pieces(2, 2, 1, 0, 3), 2, ScheduleKind::kZbH1, 1));
  all.push_back(with_stages(pieces(3, 2, 1, 0, 3).recomputing("full"), 2, ScheduleKind::kZbV, 2));
  all.push_back(with_stages(pieces(2, 2, 2, 2, 3), 2, ScheduleKind::kGpipe, 1));
  all.push_back(shared(pieces(2, 2), program::ContextForm::kGather));
  all.push_back(shared(pieces(3, 2), program::ContextForm::kRing));
  Layout documents = pieces(2, 2);
  documents.documents = true;
  all.push_back(documents);
  Layout host = pieces(3, 2, 2, 1);
  host.offload.optimizer = host.offload.activations = true;
  all.push_back(host);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Matrix, Pieces, ::testing::ValuesIn(suite::covering(chunk_layouts())));

TEST(PiecesSetting, WhatCannotBeCutIsRefused) {
  const auto refused = [](Layout l, const std::string& says) {
    try {
      program::build(llama(false), setting_of(l, DType::kF64));
      ADD_FAILURE() << "built: " << says;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refused(pieces(0, 2), "parallel.tensor_chunks: 1 to 64 pieces, not 0");
  refused(pieces(65, 2), "parallel.tensor_chunks: 1 to 64 pieces, not 65");
  refused(pieces(2, 1), "set parallel.sequence = true");
  Layout whole = pieces(2, 2);
  whole.rows = false;
  refused(whole, "set parallel.sequence = true");
  refused(pieces(24, 2, 1, 0, 2), "46 tokens of a micro-batch in 24 pieces have no row for each of 2 tensor ranks");
}

// --- programs that are broken between two pieces

struct ChunkMutant {
  const char* name;
  // Changes one op. Returns false when the mutant does not apply to this op.
  std::function<bool(Program&, program::Body&, std::size_t)> change;
};

template <class O>
O* op_of(program::Body& body, std::size_t k) {
  return std::get_if<O>(&body.steps[k].op);
}
bool has_pieces(const Compute* c) {
  return c && program::has_halves(c->part);
}
// Sets the access to the gradient. Returns false when the step has no gradient operand or already has this access.
bool access_of_gradient(program::Step& step, program::Access access) {
  if (!step.find(program::Arg::kGrad)) return false;
  return std::exchange(step.operand(program::Arg::kGrad).access, access) != access;
}
int buffer_beside(const Program& p, const std::string& name) {
  return p.find_buffer(name);
}

std::vector<ChunkMutant> chunk_mutants() {
  const auto erase = [](program::Body& body, std::size_t k) {
    body.steps.erase(body.steps.begin() + static_cast<std::ptrdiff_t>(k));
    return true;
  };
  return {
      {"a piece is not gathered",
       [=](Program&, program::Body& b, std::size_t k) {
         const auto* o = op_of<AllGather>(b, k);
         return o && o->portion == 1 && erase(b, k);
       }},
      {"a piece is not summed",
       [=](Program&, program::Body& b, std::size_t k) {
         const auto* o = op_of<ReduceScatter>(b, k);
         return o && o->portion == 1 && erase(b, k);
       }},
      {"a piece is not multiplied",
       [=](Program&, program::Body& b, std::size_t k) {
         const auto* c = op_of<Compute>(b, k);
         return has_pieces(c) && c->portion == 1 && erase(b, k);
       }},
      {"a piece is multiplied twice",
       [](Program&, program::Body& b, std::size_t k) {
         auto* c = op_of<Compute>(b, k);
         if (!has_pieces(c) || c->portion != 1 || !is_backward(c->pass)) return false;
         b.steps.insert(b.steps.begin() + static_cast<std::ptrdiff_t>(k), b.steps[k]);
         return true;
       }},
      {"a product takes another piece",
       [](Program&, program::Body& b, std::size_t k) {
         auto* c = op_of<Compute>(b, k);
         return has_pieces(c) && c->portion == 1 && (c->portion = 0, true);
       }},
      {"a gather brings another piece",
       [](Program&, program::Body& b, std::size_t k) {
         auto* o = op_of<AllGather>(b, k);
         return o && o->portion == 1 && (o->portion = 0, true);
       }},
      {"a sum leaves another piece",
       [](Program&, program::Body& b, std::size_t k) {
         auto* o = op_of<ReduceScatter>(b, k);
         return o && o->portion == 1 && (o->portion = 0, true);
       }},
      {"a product of all rows",
       [](Program&, program::Body& b, std::size_t k) {
         auto* c = op_of<Compute>(b, k);
         return has_pieces(c) && c->portion == 1 && (c->portion = -1, true);
       }},
      {"a sum of all pieces between layers",
       [](Program&, program::Body& b, std::size_t k) {
         auto* o = op_of<ReduceScatter>(b, k);
         return o && o->portion == 1 && o->payload == program::Payload::kMid && (o->portion = -1, true);
       }},
      {"the second piece overwrites the gradient of the first",
       [](Program&, program::Body& b, std::size_t k) {
         auto* c = op_of<Compute>(b, k);
         return has_pieces(c) && c->portion == 1 && is_backward(c->pass) &&
                access_of_gradient(b.steps[k], program::Access::kWrite);
       }},
      {"the first piece adds to the last step's gradient",
       [](Program&, program::Body& b, std::size_t k) {
         auto* c = op_of<Compute>(b, k);
         return has_pieces(c) && c->portion == 0 && is_backward(c->pass) &&
                access_of_gradient(b.steps[k], program::Access::kUpdate);
       }},
      {"a product reads the rows of another piece",
       [](Program& p, program::Body& b, std::size_t k) {
         const auto* c = op_of<Compute>(b, k);
         const int first = buffer_beside(p, "mid_rows.1.part0"), second = buffer_beside(p, "mid_rows.1.part1");
         if (!c || c->portion != 1 || first < 0) return false;
         for (auto& use : b.steps[k].operands)
           if (use.reads() && use.buffer == second) return use.buffer = first, true;
         return false;
       }},
      {"a gather goes before the sum that it needs",
       [](Program&, program::Body& b, std::size_t k) {
         const auto* o = op_of<AllGather>(b, k);
         const auto* before = k > 0 ? op_of<ReduceScatter>(b, k - 1) : nullptr;
         if (!o || !before || o->portion != 1 || before->portion != 1 || o->payload != before->payload) return false;
         std::swap(b.steps[k - 1], b.steps[k]);
         return true;
       }},
      {"a sum waits for nothing",
       [](Program&, program::Body& b, std::size_t k) {
         const auto* o = op_of<ReduceScatter>(b, k);
         return o && o->portion == 1 && !b.steps[k].after.empty() && (b.steps[k].after.clear(), true);
       }},
  };
}

// Edges are computed anew after ops were added or removed, so that stale edges do not reveal a mutant.
TEST(PiecesMutants, TheVerifierRefusesEach) {
  const Program sound = program::build(deep(llama(false)), setting_of(pieces(2, 2), DType::kF64));
  ASSERT_TRUE(program::verify(sound).empty());
  for (const ChunkMutant& m : chunk_mutants()) {
    Program p = sound;
    const bool edges = std::string(m.name) == "a sum waits for nothing";
    if (!edges)
      for (program::Body& body : p.bodies)
        for (program::Step& step : body.steps) step.after.clear();
    program::Body& body = p.bodies.front();
    bool changed = false;
    for (std::size_t k = 0; k < body.steps.size() && !changed; ++k) changed = m.change(p, body, k);
    ASSERT_TRUE(changed) << m.name;
    std::vector<program::Finding> findings;
    try {
      findings = program::verify(edges ? p : program::pass::order_streams(program::pass::costs(p)));
    } catch (const UsageError& error) {
      findings.push_back({error.what()});
    }
    EXPECT_FALSE(findings.empty()) << m.name;
    if (!findings.empty()) fmt::print("{}: {}\n", m.name, findings.front().text);
  }
}

// With split backwards the residual gradient is not added to in place, so its old value is still there for a second
// sum.
TEST(PiecesMutants, ASecondSumOfAPieceIsRefused) {
  for (const std::int64_t chunks : {1, 2}) {
    auto stages = program::build_stages(
        deep(llama(false)),
        setting_of(with_stages(pieces(chunks, 2, 1, 0, 3), 2, ScheduleKind::kZbH1, 1), DType::kF64));
    int mutants = 0;
    for (program::Body& body : stages[0].bodies)
      for (std::size_t k = 0; k < body.steps.size(); ++k) {
        const auto* o = op_of<ReduceScatter>(body, k);
        if (!o || o->payload == program::Payload::kUnit || body.name.rfind("input", 0) != 0) continue;
        Program p = stages[0];
        program::Body& other = p.bodies[static_cast<std::size_t>(&body - stages[0].bodies.data())];
        for (program::Body& b : p.bodies)
          for (program::Step& step : b.steps) step.after.clear();
        other.steps.insert(other.steps.begin() + static_cast<std::ptrdiff_t>(k), other.steps[k]);
        EXPECT_FALSE(program::verify(program::pass::order_streams(program::pass::costs(p))).empty()) << body.name << k;
        ++mutants;
      }
    EXPECT_GT(mutants, 0);
  }
}

// The verifier reports an op without its operands, whatever else it finds.
TEST(PiecesMutants, OperandsThatAreMissingAreFound) {
  const Program sound = program::build(deep(llama(false)), setting_of(pieces(2, 2, 2, 2), DType::kF64));
  for (std::size_t b = 0; b < sound.bodies.size(); ++b)
    for (std::size_t k = 0; k < sound.bodies[b].steps.size(); ++k)
      for (const bool reads : {true, false}) {
        Program p = sound;
        auto& operands = p.bodies[b].steps[k].operands;
        if (b > 0 || std::erase_if(operands, [&](const program::Use& use) { return use.reads() == reads; }) == 0)
          continue;
        EXPECT_FALSE(program::verify(p).empty()) << sound.bodies[b].name << " %" << k;
      }
}

// --- the gain

constexpr double kProduct = 24e-3;  // seconds of each part of a layer; a collective of all rows takes half that time

double seconds_of(const Program& p, const program::Step& step) {
  const double all = kProduct / static_cast<double>(p.setting.tensor_chunks);
  if (const auto* c = std::get_if<Compute>(&step.op)) {
    if (c->layer < 0) return kProduct;
    return c->portion >= 0 ? all : kProduct;
  }
  const auto piece = [&](const auto& o) {
    return o.axis != Axis::kTp || o.payload == program::Payload::kUnit ? 0.0 : (o.portion >= 0 ? all : kProduct) / 2;
  };
  if (const auto* o = std::get_if<AllGather>(&step.op)) return piece(*o);
  if (const auto* o = std::get_if<ReduceScatter>(&step.op)) return piece(*o);
  return 0.0;
}

program::Overlap hidden(std::int64_t chunks) {
  const Program p = program::build(deep(llama(false)), setting_of(pieces(chunks, 2, 1, 0, 12), DType::kF64));
  return hidden_of(p, Axis::kTp, [&](const program::Step& step) { return seconds_of(p, step); });
}

TEST(PiecesOverlap, HideWhatOneLeavesBare) {
  const program::Overlap one = hidden(1), two = hidden(2), four = hidden(4);
  fmt::print("rows in 1, 2, 4 pieces: {:.1f}, {:.1f}, {:.1f} % of {:.2f} s of communication hidden\n",
             100 * one.share(), 100 * two.share(), 100 * four.share(), two.seconds);
  EXPECT_GE(two.share(), one.share() + 0.3);
  EXPECT_GE(four.share(), 0.8);
}

}  // namespace
}  // namespace molen::prove
