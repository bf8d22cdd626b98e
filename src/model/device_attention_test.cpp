// Tests device attention on the host, against the reference in fp64: the pairs that its pieces contain, and the
// results.
#include "model/device_attention.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>

#include "math/test_close.h"
#include "model/device_documents.h"
#include "model/test_attention.h"

namespace molen::model {
namespace {

using arch::Kernels;
using math::testing::close;
using i64 = std::int64_t;

// Returns the runs of positions below 12 that the bits of a number select.
Runs runs_of_bits(unsigned bits) {
  Runs runs;
  for (i64 p = 0; p < 12; ++p)
    if (bits >> p & 1) {
      if (!runs.empty() && runs.back().last == p)
        ++runs.back().last;
      else
        runs.push_back({p, p + 1});
    }
  return runs;
}

std::vector<i64> positions_in(const Runs& runs) {
  std::vector<i64> all;
  for (const PositionRun& run : runs)
    for (i64 p = run.first; p < run.last; ++p) all.push_back(p);
  return all;
}

// Checks, for every query and key of a sequence, whether a piece has the pair, and that at most one piece does.
TEST(DeviceAttention, PiecesHaveEveryPairOnce) {
  std::mt19937 engine(7);
  for (int round = 0; round < 2000; ++round) {
    const Runs queries = runs_of_bits(engine() | 1), keys = runs_of_bits(engine() | 2);
    const auto q_at = positions_in(queries), k_at = positions_in(keys);
    const i64 batch = 3, scores = 1 + static_cast<i64>(engine() % 400);
    const auto at = [](const std::vector<i64>& positions, i64 row) {
      return positions.at(static_cast<std::size_t>(row));
    };
    for (const bool flash : {true, false}) {
      std::map<std::array<i64, 3>, int> pairs;
      for (const auto& p :
           flash ? aten::flash_pieces(batch, queries, keys) : aten::written_pieces(batch, queries, keys, scores)) {
        ASSERT_TRUE(flash || p.sequences * p.query_rows * p.key_rows <= scores ||
                    (p.sequences == 1 && p.query_rows == 1));
        if (p.causal) {  // then flash attention means the same on the host and on devices
          ASSERT_EQ(p.query_rows, p.key_rows);
          ASSERT_EQ(at(q_at, p.query), at(k_at, p.key));
        }
        for (i64 b = p.sequence; b < p.sequence + p.sequences; ++b)
          for (i64 q = p.query; q < p.query + p.query_rows; ++q)
            for (i64 k = p.key; k < p.key + p.key_rows; ++k) {
              if (p.causal && k - p.key > q - p.query) continue;
              if (flash || at(k_at, k) <= at(q_at, q)) ++pairs[{b, q, k}];
            }
      }
      for (i64 b = 0; b < batch; ++b)
        for (i64 q = 0; q < static_cast<i64>(q_at.size()); ++q)
          for (i64 k = 0; k < static_cast<i64>(k_at.size()); ++k) {
            const auto found = pairs.find({b, q, k});
            ASSERT_EQ(found == pairs.end() ? 0 : found->second, at(k_at, k) <= at(q_at, q) ? 1 : 0)
                << (flash ? "flash" : "written out");
          }
      ASSERT_TRUE(pairs.empty() || pairs.rbegin()->first[0] < batch);
    }
  }
  const Runs whole{{0, 9}}, zigzag{{3, 6}, {12, 15}};
  const auto one = aten::flash_pieces(2, whole, whole);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0], (aten::AttentionPiece{0, 2, 0, 9, 0, 9, true}));
  EXPECT_EQ(aten::flash_pieces(2, zigzag, Runs{{0, 18}}).size(), 4U);  // equal numbers of earlier keys for both runs
  // First, eight whole sequences are cut into three, three and two. Then each sequence is cut by queries.
  EXPECT_EQ(aten::written_pieces(8, whole, whole, 3 * 81 + 5).size(), 3U);
  EXPECT_EQ(aten::written_pieces(8, whole, whole, 80).size(), 16U);
  EXPECT_TRUE(aten::written_pieces(8, {}, whole, 80).empty());
  EXPECT_TRUE(aten::written_pieces(8, whole, {}, 80).empty());
}

// Results of attention over consecutive blocks of keys, by the device code or by molen's own kernels.
struct Blocks {
  at::Tensor o, lse, d_qkv;
  std::vector<at::Tensor> d_kv;
};
template <class Forward, class Backward>
Blocks over_blocks(const Context& c, at::ScalarType out, const at::Tensor& qkv, const std::vector<at::Tensor>& kv,
                   const Forward& forward, const Backward& backward) {
  const auto of = [&](at::IntArrayRef shape, double value, at::ScalarType type) {
    return at::full(shape, value, type);
  };
  const i64 rows = qkv.size(0), R = c.shape.sequence;
  const at::ScalarType wide = out == at::kDouble ? at::kDouble : at::kFloat;
  Blocks x{of({rows, c.arch.query_size()}, NAN, out),
           of({c.shape.batch, c.arch.heads, R}, NAN, wide),
           of({rows, c.arch.qkv_size()}, 0.5, out),
           {}};
  for (std::size_t i = 0; i < kv.size(); ++i) forward(i, x.o, x.lse);
  for (std::size_t i = 0; i < kv.size(); ++i) {
    x.d_kv.push_back(of(kv[i].sizes(), 0.25, out));
    backward(i, x.o, x.lse, x.d_qkv, x.d_kv.back());
  }
  return x;
}

// Runs one way of device attention, here on the host, against the reference in fp64, including queries that see no
// keys.
void expect_way(const aten::AttentionBackend& way, const arch::Architecture& a, const AttentionPath& path,
                bool documents, const Runs& queries, const std::vector<Runs>& blocks) {
  const i64 B = 2, R = count_positions(queries);
  const AttentionOperands in(a, path, B, 19, documents);
  Workspace w(std::int64_t{1} << 20);
  at::Tensor starts, qkv = at::empty({B * R, a.qkv_size()}, in.qkv.scalar_type()),
                     d_o = at::empty({B * R, a.query_size()}, in.qkv.scalar_type());
  take_rows(B, queries, in.qkv, qkv), take_rows(B, queries, in.d_o, d_o);
  if (documents) starts = at::empty({B * R}, at::kInt), take_rows(B, queries, in.starts, starts);
  const Context c = with_slopes({a,
                                 {B, R, 0, DType::kF64, 2, Kernels::kReference},
                                 w.scratch,
                                 true,
                                 {},
                                 arch::Pass::kBackward,
                                 queries,
                                 documents ? &starts : nullptr});
  std::vector<at::Tensor> kv, kv64;
  for (const Runs& keys : blocks) {
    kv.push_back(at::empty({B * count_positions(keys), 2 * a.kv_heads * a.head_dim}, in.qkv.scalar_type()));
    take_rows(B, keys, key_value_columns(c, in.qkv), kv.back());
    kv64.push_back(kv.back().to(at::kDouble));
  }
  const at::Tensor qkv64 = qkv.to(at::kDouble), d_o64 = d_o.to(at::kDouble);
  const Blocks want = over_blocks(
      c, at::kDouble, qkv64, kv64,
      [&](std::size_t i, at::Tensor& o, at::Tensor& lse) {
        w.scratch.reset();
        context_attention_forward(c, qkv64, kv64[i], blocks[i], i == 0, o, lse);
      },
      [&](std::size_t i, const at::Tensor& o, const at::Tensor& lse, at::Tensor& d_qkv, at::Tensor& d_kv) {
        w.scratch.reset();
        context_attention_backward(c, d_o64, qkv64, kv64[i], blocks[i], o, lse, i > 0, i == 0, d_qkv, d_kv);
      });
  const Blocks got = over_blocks(
      c, wide_of(path), qkv, kv,
      [&](std::size_t i, at::Tensor& o, at::Tensor& lse) {
        device_attention_forward(way, c, queries, qkv, kv[i], blocks[i], i == 0, o, lse);
      },
      [&](std::size_t i, const at::Tensor& o, const at::Tensor& lse, at::Tensor& d_qkv, at::Tensor& d_kv) {
        device_attention_backward(way, c, queries, d_o, qkv, kv[i], blocks[i], o, lse, i > 0, i == 0, d_qkv, d_kv);
      });
  const at::Tensor unseeing = want.lse.isneginf();
  const bool nothing = unseeing.all().item<bool>();  // whether no query sees any key
  // The operands are the same numbers, and written-out scores are fp32 throughout.
  const double roundoff = way.flash || way.documents ? path.roundoff : std::min(path.roundoff, 0x1p-24);
  const auto same = [&](const at::Tensor& mine, const at::Tensor& its, double constant, const char* what) {
    if (nothing)
      EXPECT_TRUE(at::equal(mine.to(at::kDouble), its)) << what;
    else
      EXPECT_TRUE(close(doubles_of(mine), doubles_of(its), {roundoff, 19 + 2 * a.head_dim, constant, 1.0})) << what;
  };
  EXPECT_TRUE(at::equal(got.lse.isneginf(), unseeing));
  if (!nothing) same(got.lse.masked_fill(unseeing, 0.0), want.lse.masked_fill(unseeing, 0.0), 8, "lse");
  same(got.o, want.o, 8, "o");
  same(got.d_qkv, want.d_qkv, 16, "d_qkv");
  for (std::size_t i = 0; i < kv.size(); ++i) same(got.d_kv[i], want.d_kv[i], 16, "d_kv");
}

TEST(DeviceAttention, WrittenOutInAnyBlocksIsTheReference) {
  const c10::InferenceMode inference;
  for (const auto& a : {test_architectures()[0], test_architectures()[2]})
    for (const bool documents : {false, true})
      for (const auto& path : {kAttentionOracle, kAttentionPaths[5]})
        for (const i64 scores : {i64{1}, i64{500}, i64{1} << 24}) {
          SCOPED_TRACE(testing::Message() << a.name << (documents ? " documents " : " ") << path.name << ", " << scores
                                          << " scores at once");
          const aten::AttentionBackend way{false, scores};
          expect_way(way, a, path, documents, {{0, 5}, {9, 12}}, {{{3, 6}, {8, 10}}, {{0, 3}}, {{6, 8}, {10, 19}}});
          expect_way(way, a, path, documents, {{0, 19}}, {{{0, 19}}});
          expect_way(way, a, path, documents, {{2, 6}}, {{{6, 9}}, {{11, 13}}});  // no visible keys
          expect_way(way, a, path, documents, {{0, 5}, {9, 12}}, {{{6, 8}}});     // all keys, of some queries only
        }
}

TEST(DeviceAttention, FlashInPiecesIsTheReference) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  for (const auto& path : {kAttentionOracle, kAttentionPaths[4], kAttentionPaths[5], kAttentionPaths[6]}) {
    SCOPED_TRACE(path.name);
    const aten::AttentionBackend way{true};
    expect_way(way, a, path, false, {{0, 5}, {9, 12}}, {{{3, 6}, {8, 10}}, {{0, 3}}, {{6, 8}, {10, 19}}});
    expect_way(way, a, path, false, {{4, 8}, {12, 16}}, {{{0, 19}}});  // zig-zag over gathered keys
    expect_way(way, a, path, false, {{0, 19}}, {{{0, 19}}});
    expect_way(way, a, path, false, {{2, 6}}, {{{6, 9}}, {{11, 13}}});
    expect_way(way, a, path, false, {{0, 5}, {9, 12}}, {{{6, 8}}});  // one piece, with all keys and some queries
  }
}

// Records the most bytes that ATen held at once on the host during its lifetime.
class Peak : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    held_ += bytes;
    most_ = std::max(most_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  i64 most() const { return most_; }

 private:
  i64 held_ = 0, most_ = 0;
};
template <class F>
i64 peak_of(const F& f) {
  const auto peak = std::make_shared<Peak>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, peak);
  f();
  return peak->most();
}

TEST(DeviceAttention, HoldsAPartOfTheScores) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  const i64 S = 384, D = a.head_dim, all_scores = 8 * a.heads * S * S, rows = 8 * S * a.heads * D;
  const AttentionOperands in(a, kAttentionOracle, 1, S, false);
  math::Scratch scratch;
  const Context c{a, {1, S, 0, DType::kF64, 2, Kernels::kAten}, scratch};
  const Runs all{{0, S}};
  at::Tensor o = at::empty({S, a.query_size()}, at::kDouble), lse = at::empty({1, a.heads, S}, at::kDouble),
             d_qkv = at::empty_like(in.qkv), d_kv = key_value_columns(c, d_qkv);
  const at::Tensor kv = key_value_columns(c, in.qkv);
  const auto peaks = [&](i64 scores) {
    const aten::AttentionBackend way{false, scores};
    const i64 forward = peak_of([&] { device_attention_forward(way, c, all, in.qkv, kv, all, true, o, lse); });
    return std::max(forward, peak_of([&] {
                      device_attention_backward(way, c, all, in.d_o, in.qkv, kv, all, o, lse, false, false, d_qkv,
                                                d_kv);
                    }));
  };
  EXPECT_GT(peaks(i64{1} << 24), 2 * all_scores);
  const i64 part = peaks(a.heads * S * 8);  // eight queries at once
  EXPECT_LT(part, 5 * all_scores / (S / 8) + 6 * rows) << part;
}

TEST(DeviceAttention, FlashAttentionWithinDocuments) {
  const c10::InferenceMode inference;
  aten::AttentionBackend way;
  way.documents = true;
  for (const auto& a : test_architectures()) {
    if (a.position == arch::Position::kAlibi) continue;
    for (const auto& path : kAttentionPaths)
      if (path.kernels != Kernels::kFused) {
        SCOPED_TRACE(testing::Message() << path.name << ", heads " << a.heads << " over " << a.kv_heads);
        expect_way(way, a, path, true, {{0, 19}}, {{{0, 19}}});
      }
  }
}

// Written-out attention would pass the test above too.
TEST(DeviceAttention, DocumentsOfWholeSequencesHaveACallOfTheirOwn) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  const i64 B = 2, S = 19;
  const AttentionOperands in(a, kAttentionOracle, B, S, true);
  Workspace w(std::int64_t{1} << 20);
  const Context c{
      a, {B, S, 0, DType::kF64, 2, Kernels::kReference}, w.scratch, true, {}, arch::Pass::kBackward, {}, &in.starts};
  const Runs all{{0, S}};
  const at::Tensor kv = key_value_columns(c, in.qkv);
  const auto forward = [&](const auto& run) {
    at::Tensor o = at::empty({B * S, a.query_size()}, at::kDouble), lse = at::empty({B, a.heads, S}, at::kDouble);
    run(o, lse);
    return std::pair(o, lse);
  };
  const auto by_way = [&](bool documents) {
    aten::AttentionBackend way;
    way.documents = documents;
    return forward(
        [&](at::Tensor& o, at::Tensor& lse) { device_attention_forward(way, c, all, in.qkv, kv, all, true, o, lse); });
  };
  const auto [o, lse] =
      forward([&](at::Tensor& to, at::Tensor& sums) { aten::document_flash_forward(c, in.qkv, kv, to, sums); });
  EXPECT_TRUE(at::equal(by_way(true).first, o) && at::equal(by_way(true).second, lse));
  EXPECT_FALSE(at::equal(by_way(false).first, o)) << "another order of sums";
  const auto backward = [&](bool add) {
    at::Tensor d_qkv = at::full({B * S, a.qkv_size()}, 0.5, at::kDouble), d_kv = key_value_columns(c, d_qkv);
    aten::document_flash_backward(c, in.d_o, in.qkv, kv, o, lse, add, add, d_qkv, d_kv);
    return d_qkv;
  };
  EXPECT_TRUE(at::equal(backward(true), backward(false).add(0.5)));
}

// Uses operands as the step program stores them. For whole sequences, keys, values and their gradients are columns of
// the packed rows. For gathered keys, the gradient of the queries is fp32 even when the gradient of the keys is narrow.
TEST(DeviceAttention, WritesWhereTheProgramHasItsOperands) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  const i64 B = 2, S = 19, width = 2 * a.kv_heads * a.head_dim;
  for (const auto& path : {kAttentionOracle, kAttentionPaths[5]})
    for (const bool flash : {true, false}) {
      SCOPED_TRACE(testing::Message() << path.name << (flash ? ", flash" : ", written out"));
      const aten::AttentionBackend way{flash, 200};
      const at::ScalarType type = scalar_type(path.compute), wide = wide_of(path);
      const AttentionOperands in(a, path, B, S, false);
      const at::Tensor qkv64 = in.qkv.to(at::kDouble), d_o64 = in.d_o.to(at::kDouble);
      Workspace w(std::int64_t{1} << 20);
      for (const Runs& queries : {Runs{{0, S}}, Runs{{3, 7}, {12, 16}}}) {
        const i64 R = count_positions(queries), N = B * R;
        const bool whole = R == S;
        const Runs keys{{0, S}};
        const Context c{
            a, {B, R, 0, DType::kF64, 2, Kernels::kReference}, w.scratch, true, {}, arch::Pass::kBackward, queries};
        const auto mine = [&](const at::Tensor& all) {
          at::Tensor rows = at::empty({N, all.size(1)}, all.options());
          take_rows(B, queries, all, rows);
          return rows;
        };
        const at::Tensor qkv = mine(in.qkv), d_o = mine(in.d_o), kv = key_value_columns(c, in.qkv);
        at::Tensor o = at::full({N, a.query_size()}, NAN, type), lse = at::full({B, a.heads, R}, NAN, wide),
                   d_qkv = at::full({N, a.qkv_size()}, NAN, whole ? type : wide),
                   d_kv = whole ? key_value_columns(c, d_qkv) : at::full({B * S, width}, NAN, type);
        device_attention_forward(way, c, queries, qkv, kv, keys, true, o, lse);
        device_attention_backward(way, c, queries, d_o, qkv, kv, keys, o, lse, false, false, d_qkv, d_kv);
        at::Tensor o64 = at::empty({N, a.query_size()}, at::kDouble), lse64 = at::empty({B, a.heads, R}, at::kDouble),
                   d_qkv64 = at::zeros({N, a.qkv_size()}, at::kDouble), d_kv64 = at::empty({B * S, width}, at::kDouble);
        context_attention_forward(c, mine(qkv64), key_value_columns(c, qkv64), keys, true, o64, lse64);
        w.scratch.reset();
        context_attention_backward(c, mine(d_o64), mine(qkv64), key_value_columns(c, qkv64), keys, o64, lse64, false,
                                   false, d_qkv64, d_kv64);
        const auto same = [&](const at::Tensor& got, const at::Tensor& want, double constant, const char* what) {
          EXPECT_TRUE(close(doubles_of(got), doubles_of(want), {path.roundoff, 1, constant, 1.0})) << what;
        };
        const i64 q = a.query_size();
        same(o, o64, 8, "o");
        same(d_qkv.narrow(1, 0, q), d_qkv64.narrow(1, 0, q), 16, "d_q");
        same(d_kv, d_kv64, 16, "d_kv");
        EXPECT_EQ(d_qkv.narrow(1, q, width).isnan().all().item<bool>(), !whole) << "columns of no concern";
        w.scratch.reset();
      }
    }
}

TEST(DeviceAttention, FlashServesSixteenBitTypesOfCudaOnly) {
  auto a = test_architectures()[0];
  a.head_dim = 64;
  math::Scratch scratch;
  Kernels kernels = Kernels::kAten;
  const auto way = [&](bool cuda, at::ScalarType type, const at::Tensor* documents) {
    const Context c{a, {2, 8, 0, DType::kBF16, 2, kernels}, scratch, true, {}, arch::Pass::kBackward, {}, documents};
    return aten::attention_backend(c, cuda, type);
  };
  const at::Tensor starts = at::zeros({16}, at::kInt);
  // Documents have flash attention of their own in the same cases.
  const auto flash = [&](bool cuda, at::ScalarType type) {
    const auto plain = way(cuda, type, nullptr), documents = way(cuda, type, &starts);
    EXPECT_EQ(documents.documents, plain.flash);
    EXPECT_FALSE(documents.flash || plain.documents);
    return plain.flash;
  };
  EXPECT_TRUE(flash(true, at::kBFloat16));
  EXPECT_TRUE(flash(true, at::kHalf));
  EXPECT_FALSE(flash(false, at::kBFloat16));
  EXPECT_FALSE(flash(true, at::kFloat));
  EXPECT_FALSE(flash(true, at::kDouble));
  kernels = Kernels("unfused");
  EXPECT_FALSE(flash(true, at::kBFloat16)) << "math.flash_attention = false";
  kernels = Kernels::kAten;
  for (const i64 head : {10, 264}) {
    a.head_dim = head;
    EXPECT_FALSE(flash(true, at::kBFloat16)) << head;
  }
  a.head_dim = 64;
  a.position = arch::Position::kAlibi;
  EXPECT_FALSE(flash(true, at::kBFloat16));
}

}  // namespace
}  // namespace molen::model
