#include "exec/bind_context.h"

#include "arch/context_parallel.h"
#include "model/context.h"

namespace molen::exec {
namespace {

// Keys and values side by side, as context ranks exchange them. Slice r of `all_RNW` belongs to rank r.
struct KeyValues {
  at::Tensor all_RNW, columns_NW;  // columns_NW: this rank's own columns in q|k|v
  KeyValues(const BindContext& c, const program::Step& step, Arg all, Arg qkv) {
    const auto& a = c.program.local;
    const std::int64_t n = step.attributes.rows.count(), width = 2 * a.kv_heads * a.head_dim;
    all_RNW = c.flat(step.operand(all).buffer).view({-1, n, width});
    columns_NW = c.flat(step.operand(qkv).buffer).view({n, -1}).narrow(1, a.query_size(), width);
  }
  std::vector<std::int64_t> counts() const {
    return std::vector<std::int64_t>(static_cast<std::size_t>(all_RNW.size(0)), columns_NW.numel());
  }
};

// Ranks with an even number send first, and the others receive first. In a ring of odd size two neighbours both send
// first, and one of them waits.
void pass_on(comm::Communicator& ring, const at::Tensor& out, at::Tensor& in, DType dtype) {
  const int ranks = ring.size(), next = (ring.rank() + 1) % ranks, before = (ring.rank() + ranks - 1) % ranks;
  const bool sends_first = ring.rank() % 2 == 0;
  if (sends_first) ring.send(out.data_ptr(), out.numel(), dtype, next);
  ring.recv(in.data_ptr(), in.numel(), dtype, before);
  if (!sends_first) ring.send(out.data_ptr(), out.numel(), dtype, next);
}

}  // namespace

std::vector<PositionRun> positions_of(const program::Grid& grid, std::int64_t sequence,
                                      const mesh::PerAxis& coordinates) {
  const int ranks = grid.sizes[mesh::Axis::kCp];
  if (ranks == 1) return {};
  return arch::context_runs(sequence, coordinates[mesh::Axis::kCp], ranks);
}

// Loads whole sequences; the context rank takes its own positions and counts their labels.
Kernel bind_load_part(const BindContext& c, const program::Step& step) {
  auto ids = c.flat(step.operand(Arg::kIds).buffer), labels = c.flat(step.operand(Arg::kLabels).buffer),
       scalars = c.flat(step.operand(Arg::kScalars).buffer);
  const program::Rows& rows = step.attributes.rows;
  at::Tensor documents;
  if (const program::Use* use = step.find(Arg::kDocuments)) documents = c.flat(use->buffer);
  const bool counted = std::get<program::LoadBatch>(step.op).counts_tokens;
  return [=, batch = rows.sequences, count = rows.count(),
          runs = positions_of(c.program.grid, rows.length, c.coordinates)](RunState& run, math::Scratch&) mutable {
    const MicroBatch whole = run.step.staged(static_cast<std::size_t>(count), documents.defined());
    run.step.input->load(whole);
    run.epilogue(program::Epilogue::kUnpack, [&] {
      model::take_rows(batch, runs, at::from_blob(whole.ids, {count}, at::kInt), ids);
      model::take_rows(batch, runs, at::from_blob(whole.labels, {count}, at::kInt), labels);
      if (documents.defined())
        model::take_rows(batch, runs, at::from_blob(whole.document_start, {count}, at::kInt), documents);
      return 2 * (RunState::bytes_of(ids) + RunState::bytes_of(labels) +
                  (documents.defined() ? RunState::bytes_of(documents) : 0));
    });
    if (!counted) return;
    std::int64_t valid = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      for (const PositionRun& r : runs)
        for (std::int64_t t = r.first; t < r.last; ++t)
          valid += run.step.labels[static_cast<std::size_t>(b * (count / batch) + t)] >= 0;
    if (scalars.device().is_cpu())
      scalars.data_ptr<double>()[program::kValidTokens] += static_cast<double>(valid);
    else
      scalars.select(0, program::kValidTokens).add_(static_cast<double>(valid));
  };
}

Kernel bind_gather_keys(const BindContext& c, const program::Step& step, comm::Communicator* group) {
  const KeyValues keys(c, step, Arg::kTo, Arg::kFrom);
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  return
      [=, own = keys.all_RNW.select(0, group->rank()), counts = keys.counts()](RunState& run, math::Scratch&) mutable {
        run.copy(program::Epilogue::kPack, own, keys.columns_NW);
        run.settle();
        group->all_gather(own.data_ptr(), keys.all_RNW.data_ptr(), counts, dtype);
      };
}

// Sums the gradients of each rank's keys and values over all ranks, and gives the sum to that rank.
Kernel bind_scatter_keys(const BindContext& c, const program::Step& step, comm::Communicator* group) {
  const KeyValues keys(c, step, Arg::kFrom, Arg::kTo);
  const DType dtype = dtype_of(c, step.operand(Arg::kFrom));
  return [=, own = keys.all_RNW.select(0, group->rank()), counts = keys.counts(), columns = keys.columns_NW](
             RunState& run, math::Scratch&) mutable {
    group->reduce_scatter(keys.all_RNW.data_ptr(), own.data_ptr(), counts, dtype, comm::Reduce::kSum);
    run.copy(program::Epilogue::kUnpack, columns, own);
  };
}

Kernel bind_ring_exchange(const BindContext& c, const program::Step& step, comm::Communicator* ring) {
  const auto& op = std::get<program::RingExchange>(step.op);
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  auto in = c.flat(step.operand(Arg::kTo).buffer);
  if (op.payload == program::Payload::kKeys && op.step == 1) {
    const KeyValues keys(c, step, Arg::kOwn, Arg::kFrom);
    return [=, own = keys.all_RNW.select(0, 0)](RunState& run, math::Scratch&) mutable {
      run.copy(program::Epilogue::kPack, own, keys.columns_NW);
      run.settle();
      pass_on(*ring, own, in, dtype);
    };
  }
  auto out = c.flat(step.operand(Arg::kFrom).buffer);
  if (op.payload == program::Payload::kKeys)
    return [=](RunState&, math::Scratch&) mutable { pass_on(*ring, out, in, dtype); };
  const bool adds = op.step > 1;
  if (op.step < ring->size())
    return [=](RunState& run, math::Scratch&) mutable {
      if (adds) {
        run.add(out, in);
        run.settle();
      }
      pass_on(*ring, out, in, dtype);
    };
  // The keys are back at their own rank, so their gradient is stored beside the gradient of the queries.
  const program::Use* so_far = step.find(Arg::kDQkvSoFar);
  const KeyValues keys(c, step, Arg::kTo, Arg::kDQkv);
  const std::int64_t n = step.attributes.rows.count(), queries = c.program.local.query_size();
  auto d_queries = c.flat(step.operand(Arg::kDQkv).buffer).view({n, -1}).narrow(1, 0, queries);
  at::Tensor made;  // the gradient of the queries, when it is in a wider type
  if (so_far) made = c.flat(so_far->buffer).view({n, -1}).narrow(1, 0, queries);
  return [=, home = keys.all_RNW.select(0, 0), columns = keys.columns_NW](RunState& run, math::Scratch&) mutable {
    if (adds) {
      run.add(out, in);
      run.settle();
    }
    pass_on(*ring, out, in, dtype);
    if (made.defined()) run.copy(program::Epilogue::kCopy, d_queries, made);
    run.copy(program::Epilogue::kUnpack, columns, home);
  };
}

}  // namespace molen::exec
