// Tests the type checker. Built programs type-check. Each layout of the catalogue of silent wrong gradients that ops
// can express (docs/decisions/0011, slice 7) is refused by op, operand and axis, both by the type checker alone and
// through `verify`.
#include "program/types/check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_sanitized.h"
#include "program/build/build.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

Setting of_mesh(mesh::PerAxis mesh, int zero = 0, bool sequence_parallel = false) {
  Setting s;
  s.mesh = mesh;
  s.zero = zero;
  s.sequence_parallel = sequence_parallel;
  s.micro_batch = 2;
  s.sequence = 48;
  s.head_chunk = 32;
  s.global_batch = 4 * s.data_ranks();
  return s;
}

// Returns the number of ranks along pp, dp_replicate, dp_shard, cp, tp and ep.
mesh::PerAxis ranks_along(int pp, int replicate, int shard, int cp, int tp, int ep = 1) {
  return mesh::PerAxis{{pp, replicate, shard, ep, cp, tp}};
}

arch::Architecture sparse() {
  arch::Architecture a = tiny();
  a.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 20};
  return a;
}

// A model with learned positions and biases, which all tensor ranks hold.
arch::Architecture small_gpt() {
  arch::Architecture a = arch::preset("gpt2");
  a.name = "custom";
  a.layers = 3;
  a.hidden = 24;
  a.ffn = 96;
  a.heads = a.kv_heads = 6;
  a.head_dim = 4;
  a.vocabulary = 53;
  a.max_sequence = 64;
  return a;
}

// 3 tensor ranks do not divide the 2 KV heads of this model, so all of them hold the weights of keys and values.
arch::Architecture shared_keys() {
  arch::Architecture a = tiny();
  a.ffn = 48;
  return a;
}

using Edit = std::function<void(Program&)>;
using Which = std::function<bool(const Program&, const Step&)>;

Which text_with(std::vector<std::string> words) {
  return [=](const Program& p, const Step& step) {
    const std::string text = print_step(p, step);
    return std::all_of(words.begin(), words.end(),
                       [&](const std::string& word) { return text.find(word) != std::string::npos; });
  };
}

// Returns the edit that removes every op whose text holds all words.
Edit dropped(std::vector<std::string> words) {
  return [=](Program& p) {
    int hits = 0;
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = p.bodies[b].steps.size(); k-- > 0;)
        if (text_with(words)(p, p.bodies[b].steps[k])) {
          p = without(p, b, k);
          ++hits;
        }
    MOLEN_CHECK(hits > 0, "no op to drop: {}", words.front());
  };
}

// Returns the edit that changes every op whose text holds all words.
template <class O>
Edit changed(std::vector<std::string> words, std::function<void(O&)> change) {
  return [=](Program& p) {
    int hits = 0;
    for (Body& body : p.bodies)
      for (Step& step : body.steps)
        if (auto* op = std::get_if<O>(&step.op); op && text_with(words)(p, step)) {
          change(*op);
          ++hits;
        }
    MOLEN_CHECK(hits > 0, "no op to change: {}", words.front());
  };
}

// Returns the edit that appends to each body a second copy of every op whose text holds all words. No edge refers to an
// op beyond the end of a body, so all edges stay right.
Edit repeated(std::vector<std::string> words) {
  return [=](Program& p) {
    int hits = 0;
    for (Body& body : p.bodies)
      for (std::size_t k = 0, all = body.steps.size(); k < all; ++k)
        if (text_with(words)(p, body.steps[k])) {
          body.steps.push_back(Step(body.steps[k]));
          ++hits;
        }
    MOLEN_CHECK(hits > 0, "no op to repeat: {}", words.front());
  };
}

// Returns the edit that states another type for an operand, as a user might in the text.
Edit restated(std::vector<std::string> words, Arg arg, mesh::Axis axis, AxisType type) {
  return [=](Program& p) {
    int hits = 0;
    for (Body& body : p.bodies)
      for (Step& step : body.steps)
        if (text_with(words)(p, step) && step.find(arg)) {
          step.operand(arg).type[axis] = type;
          ++hits;
        }
    MOLEN_CHECK(hits > 0, "no operand to state: {}", words.front());
  };
}

// Returns a model with norms of queries and keys, with RoPE after them or without it.
arch::Architecture normed(arch::Position position) {
  arch::Architecture a = tiny();
  a.qk_norm = arch::QkNorm::kHead;
  a.position = position;
  return a;
}

struct Broken {
  std::string row;  // in the catalogue
  arch::Architecture arch;
  Setting setting;
  Edit edit;
  std::string op, operand, axis;  // named by the first error
  std::string why;
};

std::vector<Broken> catalogue() {
  const auto tp = ranks_along(1, 1, 1, 1, 2), tp3 = ranks_along(1, 1, 1, 1, 3), cp = ranks_along(1, 1, 1, 2, 1),
             both = ranks_along(1, 1, 2, 1, 2), dp = ranks_along(1, 1, 2, 1, 1), dp_cp = ranks_along(1, 1, 2, 2, 1);
  return {
      {"Megatron-LM 7452, case 03: the loss is divided by the local count of tokens", tiny(), of_mesh(dp, 0),
       changed<ReduceScalars>({"reduce_scalars axis=dp"}, [](ReduceScalars& o) { o.count = 1; }), "clip_scale",
       "scalars", "dp_shard", "valid_tokens) is partial"},
      {"Megatron-LM 7452, case 06: a projection is reduced over the wrong group", tiny(), of_mesh(both),
       changed<AllReduce>({"all_reduce axis=tp payload=mid"}, [](AllReduce& o) { o.axis = Axis::kDp; }), "all_reduce",
       "to", "dp_shard", "is sharded along batch"},
      {"Megatron-LM 7452, case 10: a second all-reduce in place doubles a gradient", tiny(), of_mesh(tp, 0, true),
       repeated({"all_reduce axis=tp", "[replicated]"}), "all_reduce", "to", "tp", "is invariant"},
      {"Megatron-LM 7452, case 10: a second all-reduce in place doubles a count", tiny(), of_mesh(dp, 1),
       [](Program& p) {
         for (Body& body : p.bodies)
           for (std::size_t k = 0; k < body.steps.size(); ++k)
             if (std::holds_alternative<ReduceScalars>(body.steps[k].op)) {
               body.steps.insert(body.steps.begin() + static_cast<std::ptrdiff_t>(k), Step(body.steps[k]));
               return;
             }
       },
       "reduce_scalars", "scalars", "dp_shard", "is invariant"},
      {"Megatron-LM 1446: the final norm's gradient is not summed over tensor ranks", tiny(), of_mesh(tp, 0, true),
       dropped({"all_reduce axis=tp", "grad.final[replicated]"}), "sum_squares", "grad", "tp",
       "model.norm.weight) is partial"},
      {"Megatron-LM 673, 906: the loss and the gradients are summed over different ranks", tiny(), of_mesh(dp_cp),
       changed<ReduceScalars>({"reduce_scalars axis=dp"}, [](ReduceScalars& o) { o.axis = Axis::kReplicate; }),
       "clip_scale", "scalars", "dp_shard", "loss_sum) is partial"},
      {"Megatron-LM 673, 906, of gradients", tiny(), of_mesh(dp_cp),
       changed<AllReduce>({"all_reduce axis=dp updates=to:grad."}, [](AllReduce& o) { o.axis = Axis::kReplicate; }),
       "sum_squares", "grad", "dp_shard", "is partial"},
      {"Megatron-LM 599, 619: weights that all tensor ranks hold get no sum of their gradients", small_gpt(),
       of_mesh(tp, 0, true), dropped({"all_reduce axis=tp", "grad.embed[replicated]"}), "sum_squares", "grad", "tp",
       "embed_positions.weight) is partial"},
      {"Megatron-LM 599, 619: the weights of a router", sparse(), of_mesh(tp, 0, true),
       dropped({"all_reduce axis=tp", "grad.layer.1[replicated]"}), "sum_squares", "grad", "tp", "is partial"},
      {"torchtitan 2387, 2416: the partial gradient of a router is marked as whole", sparse(), of_mesh(tp, 0, true),
       restated({"backward part=route"}, Arg::kGrad, mesh::Axis::kTp, kInvariant), "backward route", "grad", "tp",
       "where the program states invariant"},
      {"Megatron-LM 7452, case 10: a second all-reduce in place doubles the tokens of each expert", sparse(),
       of_mesh(cp), repeated({"all_reduce axis=cp payload=load"}), "all_reduce", "to", "cp", "is replicated"},
      {"torchtitan 2387, 2416: a partial gradient is marked as whole", tiny(), of_mesh(both),
       restated({"backward part=norm_up"}, Arg::kGrad, mesh::Axis::kTp, kInvariant), "backward norm_up", "grad", "tp",
       "where the program states invariant"},
      {"torchtitan 3412: the head's partial gradient is marked as replicated", tiny(), of_mesh(tp),
       restated({"backward part=head_loss"}, Arg::kDX, mesh::Axis::kTp, kReplicated), "backward head_loss", "d_x", "tp",
       "is partial (a sum is pending) over tp where the program states replicated"},
      {"torchtitan 3412: the sum over tensor ranks behind the head is left out", tiny(), of_mesh(tp),
       dropped({"all_reduce axis=tp payload=d_x layer=3"}), "backward down", "d_y", "tp", "is partial"},
      {"torchtitan 1750: the loss is summed over tensor ranks, too", tiny(), of_mesh(tp),
       changed<ReduceScalars>({"reduce_scalars axis=tp"},
                              [](ReduceScalars& o) {
                                o.first = kLossSum;
                                o.count = 3;
                              }),
       "reduce_scalars", "scalars", "tp", "loss_sum) is invariant"},
      {"verl 6609: the norm counts a gradient once for each context rank", tiny(), of_mesh(cp),
       changed<ReduceScalars>({"reduce_scalars axis=dp"}, [](ReduceScalars& o) { o.count = 3; }), "reduce_scalars",
       "scalars", "cp", "sum_squares) is invariant"},
      {"Pai-Megatron-Patch 254: keys and values that tensor ranks share", shared_keys(), of_mesh(tp3),
       dropped({"all_reduce axis=tp", "grad.layer.1[replicated]"}), "sum_squares", "grad", "tp", "is partial"},
      // These typed moves are not in the catalogue; the edits leave them out or do them twice.
      {"a norm of a partial value", tiny(), of_mesh(tp), dropped({"all_reduce axis=tp payload=x layer=1"}),
       "forward norm_qkv", "x", "tp", "is partial"},
      {"a norm of some rows", tiny(), of_mesh(tp, 0, true),
       [](Program& p) {
         for (Body& body : p.bodies)
           for (Step& step : body.steps)
             if (text_with({"forward part=norm_up"})(p, step))
               step.operand(Arg::kX).buffer = p.buffer(fmt::format("mid.{}", std::get<Compute>(step.op).layer));
       },
       "forward norm_up", "x", "tp", "is sharded along rows"},
      {"an update from a gradient that is not summed", tiny(), of_mesh(dp), dropped({"all_reduce axis=dp", "to:grad."}),
       "sum_squares", "grad", "dp_shard", "is partial"},
      {"a gradient that is summed twice", tiny(), of_mesh(dp), repeated({"all_reduce axis=dp", "to:grad."}),
       "all_reduce", "to", "dp_shard", "is invariant"},
      {"a gradient that is scattered twice", tiny(), of_mesh(dp, 1), repeated({"reduce_scatter axis=dp", "grad.final"}),
       "reduce_scatter", "from", "dp_shard", "is sharded along unit"},
      {"parameters that are not gathered after the update", tiny(), of_mesh(dp, 1),
       dropped({"all_gather axis=dp", "param.layer.1"}), "optimizer_step", "param", "dp_shard", "next step finds"},
      {"parameters that are gathered twice", tiny(), of_mesh(dp, 1), repeated({"all_gather axis=dp", "param.layer.1"}),
       "all_gather", "from", "dp_shard", "is replicated"},
      {"a use of parameters that are sharded", tiny(), of_mesh(dp, 3),
       [](Program& p) {
         for (Body& body : p.bodies)
           for (Step& step : body.steps)
             if (text_with({"forward part=norm_qkv layer=1"})(p, step))
               step.operand(Arg::kParam).buffer = p.buffer("param_shard.layer.1");
       },
       "forward norm_qkv", "param", "dp_shard", "is sharded along unit"},
      {"attention without the keys of other ranks", tiny(), of_mesh(cp),
       [](Program& p) {
         for (Body& body : p.bodies)
           for (Step& step : body.steps)
             if (text_with({"forward part=attention"})(p, step))
               std::erase_if(step.operands, [](const Use& use) { return use.arg == Arg::kKeys; });
       },
       "forward attention", "qkv", "cp", "is sharded along tokens"},
      {"gradients of keys that do not come home", tiny(), of_mesh(cp), dropped({"reduce_scatter axis=cp"}),
       "backward rotate", "d_qkv", "cp", "is partial"},
      {"gradients of keys that do not come home to their norms", normed(arch::Position::kAlibi), of_mesh(cp),
       dropped({"reduce_scatter axis=cp"}), "backward qk_norm", "d_qkv", "cp", "is partial"},
      {"a norm's gradient over a rank's own heads is marked as whole", normed(arch::Position::kRope), of_mesh(tp),
       restated({"backward part=qk_norm"}, Arg::kGrad, mesh::Axis::kTp, kInvariant), "backward qk_norm", "grad", "tp",
       "where the program states invariant"},
  };
}

// Broken programs of pipelines of two stages, with tensor ranks or with a table that both ends share, and of rings.
std::vector<Broken> of_stages_and_rings() {
  Setting first = of_mesh(ranks_along(2, 1, 1, 1, 2)), ring = of_mesh(ranks_along(1, 1, 1, 2, 1));
  ring.context_form = ContextForm::kRing;
  return {
      {"a message of what is still partial", tiny(), first, dropped({"all_reduce axis=tp payload=x layer=2"}), "send",
       "from", "tp", "is partial"},
      {"a table that one end alone updates", tiny(true), of_mesh(ranks_along(2, 1, 1, 1, 1)),
       dropped({"all_reduce axis=embedding"}), "sum_squares", "grad", "pp", "is partial"},
      {"a table that both ends of two stages count twice", tiny(true), of_mesh(ranks_along(2, 1, 1, 1, 1)),
       repeated({"all_reduce axis=embedding"}), "all_reduce", "to", "pp", "is invariant"},
      {"a ring without its last step", tiny(), ring, dropped({"forward part=attention", "step=1"}),
       "forward out_projection", "x", "cp", "is partial"},
      {"gradients of keys that a ring does not bring home", tiny(), ring,
       dropped({"ring_exchange axis=cp payload=d_keys", "step=2"}), "backward rotate", "d_qkv", "cp", "is partial"},
  };
}

std::vector<Broken> of_expert_ranks() {
  const Setting whole = of_mesh(ranks_along(1, 1, 1, 1, 1, 2)), shared = of_mesh(ranks_along(1, 1, 2, 1, 1, 2));
  return {
      {"experts on the rows of the rank's own tokens", sparse(), whole,
       [](Program& p) {
         for (Body& body : p.bodies)
           for (Step& step : body.steps)
             if (text_with({"forward part=expert_up"})(p, step))
               step.operand(Arg::kX).buffer = p.buffer(fmt::format("expert_rows.{}", std::get<Compute>(step.op).layer));
       },
       "forward expert_up", "x", "ep", "is sharded along batch"},
      {"what the experts make does not come home", sparse(), whole,
       [](Program& p) {
         for (Body& body : p.bodies)
           for (Step& step : body.steps)
             if (text_with({"forward part=combine"})(p, step)) step.operand(Arg::kX).buffer = p.buffer("rank_out");
       },
       "forward combine", "x", "ep", "is sharded along experts"},
      {"the offsets of this rank stand for those of all", sparse(), whole,
       [](Program& p) {
         for (Body& body : p.bodies)
           for (Step& step : body.steps)
             if (const auto* o = std::get_if<AllToAll>(&step.op))
               step.operand(Arg::kOffsets).buffer = p.buffer(fmt::format("offsets.{}", o->layer));
       },
       "all_to_all", "offsets", "ep", "is sharded along batch"},
      {"the gradients of different experts are summed", sparse(), shared,
       changed<AllReduce>({"all_reduce axis=expert_dp", "grad.layer.1.experts"},
                          [](AllReduce& o) { o.axis = Axis::kDp; }),
       "all_reduce", "to", "ep", "is sharded along experts"},
      {"the gradient of a router is not summed over expert ranks", sparse(), shared,
       changed<AllReduce>({"all_reduce axis=dp", "to:grad.layer.1{"}, [](AllReduce& o) { o.axis = Axis::kExpertDp; }),
       "sum_squares", "grad", "ep", "is partial"},
      {"the norm has the squares of one rank's experts", sparse(), whole, dropped({"reduce_scalars axis=ep"}),
       "clip_scale", "scalars", "ep", "sum_squares) is partial"},
  };
}

bool names(const std::string& error, const Broken& b) {
  return error.find(b.op) != std::string::npos && error.find("operand " + b.operand + " (") != std::string::npos &&
         error.find(" over " + b.axis) != std::string::npos && error.find(b.why) != std::string::npos;
}

TEST(Types, EachRowOfTheCatalogueIsRefusedByOpOperandAndAxis) {
  std::vector<Broken> all_broken = catalogue();
  for (Broken& b : of_stages_and_rings()) all_broken.push_back(std::move(b));
  for (Broken& b : of_expert_ranks()) all_broken.push_back(std::move(b));
  for (const Broken& b : all_broken) {
    SCOPED_TRACE(b.row);
    Program p = build(b.arch, b.setting);
    ASSERT_TRUE(type_errors(p).empty()) << type_errors(p).front();
    b.edit(p);
    const std::vector<std::string> errors = type_errors(p);
    ASSERT_FALSE(errors.empty());
    Program unstated = p;  // has the same errors, but for those about what a program states
    for (Body& body : unstated.bodies)
      for (Step& step : body.steps)
        for (Use& use : step.operands) use.type = {};
    unstated.states_types = false;
    const bool stated = errors.front().find("where the program states") != std::string::npos;
    EXPECT_EQ(type_errors(unstated), stated ? std::vector<std::string>{} : errors);
    EXPECT_TRUE(names(errors.front(), b)) << errors.front();
    std::string all;
    for (const Finding& finding : verify(p)) all += finding.text + "\n";
    EXPECT_NE(all.find(errors.front()), std::string::npos) << all;
  }
}

// A gradient is summed over two axes after the first micro-batch. The backward of the second micro-batch then adds
// terms that are partial over both axes. An op reports each axis once, however many parameters the op has.
TEST(Types, OfASumAreRefusedOnEachAxis) {
  Program p = build(tiny(), of_mesh(ranks_along(1, 1, 2, 1, 2), 0, true));
  std::vector<Step> sums;
  for (const Body& body : p.bodies)
    for (const Step& step : body.steps)
      if (text_with({"all_reduce", "updates=to:grad.layer.1"})(p, step)) sums.push_back(step);
  ASSERT_EQ(sums.size(), 2u);
  Body& first = p.bodies.at(static_cast<std::size_t>(p.schedule.front().body));
  first.steps.insert(first.steps.end(), sums.begin(), sums.end());
  std::vector<std::string> axes;
  for (const std::string& error : type_errors(p))
    for (const char* axis : {"dp_shard", "tp"})
      if (error.find("(backward norm_up, layer 1, micro-batch 1): the operand grad") != std::string::npos &&
          error.find(fmt::format("invariant over {}, and the op adds to it what is partial", axis)) !=
              std::string::npos)
        axes.emplace_back(axis);
  EXPECT_EQ(axes, (std::vector<std::string>{"dp_shard", "tp"}));
}

// The types that a text states are compared with the types that follow from its ops.
TEST(Types, OfTextsAreParsedAndChecked) {
  const Program p = build(tiny(), of_mesh(ranks_along(1, 1, 2, 1, 2)));
  const std::string text = print(p);
  EXPECT_EQ(parse(text, "text"), p);
  const auto says = [&](const std::string& from, const std::string& to) {
    return refusal(rewrite(text, {"forward part=out_projection layer=1"}, from, to));
  };
  const std::string sum = "y:mid.1{dp_shard=shard:batch;tp=partial}";
  EXPECT_NE(
      says(sum, "y:mid.1{dp_shard=shard:batch}")
          .find("the operand y (mid.1) is partial (a sum is pending) over tp where the program states replicated"),
      std::string::npos);
  EXPECT_NE(says(sum, "y:mid.1{dp_shard=shard:tokens;tp=partial}")
                .find("is sharded along batch over dp_shard where the program states sharded along tokens"),
            std::string::npos);
  for (const auto& [stated, why] : std::vector<std::pair<std::string, std::string>>{
           {"{tp=part}", "unknown type 'part'"},
           {"{tp=shard}", "unknown type 'shard'"},
           {"{tp=shard:}", "unknown type 'shard:'"},
           {"{tp=partial:rows}", "unknown type 'partial:rows'"},
           {"{tp}", "expected AXIS=TYPE, got 'tp'"},
           {"{}", "expected AXIS=TYPE, got ''"},
           {"{tpp=partial}", "no mesh axis 'tpp'"},
           {"{cp=partial}", "there is one rank along cp, which needs no type"},
           {"{tp=partial;tp=varying}", "the axis tp appears twice"}})
    EXPECT_NE(says(sum, "y:mid.1" + stated).find(why), std::string::npos) << says(sum, "y:mid.1" + stated);
}

// Types follow from the ops, the grid and the buffers alone.
TEST(Types, AreInferredWithoutTheSetting) {
  Setting s = of_mesh(ranks_along(2, 1, 2, 2, 2), 2, true);
  s.tensor_chunks = 2;
  const Program p = build(small_gpt(), s);
  Program q = p;
  q.setting = {};
  EXPECT_TRUE(type_errors(q).empty()) << type_errors(q).front();
  EXPECT_EQ(with_types(q).bodies, p.bodies);
}

// Stages are built without types where the check infers them anyway.
TEST(Types, MayBeLeftOutOfStages) {
  const Setting s = of_mesh(ranks_along(2, 1, 2, 1, 2), 2, true);
  const std::vector<Program> with = build_stages(tiny(), s), without = build_stages(tiny(), s, nullptr, false);
  ASSERT_EQ(with.size(), without.size());
  for (std::size_t stage = 0; stage < with.size(); ++stage) {
    EXPECT_TRUE(verify(without[stage]).empty());
    Program typed = with_types(without[stage]);
    EXPECT_NE(typed, without[stage]);
    typed.states_types = true;
    EXPECT_EQ(typed, with[stage]);
    Program claims = without[stage];  // types that are missing are no types that fit
    claims.states_types = true;
    EXPECT_FALSE(verify(claims).empty());
  }
}

// An operand that no rule of its op names is refused.
TEST(Types, OfAnOperandWithoutARuleAreRefused) {
  Program p = build(tiny(), of_mesh(ranks_along(1, 1, 1, 1, 2)));
  for (Step& step : p.bodies.front().steps)
    if (text_with({"forward part=activation layer=0"})(p, step)) step.operand(Arg::kX).arg = Arg::kLse;
  const auto errors = type_errors(p);
  ASSERT_FALSE(errors.empty());
  EXPECT_NE(errors.front().find("forward activation, layer 0"), std::string::npos) << errors.front();
  EXPECT_NE(errors.front().find("the operand lse (up.0) is of no rule of the op"), std::string::npos);
}

}  // namespace
}  // namespace molen::program
