#include "exec/bind_context.h"

#include "arch/context_parallel.h"
#include "model/context.h"

namespace molen::exec {
namespace {

bool is_narrow(const at::Tensor& t) {
  return t.element_size() < 4;
}

// Returns rows of `like` in fp32, from the op's scratch: a sum over the calls for each rank's keys would otherwise be
// rounded at each call.
at::Tensor wide_rows(const at::Tensor& like, std::int64_t columns, math::Scratch& scratch) {
  const at::TensorOptions options = like.options().dtype(at::kFloat);
  if (!like.device().is_cpu()) return at::empty({like.size(0), columns}, options);
  return at::from_blob(scratch.take_bytes(like.size(0) * columns * 4), {like.size(0), columns}, options);
}

std::array<std::int64_t, 3> lse_shape(const Common& common) {
  return {common.shape.batch, common.arch.heads, common.shape.sequence};
}

// Keys and values side by side, as context ranks exchange them: [r] of `all` belongs to rank r.
struct KeyValues {
  at::Tensor all_RNW, columns_NW;  // and this rank's own columns in q|k|v
  KeyValues(const BindContext& c, int all, int qkv) {
    const auto& a = c.program.local;
    const std::int64_t n = c.program.setting.tokens(), width = 2 * a.kv_heads * a.head_dim;
    all_RNW = c.flat(all).view({-1, n, width});
    columns_NW = c.flat(qkv).view({n, -1}).narrow(1, a.query_size(), width);
  }
  std::vector<std::int64_t> counts() const {
    return std::vector<std::int64_t>(static_cast<std::size_t>(all_RNW.size(0)), columns_NW.numel());
  }
};

// Ranks with an even number send first, the others receive first; in a ring of odd size two neighbours both send first,
// and one of them waits.
void pass_on(comm::Communicator& ring, const at::Tensor& out, at::Tensor& in, DType dtype) {
  const int ranks = ring.size(), next = (ring.rank() + 1) % ranks, before = (ring.rank() + ranks - 1) % ranks;
  const bool sends_first = ring.rank() % 2 == 0;
  if (sends_first) ring.send(out.data_ptr(), out.numel(), dtype, next);
  ring.recv(in.data_ptr(), in.numel(), dtype, before);
  if (!sends_first) ring.send(out.data_ptr(), out.numel(), dtype, next);
}

}  // namespace

std::vector<PositionRun> positions_of(const program::Setting& s, const mesh::PerAxis& coordinates) {
  if (!s.context()) return {};
  return arch::context_runs(s.sequence, coordinates[mesh::Axis::kCp], s.context_ranks());
}

// Loads whole sequences; the context rank takes its own positions and counts their labels.
Kernel bind_load_part(const BindContext& c, const program::Step& step) {
  auto ids = c.flat(step.operand(Arg::kIds).buffer), labels = c.flat(step.operand(Arg::kLabels).buffer),
       scalars = c.flat(step.operand(Arg::kScalars).buffer);
  const auto& s = c.program.setting;
  at::Tensor documents;
  if (s.document_mask) documents = c.flat(step.operand(Arg::kDocuments).buffer);
  const bool counted = !std::get<program::LoadBatch>(step.op).uncounted;
  return [=, batch = s.micro_batch, count = s.micro_batch * s.sequence, runs = positions_of(s, c.coordinates)](
             RunState& run, math::Scratch&) mutable {
    const MicroBatch whole = run.staged(static_cast<std::size_t>(count), documents.defined());
    run.input->load(whole);
    model::take_rows(batch, runs, at::from_blob(whole.ids, {count}, at::kInt), ids);
    model::take_rows(batch, runs, at::from_blob(whole.labels, {count}, at::kInt), labels);
    if (documents.defined())
      model::take_rows(batch, runs, at::from_blob(whole.document_start, {count}, at::kInt), documents);
    if (!counted) return;
    std::int64_t valid = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      for (const PositionRun& r : runs)
        for (std::int64_t t = r.first; t < r.last; ++t)
          valid += run.labels[static_cast<std::size_t>(b * (count / batch) + t)] >= 0;
    if (scalars.device().is_cpu())
      scalars.data_ptr<double>()[program::kValidTokens] += static_cast<double>(valid);
    else
      scalars.select(0, program::kValidTokens).add_(static_cast<double>(valid));
  };
}

Kernel bind_gather_keys(const BindContext& c, const program::Step& step, comm::Communicator* group) {
  const KeyValues keys(c, step.operand(Arg::kTo).buffer, step.operand(Arg::kFrom).buffer);
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  return
      [=, own = keys.all_RNW.select(0, group->rank()), counts = keys.counts()](RunState& run, math::Scratch&) mutable {
        own.copy_(keys.columns_NW);
        run.settle();
        group->all_gather(own.data_ptr(), keys.all_RNW.data_ptr(), counts, dtype);
      };
}

// Sums the gradients of each rank's keys and values over ranks and gives the sum to that rank.
Kernel bind_scatter_keys(const BindContext& c, const program::Step& step, comm::Communicator* group) {
  const KeyValues keys(c, step.operand(Arg::kFrom).buffer, step.operand(Arg::kTo).buffer);
  const DType dtype = dtype_of(c, step.operand(Arg::kFrom));
  return [=, own = keys.all_RNW.select(0, group->rank()), counts = keys.counts(), columns = keys.columns_NW](
             RunState&, math::Scratch&) mutable {
    group->reduce_scatter(keys.all_RNW.data_ptr(), own.data_ptr(), counts, dtype, comm::Reduce::kSum);
    columns.copy_(own);
  };
}

Kernel bind_shift(const BindContext& c, const program::Step& step, comm::Communicator* ring) {
  const auto& op = std::get<program::Shift>(step.op);
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  auto in = c.flat(step.operand(Arg::kTo).buffer);
  if (op.moves == program::Moves::kKeys && op.step == 1) {
    const KeyValues keys(c, step.operand(Arg::kOwn).buffer, step.operand(Arg::kFrom).buffer);
    return [=, own = keys.all_RNW.select(0, 0)](RunState& run, math::Scratch&) mutable {
      own.copy_(keys.columns_NW);
      run.settle();
      pass_on(*ring, own, in, dtype);
    };
  }
  auto out = c.flat(step.operand(Arg::kFrom).buffer);
  if (op.moves == program::Moves::kKeys)
    return [=](RunState&, math::Scratch&) mutable { pass_on(*ring, out, in, dtype); };
  const bool adds = op.step > 1;
  if (op.step < ring->size())
    return [=](RunState& run, math::Scratch&) mutable {
      if (adds) {
        out.add_(in);
        run.settle();
      }
      pass_on(*ring, out, in, dtype);
    };
  // The keys are back at their own rank: their gradient goes beside the gradient of the queries.
  const program::Use *so_far = step.find(Arg::kDQkvSoFar), &whole = step.operand(Arg::kDQkv);
  const KeyValues keys(c, step.operand(Arg::kTo).buffer, whole.buffer);
  const std::int64_t n = c.program.setting.tokens(), queries = c.program.local.query_size();
  auto d_qkv = c.flat(whole.buffer).view({n, -1});
  at::Tensor made;  // the gradient of the queries, when it is in a wider type
  if (so_far) made = c.flat(so_far->buffer).view({n, -1});
  return [=, home = keys.all_RNW.select(0, 0), columns = keys.columns_NW](RunState& run, math::Scratch&) mutable {
    if (adds) {
      out.add_(in);
      run.settle();
    }
    pass_on(*ring, out, in, dtype);
    if (made.defined()) d_qkv.narrow(1, 0, queries).copy_(made.narrow(1, 0, queries));
    columns.copy_(home);
  };
}

Kernel bind_gathered_attention(const Operands& o, const Common& common, const program::Compute& op,
                               const program::Setting& setting) {
  const int ranks = setting.context_ranks();
  std::vector<std::vector<PositionRun>> keys;
  for (int r = 0; r < ranks; ++r) keys.push_back(arch::context_runs(setting.sequence, r, ranks));
  const std::int64_t queries = common.arch.query_size();
  const std::array<std::int64_t, 3> of_all{ranks, o.tokens(), 2 * common.arch.kv_heads * common.arch.head_dim};
  const auto at_rank = [](const at::Tensor& all, std::size_t r) { return all.select(0, static_cast<std::int64_t>(r)); };
  if (!program::is_backward(op.pass)) {
    auto qkv = o.rows(Arg::kQkv), kv = o.view(Arg::kKeys, of_all), out = o.rows(Arg::kY),
         lse = o.view(Arg::kLse, lse_shape(common));
    return [=](RunState&, math::Scratch& s) mutable {
      at::Tensor sum = is_narrow(out) ? wide_rows(out, queries, s) : out;
      for (std::size_t r = 0; r < keys.size(); ++r)
        model::context_attention_forward(common.context(s), qkv, at_rank(kv, r), keys[r], r == 0, sum, lse);
      if (is_narrow(out)) out.copy_(sum);
    };
  }
  auto d_o = o.rows(Arg::kDY), qkv = o.rows(Arg::kQkv), out = o.rows(Arg::kY),
       lse = o.view(Arg::kLse, lse_shape(common)), kv = o.view(Arg::kKeys, of_all), d_qkv = o.rows(Arg::kDQkv),
       d_kv = o.view(Arg::kDKeys, of_all);
  return [=](RunState&, math::Scratch& s) mutable {
    at::Tensor sum = is_narrow(d_qkv) ? wide_rows(d_qkv, queries, s) : d_qkv;
    for (std::size_t r = 0; r < keys.size(); ++r) {
      at::Tensor d_keys = at_rank(d_kv, r);
      model::context_attention_backward(common.context(s), d_o, qkv, at_rank(kv, r), keys[r], out, lse, r > 0, false,
                                        sum, d_keys);
    }
    if (is_narrow(d_qkv)) d_qkv.narrow(1, 0, queries).copy_(sum);
  };
}

Kernel bind_ring_attention(const Operands& o, const Common& common, const program::Compute& op,
                           const program::Setting& setting, const mesh::PerAxis& coordinates) {
  const int ranks = setting.context_ranks(), step = static_cast<int>(op.chunk);
  MOLEN_CHECK(step >= 0 && step < ranks, "step {} of a ring of {}", step, ranks);
  const auto keys = arch::context_runs(setting.sequence, (coordinates[mesh::Axis::kCp] + ranks - step) % ranks, ranks);
  const bool first = step == 0;
  const std::array<std::int64_t, 2> rows{o.tokens(), 2 * common.arch.kv_heads * common.arch.head_dim};
  if (!program::is_backward(op.pass)) {
    auto qkv = o.rows(Arg::kQkv), out = o.rows(Arg::kY), lse = o.view(Arg::kLse, lse_shape(common));
    auto kv = first ? at::Tensor() : o.view(Arg::kKeys, rows), sum = o.has(Arg::kYSoFar) ? o.rows(Arg::kYSoFar) : out;
    return [=](RunState&, math::Scratch& s) mutable {
      const model::Context context = common.context(s);
      model::context_attention_forward(context, qkv, first ? model::key_value_columns(context, qkv) : kv, keys, first,
                                       sum, lse);
      if (out.scalar_type() != sum.scalar_type()) out.copy_(sum);
    };
  }
  auto d_o = o.rows(Arg::kDY), qkv = o.rows(Arg::kQkv), out = o.rows(Arg::kY),
       lse = o.view(Arg::kLse, lse_shape(common)), d_qkv = o.rows(Arg::kDQkv), d_kv = o.view(Arg::kDKeys, rows);
  auto kv = first ? at::Tensor() : o.view(Arg::kKeys, rows);
  return [=](RunState&, math::Scratch& s) mutable {
    const model::Context context = common.context(s);
    model::context_attention_backward(context, d_o, qkv, first ? model::key_value_columns(context, qkv) : kv, keys, out,
                                      lse, !first, false, d_qkv, d_kv);
  };
}

}  // namespace molen::exec
