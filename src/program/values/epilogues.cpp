#include "program/values/epilogues.h"

#include "program/ir/layout.h"
#include "program/values/payload.h"

namespace molen::program {
namespace {

// Returns the cost for `bytes` of result: a copy reads its source and writes its target, and a sum also reads its
// target.
EpilogueCost copies(Epilogue kind, std::int64_t bytes) {
  return {kind, Bytes(2 * bytes)};
}
EpilogueCost adds(std::int64_t bytes) {
  return {Epilogue::kAdd, Bytes(3 * bytes)};
}

class EpiloguesOf {
 public:
  EpiloguesOf(const Program& p, const Step& step) : p_(p), step_(step) {}

  std::vector<EpilogueCost> operator()(const Compute& c) const {
    // The backward of a norm adds to the residual gradient. If the old value is still to be read, it is copied first.
    if (step_.find(Arg::kDResidual)) return {copies(Epilogue::kCopy, bytes_of(Arg::kDResidual))};
    // Attention over the keys of several context ranks sums its result, or the gradient of the queries, in fp32, and
    // rounds the sum at the end.
    const Use* result = step_.find(Arg::kY);
    if (c.part != arch::Part::kAttention || context_ranks() == 1 || !result || width_of(*result) >= 4) return {};
    if (c.portion >= 0 && !step_.find(Arg::kYSoFar)) return {};  // any step of a ring but the last
    return {{Epilogue::kCopy, Bytes(used_elements(p_, *result, {}) * (size_of(DType::kF32) + width_of(*result)))}};
  }
  // A context rank loads whole sequences and keeps its own positions of these.
  std::vector<EpilogueCost> operator()(const LoadBatch&) const {
    if (p_.grid.sizes[mesh::Axis::kCp] == 1) return {};
    return {copies(Epilogue::kUnpack, bytes_of(Arg::kIds) + bytes_of(Arg::kLabels) + bytes_of(Arg::kDocuments))};
  }
  std::vector<EpilogueCost> operator()(const ReduceScatter& o) const {
    if (o.payload == Payload::kDKeys) return {unpacks_keys(Arg::kFrom, context_ranks(), Arg::kTo)};
    const std::int64_t own = o.payload == Payload::kUnit ? bytes_of(Arg::kTo) : bytes_of_own_rows(o.portion);
    if (step_.find(Arg::kSoFar)) return {adds(own), copies(Epilogue::kCopy, own)};
    if (step_.updates(Arg::kTo)) return {adds(own)};
    return {};
  }
  std::vector<EpilogueCost> operator()(const AllGather& o) const {
    if (o.payload != Payload::kKeys) return {};
    return {copies(Epilogue::kPack, bytes_of(Arg::kTo) / context_ranks())};
  }
  // Keys leave q|k|v at the first step of a ring. Gradients of keys are summed on the way around the ring and end
  // beside the gradients of the queries. If the gradients of the queries were summed in a wider type, they are copied
  // from the buffer of these sums.
  std::vector<EpilogueCost> operator()(const RingExchange& o) const {
    const std::int64_t keys = bytes_of(Arg::kTo);
    std::vector<EpilogueCost> all;
    if (o.payload == Payload::kKeys) {
      if (o.step == 1) all.push_back(copies(Epilogue::kPack, keys));
      return all;
    }
    if (o.step > 1) all.push_back(adds(keys));
    if (o.step < context_ranks()) return all;
    if (const Use* so_far = step_.find(Arg::kDQkvSoFar), *d_qkv = step_.find(Arg::kDQkv); so_far && d_qkv) {
      const std::int64_t queries = used_elements(p_, *so_far, {});
      all.push_back({Epilogue::kCopy, Bytes(queries * (width_of(*so_far) + width_of(*d_qkv)))});
    }
    all.push_back(unpacks_keys(Arg::kTo, 1, Arg::kDQkv));
    return all;
  }
  // For the exchange, the rows for one rank are side by side; for the products, the rows for one expert are side by
  // side.
  std::vector<EpilogueCost> operator()(const AllToAll& o) const {
    return {copies(o.home() ? Epilogue::kPack : Epilogue::kUnpack, payload_bytes(p_, step_, {}).value)};
  }
  template <class Other>
  std::vector<EpilogueCost> operator()(const Other&) const {
    return {};
  }

 private:
  // Returns 0 if there is no such operand. An op from a text may lack the operand or name a piece of rows that does not
  // exist; the verifier reports both.
  std::int64_t bytes_of(Arg arg) const {
    const Use* use = step_.find(arg);
    return use ? used_bytes(p_, *use, {}) : 0;
  }
  std::int64_t width_of(const Use& use) const {
    return size_of(p_.buffers.at(static_cast<std::size_t>(use.buffer)).dtype);
  }
  // Returns the cost of moving summed gradients of keys to their place beside those of the queries. The sums may have a
  // wider type.
  EpilogueCost unpacks_keys(Arg sums, std::int64_t ranks, Arg kept) const {
    const Use *from = step_.find(sums), *to = step_.find(kept);
    if (!from || !to) return {Epilogue::kUnpack, Bytes()};
    return {Epilogue::kUnpack, Bytes(used_elements(p_, *from, {}) / ranks * (width_of(*from) + width_of(*to)))};
  }
  std::int64_t bytes_of_own_rows(std::int64_t chunk) const {
    const Use* to = step_.find(Arg::kTo);
    const Rows& rows = step_.attributes.rows;
    if (!to || (rows.in_pieces() && chunk < 0) || chunk >= rows.pieces) return 0;
    const auto [first, last] = row_range(rows, p_.grid, {}, chunk);
    return (last - first) * p_.arch.hidden * width_of(*to);
  }
  std::int64_t context_ranks() const { return p_.grid.sizes[mesh::Axis::kCp]; }

  const Program& p_;
  const Step& step_;
};

}  // namespace

std::vector<EpilogueCost> epilogues_of(const Program& p, const Step& step) {
  return std::visit(EpiloguesOf(p, step), step.op);
}

}  // namespace molen::program
