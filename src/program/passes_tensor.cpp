// The communication of tensor ranks between the parts of a layer.
#include <map>

#include "program/build.h"
#include "program/build_detail.h"
#include "program/value_memory.h"

namespace molen::program::pass {
namespace {

struct Exchange {
  Moves moves{};
  std::int64_t layer = -1;
};

// The values that a part reads as gathered rows, and the partial sum that it leaves.
struct Exchanges {
  std::vector<Exchange> in;
  std::optional<Exchange> out;
};

Exchanges exchanges_of(const Program& p, const Compute& c) {
  using arch::Part;
  const std::int64_t l = c.layer, last = p.arch.layers;
  const bool backward = is_backward(c.pass);
  switch (c.part) {
    case Part::kEmbed:
      if (backward) return {{{Moves::kDResidual, 0}}, {}};
      return {{}, Exchange{Moves::kResidual, 0}};
    case Part::kNormQkv:
      if (backward) return {{{Moves::kResidual, l}}, Exchange{Moves::kDResidual, l}};
      return {{{Moves::kResidual, l}}, {}};
    case Part::kOutProjection:
      if (backward) return {{{Moves::kDMid, l}}, {}};
      return {{}, Exchange{Moves::kMid, l}};
    case Part::kNormUp:
      if (backward) return {{{Moves::kMid, l}}, Exchange{Moves::kDMid, l}};
      return {{{Moves::kMid, l}}, {}};
    case Part::kDown:
      if (backward) return {{{Moves::kDResidual, l + 1}}, {}};
      return {{}, Exchange{Moves::kResidual, l + 1}};
    case Part::kFinalNorm:
      // Its backward follows at once and uses the rows that its forward gathered.
      if (backward) return {{}, Exchange{Moves::kDResidual, last}};
      return {{{Moves::kResidual, last}}, {}};
    case Part::kHeadLogits:
      return {{}, Exchange{Moves::kHead, c.chunk}};
    case Part::kAttention:
    case Part::kActivation:
    case Part::kHead:
    case Part::kHeadLoss:
      return {};
  }
  return {};
}

class Exchanger {
 public:
  explicit Exchanger(Program& p) : p_(p) {}

  void run(Body& body) {
    for (Step& step : body.steps) {
      const auto* c = std::get_if<Compute>(&step.op);
      if (!c) {
        steps_.push_back(step);
        continue;
      }
      const Exchanges e = exchanges_of(p_, *c);
      // All gathers stand before the first product, so that the communication stream waits for no product between two
      // pieces.
      std::vector<Step> products = pieces_of(step);
      if (p_.setting.sharded_rows())
        for (const Exchange& in : e.in)
          for (Step& product : products) gather(in, product);
      for (Step& product : products) {
        steps_.push_back(product);
        // Gradients of weights stay on their rank.
        if (e.out && c->pass != ComputePass::kWeights) sum(*e.out, product);
      }
    }
    body.steps = std::move(steps_);
  }

 private:
  // Returns the part once for each piece of its rows.
  std::vector<Step> pieces_of(const Step& step) {
    const auto& whole = std::get<Compute>(step.op);
    if (!by_chunks(p_.setting, whole.part)) return {step};
    std::vector<Step> pieces;
    for (const std::int64_t chunk : row_chunks(p_.setting)) {
      Compute piece = whole;
      piece.chunk = chunk;
      Step made = detail::make_step(p_, piece, -1, step.phase, step.stream, suffix_of(p_, step));
      // Operands without a buffer per piece keep the buffers of `step`: recomputation may have moved them.
      const Signature of_piece = signature(p_, piece, -1);
      for (const Operand& o : of_piece.operands)
        if (!chunk_apart(p_, o)) made.operand(o.arg) = step.operand(o.arg);
      pieces.push_back(std::move(made));
    }
    return pieces;
  }

  // Returns the pieces of rows that a step takes or leaves: its own piece, or all pieces.
  std::vector<std::int64_t> chunks_of(const Step& step) const {
    const auto& c = std::get<Compute>(step.op);
    return by_chunks(p_.setting, c.part) ? std::vector{c.chunk} : row_chunks(p_.setting);
  }

  static std::string suffix_of(const Program& p, const Step& step) {
    // When forward and recompute have separate buffers, the slot of the layer's middle tells them apart.
    for (const Use& use : step.operands) {
      const Buffer& b = p.buffers[static_cast<std::size_t>(use.buffer)];
      if (b.role == Value::kMid || b.role == Value::kMidSum || b.role == Value::kMidRows) return b.slot;
    }
    return "";
  }

  // Gathers the rows that `step` reads into a buffer of its own.
  void gather(const Exchange& e, Step& step) {
    std::map<int, int> own;  // one copy for all pieces that share a buffer
    for (const std::int64_t chunk : chunks_of(step)) {
      Step gather = detail::make_step(p_, AllGather{Axis::kTp, e.moves, e.layer, chunk}, -1, step.phase,
                                      Stream::kDpComm, suffix_of(p_, step));
      const int rows = gather.operand(Arg::kTo).buffer;
      if (!own.count(rows)) own[rows] = detail::copy_of(p_, rows, copies_[rows]++);
      gather.operand(Arg::kTo).buffer = own[rows];
      steps_.insert(place_of_gather(e, chunk), std::move(gather));
    }
    for (Use& use : step.operands)
      if (const auto copy = own.find(use.buffer); use.reads() && copy != own.end()) use.buffer = copy->second;
  }

  // Returns the place right after the reduce-scatter of the same piece, which precedes the gather on the same stream:
  // the next product may then begin while sums of later pieces are made. Without such a reduce-scatter, returns the
  // end.
  std::vector<Step>::iterator place_of_gather(const Exchange& e, std::int64_t chunk) {
    if (chunk >= 0)
      for (auto step = steps_.end(); step != steps_.begin();) {
        const auto* sum = std::get_if<ReduceScatter>(&(--step)->op);
        if (sum && sum->moves == e.moves && sum->layer == e.layer && sum->chunk == chunk) return step + 1;
        const auto* product = std::get_if<Compute>(&step->op);
        if (product && !by_chunks(p_.setting, product->part)) break;
      }
    return steps_.end();
  }

  void sum(const Exchange& e, const Step& step) {
    const auto add = [&](Op op) {
      steps_.push_back(detail::make_step(p_, std::move(op), -1, step.phase, Stream::kDpComm, suffix_of(p_, step)));
    };
    if (e.moves == Moves::kHead) return add(AllGather{Axis::kTp, e.moves, e.layer});
    if (!p_.setting.sharded_rows()) return add(AllReduce{Axis::kTp, e.moves, e.layer});
    for (const std::int64_t chunk : chunks_of(step)) add(ReduceScatter{Axis::kTp, e.moves, e.layer, chunk});
  }

  Program& p_;
  std::map<int, int> copies_;
  std::vector<Step> steps_;
};

}  // namespace

Program exchange_tensors(Program p) {
  if (!p.setting.tensor()) return p;
  for (Body& body : p.bodies) Exchanger(p).run(body);
  if (p.setting.chunked_rows()) detail::drop_unused_buffers(p);  // buffers of all rows
  return p;
}

}  // namespace molen::program::pass
