// Tests the parts of ranks that share sequences: their assembled results are compared with whole sequences in double.
// The tests cover attention over gathered keys and as a ring, with and without documents, on every set of kernels, with
// exactly the declared scratch. They also cover embedding and RoPE at the rank's positions.
#include "model/context.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "arch/context_parallel.h"
#include "base/error.h"
#include "math/allocation.h"
#include "math/test_close.h"
#include "model/test_attention.h"
#include "program/parts/context_attention.h"
#include "program/parts/part.h"

namespace molen::model {
namespace {

using arch::Kernels;
using arch::Pass;
using math::testing::Bound;
using math::testing::close;
using i64 = std::int64_t;

// Runs a call as the executor runs an op: ATen allocates from the op's scratch or, with other kernels, not at all.
template <class F>
void run_as_op(Kernels kernels, math::Scratch& scratch, F&& call) {
  math::AllocationGuard::install();
  const i64 before = math::AllocationGuard::unserved();
  {
    const math::AllocationGuard guard(kernels == Kernels::kAten ? &scratch : nullptr);
    call();
  }
  EXPECT_EQ(math::AllocationGuard::unserved() - before, 0) << "allocated beside the op's scratch";
}

struct Outcome {  // for whole sequences, [B * S, ...]
  at::Tensor o, lse, d_qkv;
};

struct Rank {
  Runs runs;
  at::Tensor qkv, d_o, starts, kv, o, lse, d_qkv, d_kv;
};

// The inverse of take_rows.
void put_rows(i64 batch, const Runs& runs, const at::Tensor& rows, at::Tensor& all) {
  at::Tensor places = at::empty({rows.size(0)}, at::kLong);
  take_rows(batch, runs, at::arange(all.size(0)), places);
  all.index_copy_(0, places, rows.to(all.scalar_type()));
}

enum class Form { kGathered, kRing, kWideRing };

class Ranks {
 public:
  Ranks(const arch::Architecture& a, const AttentionPath& path, const AttentionOperands& in, int count, Form form)
      : a_(a), path_(path), in_(in), form_(form) {
    const at::ScalarType type = scalar_type(path.compute), out = form == Form::kWideRing ? wide_of(path) : type;
    const auto nan = [](at::IntArrayRef shape, at::ScalarType t) { return at::full(shape, NAN, t); };
    for (int r = 0; r < count; ++r) {
      Rank k;
      k.runs = arch::context_runs(in.S, r, count);
      const i64 rows = in.B * count_positions(k.runs);
      k.qkv = nan({rows, a.qkv_size()}, type), k.d_o = nan({rows, a.query_size()}, type);
      take_rows(in.B, k.runs, in.qkv, k.qkv);
      take_rows(in.B, k.runs, in.d_o, k.d_o);
      if (in.starts.defined()) {
        k.starts = at::empty({rows}, at::kInt);
        take_rows(in.B, k.runs, in.starts, k.starts);
      }
      k.kv = key_value_columns(context(k, scratch_), k.qkv);
      k.o = nan({rows, a.query_size()}, out), k.d_qkv = nan({rows, a.qkv_size()}, out);
      k.lse = nan({in.B, a.heads, rows / in.B}, wide_of(path));
      k.d_kv = nan({rows, k.kv.size(1)}, out);
      ranks_.push_back(k);
    }
  }

  Outcome run() {
    form_ == Form::kGathered ? gathered() : ring();
    const auto n = in_.B * in_.S;
    Outcome all{at::full({n, a_.query_size()}, NAN, ranks_[0].o.options()),
                at::full({n, a_.heads}, NAN, ranks_[0].lse.options()),
                at::full({n, a_.qkv_size()}, NAN, ranks_[0].d_qkv.options())};
    for (Rank& k : ranks_) {
      key_value_columns(context(k, scratch_), k.d_qkv).copy_(k.d_kv);
      put_rows(in_.B, k.runs, k.o, all.o);
      put_rows(in_.B, k.runs, k.lse.transpose(1, 2).reshape({-1, a_.heads}), all.lse);
      put_rows(in_.B, k.runs, k.d_qkv, all.d_qkv);
    }
    return all;
  }

 private:
  Context context(const Rank& k, math::Scratch& scratch) const {
    arch::PartShape shape{in_.B, count_positions(k.runs), 0, path_.compute, 2, path_.kernels};
    return with_slopes(
        {a_, shape, scratch, true, {}, arch::Pass::kBackward, k.runs, k.starts.defined() ? &k.starts : nullptr});
  }
  // Runs an op with exactly the scratch that is declared for it.
  template <class F>
  void op(const Rank& k, Pass pass, const Runs& keys, bool adds, const F& f) {
    const Context sizes = context(k, scratch_);
    const bool wide = form_ == Form::kWideRing;
    Workspace w(program::context_attention_cost(a_, pass, sizes.shape, {k.runs, keys, adds, wide}).scratch.value);
    run_as_op(path_.kernels, w.scratch, [&] { f(context(k, w.scratch)); });
    EXPECT_EQ(w.scratch.high_water(), w.scratch.capacity());
  }

  void gathered() {
    const i64 n = in_.B * in_.S, width = ranks_[0].kv.size(1);
    const Runs all{{0, in_.S}};
    at::Tensor kv = at::full({n, width}, NAN, ranks_[0].kv.options()), sums = at::zeros({n, width}, at::kDouble);
    for (const Rank& k : ranks_) put_rows(in_.B, k.runs, k.kv, kv);
    for (Rank& k : ranks_) {
      op(k, Pass::kForward, all, false,
         [&](const Context& c) { context_attention_forward(c, k.qkv, kv, all, true, k.o, k.lse); });
      at::Tensor d_kv = at::full({n, width}, NAN, k.d_kv.options());
      op(k, Pass::kBackward, all, false, [&](const Context& c) {
        context_attention_backward(c, k.d_o, k.qkv, kv, all, k.o, k.lse, false, false, k.d_qkv, d_kv);
      });
      sums += d_kv.to(at::kDouble);
    }
    for (Rank& k : ranks_) take_rows(in_.B, k.runs, sums, k.d_kv);
  }

  // At step s, rank r has the keys of rank r + s; their gradients travel with them.
  void ring() {
    const std::size_t count = ranks_.size();
    const auto each = [&](const auto& f) {
      for (std::size_t step = 0; step < count; ++step)
        for (std::size_t r = 0; r < count; ++r) f(ranks_[r], ranks_[(r + step) % count], step > 0);
    };
    each([&](Rank& k, Rank& from, bool adds) {
      op(k, Pass::kForward, from.runs, adds,
         [&](const Context& c) { context_attention_forward(c, k.qkv, from.kv, from.runs, !adds, k.o, k.lse); });
    });
    each([&](Rank& k, Rank& from, bool adds) {
      op(k, Pass::kBackward, from.runs, adds, [&](const Context& c) {
        context_attention_backward(c, k.d_o, k.qkv, from.kv, from.runs, k.o, k.lse, adds, adds, k.d_qkv, from.d_kv);
      });
    });
  }

  const arch::Architecture& a_;
  const AttentionPath& path_;
  const AttentionOperands& in_;
  Form form_;
  math::Scratch scratch_;
  std::vector<Rank> ranks_;
};

// Returns the result of parts.h for whole sequences in double, without ranks.
Outcome whole(const arch::Architecture& a, const AttentionPath& path, const AttentionOperands& in) {
  const at::Tensor qkv = in.qkv.to(at::kDouble), d_o = in.d_o.to(at::kDouble);
  Outcome out{at::full({in.B * in.S, a.query_size()}, NAN, at::kDouble),
              at::full({in.B, a.heads, in.S}, NAN, at::kDouble),
              at::full({in.B * in.S, a.qkv_size()}, NAN, at::kDouble)};
  Workspace w(std::int64_t{1} << 20);
  Context c = with_slopes({a, {in.B, in.S, 0, DType::kF64, 2, Kernels::kReference}, w.scratch, true});
  if (in.starts.defined()) c.document_start = &in.starts;
  attention_forward(c, qkv, out.o, out.lse);
  w.scratch.reset();
  attention_backward(c, d_o, qkv, out.o, out.lse, out.d_qkv);
  out.lse = out.lse.transpose(1, 2).reshape({-1, a.heads});
  return out;
}

void expect_close(const Outcome& got, const Outcome& want, const AttentionPath& path, i64 length, double steps) {
  EXPECT_TRUE(close(doubles_of(got.o), doubles_of(want.o), {path.roundoff, length, 8 * steps, 1.0})) << "o";
  EXPECT_TRUE(close(doubles_of(got.lse), doubles_of(want.lse), {path.roundoff, length, 8 * steps, 1.0})) << "lse";
  EXPECT_TRUE(close(doubles_of(got.d_qkv), doubles_of(want.d_qkv), {path.roundoff, length, 16 * steps, 1.0}))
      << "d_qkv";
}

class ContextParts : public ::testing::TestWithParam<AttentionPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, ContextParts, ::testing::ValuesIn(kAttentionPaths),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ContextParts, AttentionOfRanksTogetherIsTheWhole) {
  const c10::InferenceMode inference;
  const AttentionPath& path = GetParam();
  for (const auto& a : {test_architectures()[0], test_architectures()[2]})  // grouped queries; ALiBi
    for (const bool documents : {false, true}) {
      const AttentionOperands in(a, path, 3, 23, documents);
      const Outcome want = whole(a, path, in);
      for (const int ranks : {1, 2, 3, 4})
        for (const Form form : {Form::kGathered, Form::kRing, Form::kWideRing}) {
          if (form == Form::kWideRing && !narrow(path)) continue;
          SCOPED_TRACE(testing::Message() << a.name << (documents ? " documents " : " ") << ranks << " ranks, form "
                                          << static_cast<int>(form));
          // Each step of a ring in a narrow type rounds its results once more.
          const double steps = form == Form::kRing && narrow(path) ? ranks : 1;
          expect_close(Ranks(a, path, in, ranks, form).run(), want, path, in.S + 2 * a.head_dim, steps);
        }
    }
}

// Whole sequences with several documents give the same results as each document run as a sequence of its own. The op
// takes as much scratch as attention without documents.
TEST_P(ContextParts, DocumentsAreSequencesOfTheirOwn) {
  const c10::InferenceMode inference;
  const AttentionPath& path = GetParam();
  for (const auto& a : {test_architectures()[0], test_architectures()[2]}) {
    const AttentionOperands in(a, path, 3, 23, true);
    Outcome want{at::full({69, a.query_size()}, NAN, at::kDouble), at::full({69, a.heads}, NAN, at::kDouble),
                 at::full({69, a.qkv_size()}, NAN, at::kDouble)};
    const auto* starts = in.starts.data_ptr<std::int32_t>();
    int count = 0;
    for (i64 first = 0, last = 0; first < 69; first = last, ++count) {
      for (last = first + 1; last < 69 && last % 23 != 0 && starts[last] == starts[first];) ++last;
      AttentionOperands one(a, path, 1, last - first, false);
      one.qkv = in.qkv.narrow(0, first, last - first), one.d_o = in.d_o.narrow(0, first, last - first);
      const Outcome of_one = whole(a, path, one);
      want.o.narrow(0, first, last - first).copy_(of_one.o);
      want.lse.narrow(0, first, last - first).copy_(of_one.lse);
      want.d_qkv.narrow(0, first, last - first).copy_(of_one.d_qkv);
    }
    EXPECT_GT(count, 9);
    const at::ScalarType type = scalar_type(path.compute);
    Outcome got{at::full({69, a.query_size()}, NAN, type), at::full({3, a.heads, 23}, NAN, wide_of(path)),
                at::full({69, a.qkv_size()}, NAN, type)};
    arch::PartShape shape{3, 23, 0, path.compute, 2, path.kernels};
    shape.documents = true;
    const auto op = [&](Pass pass, const auto& f) {
      Workspace w(program::part_cost(a, arch::Part::kAttention, pass, shape).scratch.value);
      run_as_op(path.kernels, w.scratch, [&] {
        f(with_slopes({a, shape, w.scratch, true, {}, arch::Pass::kBackward, {}, &in.starts}));
      });
    };
    op(Pass::kForward, [&](const Context& c) { attention_forward(c, in.qkv, got.o, got.lse); });
    op(Pass::kBackward, [&](const Context& c) { attention_backward(c, in.d_o, in.qkv, got.o, got.lse, got.d_qkv); });
    got.lse = got.lse.transpose(1, 2).reshape({-1, a.heads});
    expect_close(got, want, path, 23 + 2 * a.head_dim, 1);
  }
}

// A rank whose positions reach beyond the table of learned positions would read and write other memory.
TEST_P(ContextParts, PositionsBeyondTheTableAreAnError) {
  const c10::InferenceMode inference;
  const AttentionPath& path = GetParam();
  const at::ScalarType type = scalar_type(path.compute), wide = wide_of(path);
  const i64 B = 2, S = 23, ranks = 2;
  const arch::Architecture a = test_architectures()[1];
  ASSERT_GT(a.hidden, S) << "the table is wider than the sequence is long, so that its width is no limit";
  const Runs runs = arch::context_runs(S, 0, ranks);  // the first and the last positions
  const i64 n = B * count_positions(runs);
  Workspace w(std::int64_t{1} << 22);
  const Context c{a, {B, n / B, 0, path.compute, 2, path.kernels}, w.scratch, false, {}, arch::Pass::kBackward, runs};
  const at::Tensor ids = random_ids(n, a.vocabulary, 0, "ids"),
                   table = random_normal({a.vocabulary, a.hidden}, "t", 1).to(type),
                   d_x = random_normal({n, a.hidden}, "dx", 1).to(type);
  for (const i64 rows : {S, S - 1}) {
    const at::Tensor learned = random_normal({rows, a.hidden}, "p", 1).to(type);
    at::Tensor x = at::empty({n, a.hidden}, type), d_table = at::zeros({a.vocabulary, a.hidden}, wide),
               d_learned = at::zeros({rows, a.hidden}, wide);
    const auto forward = [&] { embed_forward(c, ids, table, learned, x); };
    const auto backward = [&] { embed_backward(c, ids, d_x, d_table, d_learned); };
    if (rows == S) {
      EXPECT_NO_THROW(forward());
      EXPECT_NO_THROW(backward());
    } else {
      EXPECT_THROW(forward(), Error);
      EXPECT_THROW(backward(), Error);
    }
  }
}

// The parts that treat each row independently (all but attention) give the same bits at the ranks' positions as in
// whole sequences.
TEST_P(ContextParts, PositionsOfRanksAreThoseOfTheWhole) {
  const c10::InferenceMode inference;
  const AttentionPath& path = GetParam();
  const at::ScalarType type = scalar_type(path.compute), wide = wide_of(path);
  const i64 B = 3, S = 23, n = B * S;
  Workspace w(std::int64_t{1} << 22);
  for (const auto& a : {test_architectures()[0], test_architectures()[1]}) {  // RoPE; learned positions
    const i64 d = a.hidden;
    const at::Tensor ids = random_ids(n, a.vocabulary, 0, "ids"),
                     table = random_normal({a.vocabulary, d}, "t", 1).to(type);
    const at::Tensor x = random_normal({n, d}, "x", 1).to(type), d_x = random_normal({n, d}, "dx", 1).to(type),
                     d_qkv = random_normal({n, a.qkv_size()}, "dqkv", 1).to(type);
    at::Tensor learned;
    if (a.position == arch::Position::kLearned) learned = random_normal({a.max_sequence, d}, "p", 1).to(type);
    const NormWeights norm{random_normal({d}, "nw", 1).to(type),
                           a.norm == arch::Norm::kLayer ? random_normal({d}, "nb", 1).to(type) : at::Tensor()};
    const Linear qkv{random_normal({a.qkv_size(), d}, "w", 0.2).to(type),
                     a.biases ? random_normal({a.qkv_size()}, "b", 1).to(type) : at::Tensor()};
    struct Out {
      at::Tensor embedded, qkv, d_x, d_table, d_positions, d_weight;
    };
    // Computes a rank's rows or, without runs, all rows.
    const auto compute = [&](const Runs& runs, const at::Tensor& its_ids, const at::Tensor& its_x,
                             const at::Tensor& its_d_x, const at::Tensor& its_d_qkv) {
      const i64 rows = its_x.size(0);
      const Context c{a,   {B, rows / B, 0, path.compute, 2, path.kernels}, w.scratch, false, {}, arch::Pass::kBackward,
                      runs};
      const RopeTable rope =
          runs.empty() ? make_rope_table(a, S, wide, at::kCPU) : make_rope_table(a, runs, wide, at::kCPU);
      const auto nan = [&](at::IntArrayRef shape, at::ScalarType t) { return at::full(shape, NAN, t); };
      Out out{nan({rows, d}, type),
              nan({rows, a.qkv_size()}, type),
              its_d_x.clone(),
              nan({a.vocabulary, d}, wide),
              learned.defined() ? nan({a.max_sequence, d}, wide) : at::Tensor(),
              nan({a.qkv_size(), d}, wide)};
      NormSaved saved{nan({rows}, wide), a.norm == arch::Norm::kRms ? at::Tensor() : nan({rows}, wide)};
      NormWeights d_norm{nan({d}, wide), norm.bias_d.defined() ? nan({d}, wide) : at::Tensor()};
      Linear d_linear{out.d_weight, a.biases ? nan({a.qkv_size()}, wide) : at::Tensor()};
      const auto op = [&](const auto& f) {
        w.scratch.reset();
        f();
      };
      op([&] { embed_forward(c, its_ids, table, learned, out.embedded); });
      op([&] { embed_backward(c, its_ids, its_d_x, out.d_table, out.d_positions); });
      op([&] { norm_qkv_forward(c, its_x, norm, qkv, saved, out.qkv); });
      if (rope.cos_SD2.defined()) op([&] { rotate(c, rope, false, out.qkv); });
      at::Tensor turned = its_d_qkv.clone();
      if (rope.cos_SD2.defined()) op([&] { rotate(c, rope, true, turned); });
      op([&] { norm_qkv_backward(c, turned, its_x, saved, norm, qkv, out.d_x, d_norm, d_linear); });
      return out;
    };
    const Out want = compute({}, ids, x, d_x, d_qkv);
    for (const int ranks : {1, 2, 3, 4}) {
      Out all{at::full_like(want.embedded, NAN),
              at::full_like(want.qkv, NAN),
              at::full_like(want.d_x, NAN),
              at::zeros_like(want.d_table),
              learned.defined() ? at::zeros_like(want.d_positions) : at::Tensor(),
              at::zeros_like(want.d_weight)};
      for (int r = 0; r < ranks; ++r) {
        const Runs runs = arch::context_runs(S, r, ranks);
        const auto mine = [&](const at::Tensor& t) {
          std::vector<i64> shape = t.sizes().vec();
          shape[0] = B * count_positions(runs);
          at::Tensor rows = at::empty(shape, t.options());
          take_rows(B, runs, t, rows);
          return rows;
        };
        const Out part = compute(runs, mine(ids), mine(x), mine(d_x), mine(d_qkv));
        put_rows(B, runs, part.embedded, all.embedded);
        put_rows(B, runs, part.qkv, all.qkv);
        put_rows(B, runs, part.d_x, all.d_x);
        all.d_table += part.d_table, all.d_weight += part.d_weight;
        if (learned.defined()) all.d_positions += part.d_positions;
      }
      const auto same = [&](const at::Tensor& got, const at::Tensor& expected, double c, i64 length, const char* what) {
        EXPECT_TRUE(close(doubles_of(got), doubles_of(expected), {path.roundoff, length, c, 1.0}))
            << a.name << " " << ranks << " ranks: " << what;
      };
      EXPECT_TRUE(at::equal(all.embedded, want.embedded));
      same(all.qkv, want.qkv, 8, d, "qkv");  // the rounding of a product depends on its number of rows
      same(all.d_x, want.d_x, 8, a.qkv_size(), "d_x");
      same(all.d_table, want.d_table, 4, n, "d_table");
      same(all.d_weight, want.d_weight, 8, n, "d_weight");
      if (learned.defined()) {
        same(all.d_positions, want.d_positions, 4, n, "d_positions");
      }
    }
  }
}

TEST(ContextRefusals, WhatDoesNotFitTogether) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  Workspace w(std::int64_t{1} << 20);
  const AttentionOperands in(a, kAttentionPaths[2], 2, 8, true);
  const Runs all{{0, 8}}, half{{0, 2}, {6, 8}};
  at::Tensor o = at::empty({16, a.query_size()}, at::kFloat), lse = at::empty({2, a.heads, 8}, at::kFloat);
  const auto attention = [&](const Context& c, const Runs& keys) {
    w.scratch.reset();
    context_attention_forward(c, in.qkv, key_value_columns(c, in.qkv), keys, true, o, lse);
  };
  const arch::PartShape shape{2, 8, 0, DType::kF32, 1, Kernels::kFused};
  const Context good{a, shape, w.scratch, true, {}, arch::Pass::kBackward, {}, &in.starts};
  EXPECT_NO_THROW(attention(good, all));
  EXPECT_THROW(attention(good, half), Error);
  EXPECT_THROW(attention({a, shape, w.scratch, true, {}, arch::Pass::kBackward, half}, all), Error);
  const at::Tensor falling = in.starts.flip({0}).contiguous(), few = in.starts.narrow(0, 0, 8);
  EXPECT_THROW(attention({a, shape, w.scratch, true, {}, arch::Pass::kBackward, {}, &falling}, all), Error);
  EXPECT_THROW(attention({a, shape, w.scratch, true, {}, arch::Pass::kBackward, {}, &few}, all), Error);
  // The reference refuses the same documents as the fused kernels, which check documents themselves.
  arch::PartShape reference = shape;
  reference.kernels = Kernels::kReference;
  EXPECT_NO_THROW(attention({a, reference, w.scratch, true, {}, arch::Pass::kBackward, {}, &in.starts}, all));
  EXPECT_THROW(attention({a, reference, w.scratch, true, {}, arch::Pass::kBackward, {}, &falling}, all), Error);
  arch::PartShape narrow_shape = shape;
  narrow_shape.compute = DType::kBF16;
  EXPECT_THROW(attention({a, narrow_shape, w.scratch, true}, all), Error);
  // RoPE's table for whole sequences is refused for the rows of a rank.
  const arch::PartShape rank{2, 4, 0, DType::kF32, 1, Kernels::kFused};
  const RopeTable whole_table = make_rope_table(a, 8, at::kFloat, at::kCPU);
  at::Tensor qkv = at::empty({8, a.qkv_size()}, at::kFloat);
  w.scratch.reset();
  EXPECT_THROW(rotate({a, rank, w.scratch, true, {}, arch::Pass::kBackward, half}, whole_table, false, qkv), Error);
  at::Tensor few_rows = at::empty({7, 5}, at::kFloat);
  EXPECT_THROW(take_rows(2, half, at::empty({16, 5}, at::kFloat), few_rows), Error);
}

}  // namespace
}  // namespace molen::model
