// The three kinds of attention: of whole sequences, over the gathered keys of all context ranks, and one step of their
// ring.
#include "arch/context_parallel.h"
#include "base/error.h"
#include "exec/parts/part.h"
#include "model/context.h"

namespace molen::exec {
namespace {

bool is_narrow(const at::Tensor& t) {
  return t.element_size() < 4;
}

// Returns rows of `like` in fp32, taken from the op's scratch. Attention adds up over one call for each rank's keys,
// and a narrower sum would be rounded at each call.
at::Tensor wide_rows(const at::Tensor& like, std::int64_t columns, math::Scratch& scratch) {
  const at::TensorOptions options = like.options().dtype(at::kFloat);
  if (!like.device().is_cpu()) return at::empty({like.size(0), columns}, options);
  return at::from_blob(scratch.take_bytes(like.size(0) * columns * 4), {like.size(0), columns}, options);
}

at::Tensor lse_of(const PartCall& call) {
  const PartContext& c = call.common;
  return call.operands.view(Arg::kLse, {c.shape.batch, c.arch.heads, c.shape.sequence});
}

Kernel bind_whole_attention(const PartCall& call) {
  const Operands& o = call.operands;
  auto qkv = o.rows(Arg::kQkv), out = o.rows(Arg::kY), lse = lse_of(call);
  if (!call.backward())
    return [=, common = call.common](RunState&, math::Scratch& s) mutable {
      model::attention_forward(common.context(s), qkv, out, lse);
    };
  auto d_o = o.rows(Arg::kDY), d_qkv = o.rows(Arg::kDQkv);
  return [=, common = call.common](RunState&, math::Scratch& s) mutable {
    model::attention_backward(common.context(s), d_o, qkv, out, lse, d_qkv);
  };
}

Kernel bind_gathered_attention(const PartCall& call, int ranks) {
  const Operands& o = call.operands;
  const arch::Architecture& local = call.common.arch;
  const std::int64_t sequence = call.common.shape.sequence * ranks, queries = local.query_size();
  std::vector<std::vector<PositionRun>> keys;
  for (int r = 0; r < ranks; ++r) keys.push_back(arch::context_runs(sequence, r, ranks));
  const std::array<std::int64_t, 3> of_all{ranks, o.tokens(), 2 * local.kv_heads * local.head_dim};
  const auto at_rank = [](const at::Tensor& all, std::size_t r) { return all.select(0, static_cast<std::int64_t>(r)); };
  auto qkv = o.rows(Arg::kQkv), kv = o.view(Arg::kKeys, of_all), out = o.rows(Arg::kY), lse = lse_of(call);
  if (!call.backward())
    return [=, common = call.common](RunState& run, math::Scratch& s) mutable {
      at::Tensor sum = is_narrow(out) ? wide_rows(out, queries, s) : out;
      for (std::size_t r = 0; r < keys.size(); ++r)
        model::context_attention_forward(common.context(s), qkv, at_rank(kv, r), keys[r], r == 0, sum, lse);
      if (is_narrow(out)) run.copy(program::Epilogue::kCopy, out, sum);
    };
  auto d_o = o.rows(Arg::kDY), d_qkv = o.rows(Arg::kDQkv), d_kv = o.view(Arg::kDKeys, of_all);
  return [=, common = call.common](RunState& run, math::Scratch& s) mutable {
    at::Tensor sum = is_narrow(d_qkv) ? wide_rows(d_qkv, queries, s) : d_qkv;
    for (std::size_t r = 0; r < keys.size(); ++r) {
      at::Tensor d_keys = at_rank(d_kv, r);
      model::context_attention_backward(common.context(s), d_o, qkv, at_rank(kv, r), keys[r], out, lse, r > 0, false,
                                        sum, d_keys);
    }
    if (!is_narrow(d_qkv)) return;
    at::Tensor d_queries = d_qkv.narrow(1, 0, queries);
    run.copy(program::Epilogue::kCopy, d_queries, sum);
  };
}

Kernel bind_ring_attention(const PartCall& call, int ranks) {
  const Operands& o = call.operands;
  const arch::Architecture& local = call.common.arch;
  const int step = static_cast<int>(call.op.portion), rank = call.context.coordinates[mesh::Axis::kCp];
  MOLEN_CHECK(step >= 0 && step < ranks, "step {} of a ring of {}", step, ranks);
  const auto keys = arch::context_runs(call.common.shape.sequence * ranks, (rank + ranks - step) % ranks, ranks);
  const bool first = step == 0;
  const std::array<std::int64_t, 2> rows{o.tokens(), 2 * local.kv_heads * local.head_dim};
  auto qkv = o.rows(Arg::kQkv), out = o.rows(Arg::kY), lse = lse_of(call);
  auto kv = first ? at::Tensor() : o.view(Arg::kKeys, rows);
  if (!call.backward()) {
    auto sum = o.has(Arg::kYSoFar) ? o.rows(Arg::kYSoFar) : out;
    return [=, common = call.common](RunState& run, math::Scratch& s) mutable {
      const model::Context context = common.context(s);
      model::context_attention_forward(context, qkv, first ? model::key_value_columns(context, qkv) : kv, keys, first,
                                       sum, lse);
      if (out.scalar_type() != sum.scalar_type()) run.copy(program::Epilogue::kCopy, out, sum);
    };
  }
  auto d_o = o.rows(Arg::kDY), d_qkv = o.rows(Arg::kDQkv), d_kv = o.view(Arg::kDKeys, rows);
  return [=, common = call.common](RunState&, math::Scratch& s) mutable {
    const model::Context context = common.context(s);
    model::context_attention_backward(context, d_o, qkv, first ? model::key_value_columns(context, qkv) : kv, keys, out,
                                      lse, !first, false, d_qkv, d_kv);
  };
}

Kernel bind_attention(const PartCall& call) {
  const int ranks = call.ranks(mesh::Axis::kCp);
  if (ranks == 1) return bind_whole_attention(call);
  return call.op.portion >= 0 ? bind_ring_attention(call, ranks) : bind_gathered_attention(call, ranks);
}

}  // namespace

std::vector<PartBinding> attention_bindings() {
  return {{arch::Part::kAttention, bind_attention}};
}

}  // namespace molen::exec
