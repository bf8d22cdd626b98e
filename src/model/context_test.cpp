// The parts of ranks that share sequences, put together again, beside whole sequences in double: attention over
// gathered keys and as a ring, with and without documents, on every set of kernels, on exactly the scratch that is
// declared; embedding and RoPE at the rank's positions; the form for devices.
#include "model/context.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "arch/context_parallel.h"
#include "base/error.h"
#include "math/allocation.h"
#include "math/test_close.h"
#include "model/context_aten.h"
#include "model/test_model.h"

namespace molen::model {
namespace {

using arch::Kernels;
using arch::Pass;
using math::testing::Bound;
using math::testing::close;
using i64 = std::int64_t;
using Runs = std::vector<PositionRun>;

struct Path {
  const char* name;
  Kernels kernels;
  DType compute;
  double roundoff;
};
const Path kOracle{"reference_fp64", Kernels::kReference, DType::kF64, 0x1p-53};
const Path kPaths[] = {kOracle,
                       {"reference_fp32", Kernels::kReference, DType::kF32, 0x1p-24},
                       {"fused_fp32", Kernels::kFused, DType::kF32, 0x1p-24},
                       {"aten_fp64", Kernels::kAten, DType::kF64, 0x1p-53},
                       {"aten_fp32", Kernels::kAten, DType::kF32, 0x1p-24},
                       {"aten_bf16", Kernels::kAten, DType::kBF16, 0x1p-8},
                       {"aten_fp16", Kernels::kAten, DType::kF16, 0x1p-11}};

at::ScalarType wide_of(const Path& path) {
  return path.compute == DType::kF64 ? at::kDouble : at::kFloat;
}
bool narrow(const Path& path) {
  return path.compute == DType::kBF16 || path.compute == DType::kF16;
}
std::vector<double> values(const at::Tensor& t) {
  const at::Tensor wide = t.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

// As the executor runs an op: ATen allocates from its scratch or, elsewhere, not at all.
template <class F>
void guarded(Kernels kernels, math::Scratch& scratch, F&& call) {
  math::AllocationGuard::install();
  const i64 before = math::AllocationGuard::unserved();
  {
    const math::AllocationGuard guard(kernels == Kernels::kAten ? &scratch : nullptr);
    call();
  }
  EXPECT_EQ(math::AllocationGuard::unserved() - before, 0) << "allocated beside the op's scratch";
}

// Operands of whole sequences, as the path's dtype rounds them.
struct Operands {
  Operands(const arch::Architecture& a, const Path& path, i64 batch, i64 sequence, bool documents)
      : B(batch), S(sequence) {
    const at::ScalarType type = scalar_type(path.compute);
    qkv = random_normal({B * S, a.qkv_size()}, "context qkv", 1.0).to(type);
    d_o = random_normal({B * S, a.query_size()}, "context d_o", 1.0).to(type);
    if (!documents) return;
    starts = at::zeros({B * S}, at::kInt);
    for (i64 b = 0, start = 0, left = 0; b < B; ++b, left = 0)
      for (i64 i = 0; i < S; ++i, --left) {
        if (left == 0) start = i, left = 1 + (i * 7 + b * 5 + 3) % (S / 2);
        starts.data_ptr<std::int32_t>()[b * S + i] = static_cast<std::int32_t>(start);
      }
  }
  i64 B, S;
  at::Tensor qkv, d_o, starts;
};

struct Outcome {  // of whole sequences, [B * S, ...]
  at::Tensor o, lse, d_qkv;
};

struct Rank {
  Runs runs;
  at::Tensor qkv, d_o, starts, kv, o, lse, d_qkv, d_kv;
};

// The reverse of take_rows.
void put_rows(i64 batch, const Runs& runs, const at::Tensor& rows, at::Tensor& all) {
  at::Tensor places = at::empty({rows.size(0)}, at::kLong);
  take_rows(batch, runs, at::arange(all.size(0)), places);
  all.index_copy_(0, places, rows.to(all.scalar_type()));
}

enum class Form { kGathered, kRing, kWideRing };

class Ranks {
 public:
  Ranks(const arch::Architecture& a, const Path& path, const Operands& in, int count, Form form)
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
    return {a_, shape, scratch, true, {}, Half::kBoth, k.runs, k.starts.defined() ? &k.starts : nullptr};
  }
  // An op on exactly the scratch that is declared for it.
  template <class F>
  void op(const Rank& k, Pass pass, const Runs& keys, bool adds, const F& f) {
    const Context sizes = context(k, scratch_);
    const bool wide = form_ == Form::kWideRing;
    Workspace w(arch::context_attention_cost(a_, pass, sizes.shape, {k.runs, keys, adds, wide}).scratch.value);
    guarded(path_.kernels, w.scratch, [&] { f(context(k, w.scratch)); });
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

  // At step s, rank r has the keys of rank r + s; the gradients go with them.
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
  const Path& path_;
  const Operands& in_;
  Form form_;
  math::Scratch scratch_;
  std::vector<Rank> ranks_;
};

// What parts.h makes of whole sequences in double, without ranks.
Outcome whole(const arch::Architecture& a, const Path& path, const Operands& in) {
  const at::Tensor qkv = in.qkv.to(at::kDouble), d_o = in.d_o.to(at::kDouble);
  Outcome out{at::full({in.B * in.S, a.query_size()}, NAN, at::kDouble),
              at::full({in.B, a.heads, in.S}, NAN, at::kDouble),
              at::full({in.B * in.S, a.qkv_size()}, NAN, at::kDouble)};
  Workspace w(std::int64_t{1} << 20);
  Context c{a, {in.B, in.S, 0, DType::kF64, 2, Kernels::kReference}, w.scratch, true};
  if (in.starts.defined()) c.document_start = &in.starts;
  attention_forward(c, qkv, out.o, out.lse);
  w.scratch.reset();
  attention_backward(c, d_o, qkv, out.o, out.lse, out.d_qkv);
  out.lse = out.lse.transpose(1, 2).reshape({-1, a.heads});
  return out;
}

void expect_close(const Outcome& got, const Outcome& want, const Path& path, i64 length, double steps) {
  EXPECT_TRUE(close(values(got.o), values(want.o), {path.roundoff, length, 8 * steps, 1.0})) << "o";
  EXPECT_TRUE(close(values(got.lse), values(want.lse), {path.roundoff, length, 8 * steps, 1.0})) << "lse";
  EXPECT_TRUE(close(values(got.d_qkv), values(want.d_qkv), {path.roundoff, length, 16 * steps, 1.0})) << "d_qkv";
}

class ContextParts : public ::testing::TestWithParam<Path> {};
INSTANTIATE_TEST_SUITE_P(Paths, ContextParts, ::testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ContextParts, AttentionOfRanksTogetherIsTheWhole) {
  const c10::InferenceMode inference;
  const Path& path = GetParam();
  for (const auto& a : {test_architectures()[0], test_architectures()[2]})  // grouped queries; ALiBi
    for (const bool documents : {false, true}) {
      const Operands in(a, path, 3, 23, documents);
      const Outcome want = whole(a, path, in);
      for (const int ranks : {1, 2, 3, 4})
        for (const Form form : {Form::kGathered, Form::kRing, Form::kWideRing}) {
          if (form == Form::kWideRing && !narrow(path)) continue;
          SCOPED_TRACE(testing::Message() << a.name << (documents ? " documents " : " ") << ranks << " ranks, form "
                                          << static_cast<int>(form));
          // Each step of a narrow ring rounds its results once more.
          const double steps = form == Form::kRing && narrow(path) ? ranks : 1;
          expect_close(Ranks(a, path, in, ranks, form).run(), want, path, in.S + 2 * a.head_dim, steps);
        }
    }
}

// Documents in whole sequences: one after another as sequences of their own; on the scratch of attention without them.
TEST_P(ContextParts, DocumentsAreSequencesOfTheirOwn) {
  const c10::InferenceMode inference;
  const Path& path = GetParam();
  for (const auto& a : {test_architectures()[0], test_architectures()[2]}) {
    const Operands in(a, path, 3, 23, true);
    Outcome want{at::full({69, a.query_size()}, NAN, at::kDouble), at::full({69, a.heads}, NAN, at::kDouble),
                 at::full({69, a.qkv_size()}, NAN, at::kDouble)};
    const auto* starts = in.starts.data_ptr<std::int32_t>();
    int count = 0;
    for (i64 first = 0, last = 0; first < 69; first = last, ++count) {
      for (last = first + 1; last < 69 && last % 23 != 0 && starts[last] == starts[first];) ++last;
      Operands one(a, path, 1, last - first, false);
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
    const arch::PartShape shape{3, 23, 0, path.compute, 2, path.kernels};
    const auto op = [&](Pass pass, const auto& f) {
      Workspace w(arch::part_cost(a, arch::Part::kAttention, pass, shape).scratch.value);
      guarded(path.kernels, w.scratch, [&] { f(Context{a, shape, w.scratch, true, {}, Half::kBoth, {}, &in.starts}); });
    };
    op(Pass::kForward, [&](const Context& c) { attention_forward(c, in.qkv, got.o, got.lse); });
    op(Pass::kBackward, [&](const Context& c) { attention_backward(c, in.d_o, in.qkv, got.o, got.lse, got.d_qkv); });
    got.lse = got.lse.transpose(1, 2).reshape({-1, a.heads});
    expect_close(got, want, path, 23 + 2 * a.head_dim, 1);
  }
}

// Rows that stand alone (all but attention) at the ranks' positions: the same bits as in whole sequences.
TEST_P(ContextParts, PositionsOfRanksAreThoseOfTheWhole) {
  const c10::InferenceMode inference;
  const Path& path = GetParam();
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
    // What a rank (or, without runs, the whole) makes of its rows.
    const auto compute = [&](const Runs& runs, const at::Tensor& its_ids, const at::Tensor& its_x,
                             const at::Tensor& its_d_x, const at::Tensor& its_d_qkv) {
      const i64 rows = its_x.size(0);
      const Context c{a, {B, rows / B, 0, path.compute, 2, path.kernels}, w.scratch, false, {}, Half::kBoth, runs};
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
      op([&] { norm_qkv_forward(c, its_x, norm, qkv, rope, saved, out.qkv); });
      const at::Tensor turned = its_d_qkv.clone();
      op([&] { norm_qkv_backward(c, turned, its_x, saved, norm, qkv, rope, out.d_x, d_norm, d_linear); });
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
        EXPECT_TRUE(close(values(got), values(expected), {path.roundoff, length, c, 1.0}))
            << a.name << " " << ranks << " ranks: " << what;
      };
      EXPECT_TRUE(at::equal(all.embedded, want.embedded));
      same(all.qkv, want.qkv, 8, d, "qkv");  // a product rounds by its number of rows
      same(all.d_x, want.d_x, 8, a.qkv_size(), "d_x");
      same(all.d_table, want.d_table, 4, n, "d_table");
      same(all.d_weight, want.d_weight, 8, n, "d_weight");
      if (learned.defined()) {
        same(all.d_positions, want.d_positions, 4, n, "d_positions");
      }
    }
  }
}

// The form for devices, here on the host: queries that see nothing included.
TEST(ContextAten, AgreesWithTheReference) {
  const c10::InferenceMode inference;
  for (const auto& a : {test_architectures()[0], test_architectures()[2]})
    for (const bool documents : {false, true}) {
      const Operands in(a, kOracle, 2, 19, documents);
      const Runs queries{{0, 5}, {9, 12}}, blocks[] = {{{3, 6}, {8, 10}}, {{0, 3}}, {{6, 8}, {10, 19}}};
      const i64 rows = 2 * 8;
      Workspace w(std::int64_t{1} << 20);
      at::Tensor starts, qkv = at::empty({rows, a.qkv_size()}, at::kDouble),
                         d_o = at::empty({rows, a.query_size()}, at::kDouble);
      take_rows(2, queries, in.qkv, qkv), take_rows(2, queries, in.d_o, d_o);
      if (documents) starts = at::empty({rows}, at::kInt), take_rows(2, queries, in.starts, starts);
      const Context c{a,         {2, 8, 0, DType::kF64, 2, Kernels::kReference},
                      w.scratch, true,
                      {},        Half::kBoth,
                      queries,   documents ? &starts : nullptr};
      struct Side {
        at::Tensor o, lse, d_qkv;
        std::vector<at::Tensor> d_kv;
      };
      const auto make = [&] {
        return Side{at::full({rows, a.query_size()}, NAN, at::kDouble),
                    at::full({2, a.heads, 8}, NAN, at::kDouble),
                    at::full({rows, a.qkv_size()}, 0.5, at::kDouble),
                    {}};
      };
      Side ours = make(), atens = make();
      bool first = true;
      std::vector<at::Tensor> kv;
      for (const Runs& keys : blocks) {
        kv.push_back(at::empty({2 * count_positions(keys), 2 * a.kv_heads * a.head_dim}, at::kDouble));
        take_rows(2, keys, key_value_columns(c, in.qkv), kv.back());
        w.scratch.reset();
        context_attention_forward(c, qkv, kv.back(), keys, first, ours.o, ours.lse);
        aten::context_attention_forward(c, queries, qkv, kv.back(), keys, first, atens.o, atens.lse);
        // infinities where nothing was seen so far
        EXPECT_TRUE(at::equal(ours.lse.isneginf(), atens.lse.isneginf()));
        EXPECT_TRUE(close(values(atens.o), values(ours.o), {0x1p-53, 19 + a.head_dim, 8, 1.0}));
        first = false;
      }
      EXPECT_TRUE(close(values(atens.lse), values(ours.lse), {0x1p-53, 19 + a.head_dim, 8, 1.0}));
      for (std::size_t x = 0; x < 3; ++x) {
        const bool add = x > 0;
        for (Side* side : {&ours, &atens}) side->d_kv.push_back(at::full_like(kv[x], 0.25));
        w.scratch.reset();
        context_attention_backward(c, d_o, qkv, kv[x], blocks[x], ours.o, ours.lse, add, !add, ours.d_qkv,
                                   ours.d_kv[x]);
        aten::context_attention_backward(c, queries, d_o, qkv, kv[x], blocks[x], ours.o, ours.lse, add, !add,
                                         atens.d_qkv, atens.d_kv[x]);
        EXPECT_TRUE(close(values(atens.d_kv[x]), values(ours.d_kv[x]), {0x1p-53, 19 + 2 * a.head_dim, 16, 1.0}));
      }
      EXPECT_TRUE(close(values(atens.d_qkv), values(ours.d_qkv), {0x1p-53, 19 + 2 * a.head_dim, 16, 1.0}));
    }
}

TEST(ContextRefusals, WhatDoesNotFitTogether) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  Workspace w(std::int64_t{1} << 20);
  const Operands in(a, kPaths[2], 2, 8, true);
  const Runs all{{0, 8}}, half{{0, 2}, {6, 8}};
  at::Tensor o = at::empty({16, a.query_size()}, at::kFloat), lse = at::empty({2, a.heads, 8}, at::kFloat);
  const auto attention = [&](const Context& c, const Runs& keys) {
    w.scratch.reset();
    context_attention_forward(c, in.qkv, key_value_columns(c, in.qkv), keys, true, o, lse);
  };
  const arch::PartShape shape{2, 8, 0, DType::kF32, 1, Kernels::kFused};
  const Context good{a, shape, w.scratch, true, {}, Half::kBoth, {}, &in.starts};
  EXPECT_NO_THROW(attention(good, all));
  EXPECT_THROW(attention(good, half), Error);
  EXPECT_THROW(attention({a, shape, w.scratch, true, {}, Half::kBoth, half}, all), Error);
  const at::Tensor falling = in.starts.flip({0}).contiguous(), few = in.starts.narrow(0, 0, 8);
  EXPECT_THROW(attention({a, shape, w.scratch, true, {}, Half::kBoth, {}, &falling}, all), Error);
  EXPECT_THROW(attention({a, shape, w.scratch, true, {}, Half::kBoth, {}, &few}, all), Error);
  arch::PartShape narrow_shape = shape;
  narrow_shape.compute = DType::kBF16;
  EXPECT_THROW(attention({a, narrow_shape, w.scratch, true}, all), Error);
  // RoPE's table of whole sequences on the rows of a rank.
  const arch::PartShape rank{2, 4, 0, DType::kF32, 1, Kernels::kFused};
  const RopeTable whole_table = make_rope_table(a, 8, at::kFloat, at::kCPU);
  NormSaved saved{at::empty({8}, at::kFloat), {}};
  const NormWeights norm{at::ones({a.hidden}, at::kFloat), {}};
  const Linear linear{at::ones({a.qkv_size(), a.hidden}, at::kFloat), {}};
  at::Tensor x = at::ones({8, a.hidden}, at::kFloat), qkv = at::empty({8, a.qkv_size()}, at::kFloat);
  w.scratch.reset();
  EXPECT_THROW(
      norm_qkv_forward({a, rank, w.scratch, true, {}, Half::kBoth, half}, x, norm, linear, whole_table, saved, qkv),
      Error);
  at::Tensor few_rows = at::empty({7, 5}, at::kFloat);
  EXPECT_THROW(take_rows(2, half, at::empty({16, 5}, at::kFloat), few_rows), Error);
}

}  // namespace
}  // namespace molen::model
