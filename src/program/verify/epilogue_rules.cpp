#include "program/verify/epilogue_rules.h"

#include <algorithm>

namespace molen::program {
namespace {

class EpilogueRules {
 public:
  EpilogueRules(const Traits& t, const PartCostRules& parts, const Amounts& amounts)
      : t_(t), parts_(parts), amounts_(amounts) {}

  EpiloguesAsked operator()(const Compute& c) {
    // The other half of the backward still reads the residual gradient so far, so the sum begins as a copy of it.
    if (amounts_.find(Arg::kDResidual)) copies(Epilogue::kCopy, amounts_.bytes(Arg::kDResidual));
    if (c.part == arch::Part::kAttention && t_.context()) round_sums(c);
    if (const std::int64_t bytes = parts_.assembled(c, amounts_); bytes > 0) asked_.add(Epilogue::kAssemble, bytes);
    return asked_;
  }
  // The loader gives whole sequences, of which the context rank keeps its positions.
  EpiloguesAsked operator()(const LoadBatch&) {
    if (t_.context())
      copies(Epilogue::kUnpack,
             amounts_.bytes(Arg::kIds) + amounts_.bytes(Arg::kLabels) + amounts_.bytes(Arg::kDocuments));
    return asked_;
  }
  EpiloguesAsked operator()(const ReduceScatter& o) {
    if (o.payload == Payload::kDKeys) {
      unpack_keys(Arg::kFrom, t_.context_ranks(), Arg::kTo);
      return asked_;
    }
    const std::int64_t sum = amounts_.bytes(Arg::kTo);
    const bool beside = amounts_.find(Arg::kSoFar);
    if (beside || amounts_.updates(Arg::kTo)) add_up(sum);
    if (beside) copies(Epilogue::kCopy, sum);
    return asked_;
  }
  // A rank's own keys and values lie among its queries, so they are put side by side before they are sent.
  EpiloguesAsked operator()(const AllGather& o) {
    if (o.payload == Payload::kKeys) copies(Epilogue::kPack, amounts_.bytes(Arg::kTo) / t_.context_ranks());
    return asked_;
  }
  EpiloguesAsked operator()(const RingExchange& o) {
    if (o.payload == Payload::kKeys) {
      if (amounts_.find(Arg::kOwn)) copies(Epilogue::kPack, amounts_.bytes(Arg::kOwn));
      return asked_;
    }
    if (amounts_.updates(Arg::kTo)) add_up(amounts_.bytes(Arg::kTo));
    if (!amounts_.find(Arg::kDQkv)) return asked_;
    if (const Need* sums = amounts_.find(Arg::kDQkvSoFar))
      rounds(amounts_.elements(*sums), sums->dtype, amounts_.find(Arg::kDQkv)->dtype);
    unpack_keys(Arg::kTo, 1, Arg::kDQkv);
    return asked_;
  }
  // Rows that leave the rank of their experts are put together by rank; rows that arrive are put together by expert, or
  // in the order in which this rank's tokens have them.
  EpiloguesAsked operator()(const AllToAll& o) {
    copies(o.home() ? Epilogue::kPack : Epilogue::kUnpack, amounts_.bytes(Arg::kFrom));
    return asked_;
  }
  template <class Other>
  EpiloguesAsked operator()(const Other&) {
    return asked_;
  }

 private:
  void copies(Epilogue kind, std::int64_t bytes) { asked_.add(kind, 2 * bytes); }  // reads and writes
  void add_up(std::int64_t bytes) { asked_.add(Epilogue::kAdd, 3 * bytes); }       // reads two terms, writes the sum
  void rounds(std::int64_t elements, DType from, DType to) {
    asked_.add(Epilogue::kCopy, elements * (size_of(from) + size_of(to)));
  }
  // Attention of context ranks sums results, or gradients of queries, in fp32 if they are narrower. The sums of a ring
  // are an operand. Results have as many elements as queries.
  void round_sums(const Compute& c) {
    const Need* result = amounts_.find(is_backward(c.pass) ? Arg::kDQkv : Arg::kY);
    const Need* sums = amounts_.find(Arg::kYSoFar);
    if (!result || size_of(result->dtype) >= size_of(DType::kF32)) return;
    if (c.portion < 0 || sums) rounds(amounts_.elements(*amounts_.find(Arg::kY)), DType::kF32, result->dtype);
  }
  // Gradients of this rank's keys and values move from the sums of all ranks to their place beside those of the
  // queries.
  void unpack_keys(Arg sums, std::int64_t ranks, Arg kept) {
    const Need &from = *amounts_.find(sums), &to = *amounts_.find(kept);
    asked_.add(Epilogue::kUnpack, amounts_.elements(from) / ranks * (size_of(from.dtype) + size_of(to.dtype)));
  }

  const Traits& t_;
  const PartCostRules& parts_;
  const Amounts& amounts_;
  EpiloguesAsked asked_;
};

}  // namespace

bool EpiloguesAsked::are(const std::vector<EpilogueCost>& stated) const {
  std::size_t found = 0;
  for (std::size_t kind = 0; kind < bytes_.size(); ++kind) {
    if (bytes_[kind] < 0) continue;
    if (found == stated.size() || !(stated[found] == EpilogueCost{static_cast<Epilogue>(kind), Bytes(bytes_[kind])}))
      return false;
    ++found;
  }
  return found == stated.size();
}

std::vector<EpilogueCost> EpiloguesAsked::list() const {
  std::vector<EpilogueCost> all;
  for (const Epilogue kind : kAllEpilogues)
    if (const std::int64_t bytes = bytes_[static_cast<std::size_t>(kind)]; bytes >= 0)
      all.push_back({kind, Bytes(bytes)});
  return all;
}

EpiloguesAsked epilogues_asked(const Traits& t, const PartCostRules& parts, const Step& step, const Amounts& amounts) {
  return std::visit(EpilogueRules(t, parts, amounts), step.op);
}

}  // namespace molen::program
