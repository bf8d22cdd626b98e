// The communication of tensor ranks between the parts of a layer.
#include <map>

#include "program/build/build.h"
#include "program/build/build_detail.h"
#include "program/parts/operands.h"
#include "program/parts/part.h"
#include "program/values/of_setting.h"
#include "program/values/value_memory.h"

namespace molen::program::pass {
namespace {

struct Exchanging {
  Payload payload{};
  std::int64_t layer = -1;
};

// The values that a part reads as gathered rows, and the value that it leaves for the other ranks. That value is a term
// of a sum, or the rank's own part of a value to be gathered.
struct Exchanges {
  std::vector<Exchanging> in;
  std::optional<Exchanging> out;
};

Exchanges exchanges_of(const Program& p, const Compute& c) {
  Exchanges e;
  for (const PartOperand& o : operands_declared(declaration_of(c.part), c.pass)) {
    const std::int64_t layer = layer_of(p, c, o);
    switch (o.exchange) {
      case Exchange::kGathers:
        e.in.push_back({exchanged(o.value).payload, layer});
        break;
      case Exchange::kSums:
        e.out = Exchanging{exchanged(o.value).payload, layer};
        break;
      case Exchange::kSideBySide:
        e.out = Exchanging{Payload::kHead, layer};
        break;
      case Exchange::kNone:
      case Exchange::kGathered:
        break;
    }
  }
  return e;
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
      // All gathers come before the first product, so that their stream does not wait for a product between two pieces.
      std::vector<Step> products = pieces_of(step);
      if (p_.setting.sharded_rows())
        for (const Exchanging& in : e.in)
          for (Step& product : products) gather(in, product);
      for (Step& product : products) {
        steps_.push_back(product);
        // Gradients of weights stay on their rank.
        if (e.out && c->pass != Pass::kBackwardWeights) sum(*e.out, product);
      }
    }
    body.steps = std::move(steps_);
  }

 private:
  // Returns the part once for each piece of its rows.
  std::vector<Step> pieces_of(const Step& step) {
    const auto& whole = std::get<Compute>(step.op);
    if (!by_pieces(p_.setting.rows(), whole.part)) return {step};
    std::vector<Step> pieces;
    for (const std::int64_t chunk : pieces_of_rows(p_.setting.rows())) {
      Compute piece = whole;
      piece.portion = chunk;
      Step made = detail::make_step(p_, piece, -1, step.phase, step.stream, suffix_of(p_, step));
      // Operands without a buffer for each piece keep the buffers of `step`, because recomputation may have moved them.
      const Signature of_piece = signature(p_, piece, -1);
      for (const Operand& o : of_piece.operands)
        if (!piece_apart(p_, o)) made.operand(o.arg) = step.operand(o.arg);
      pieces.push_back(std::move(made));
    }
    return pieces;
  }

  // Returns the pieces of rows that a step reads or writes: its own piece, or all pieces.
  std::vector<std::int64_t> chunks_of(const Step& step) const {
    const auto& c = std::get<Compute>(step.op);
    return by_pieces(p_.setting.rows(), c.part) ? std::vector{c.portion} : pieces_of_rows(p_.setting.rows());
  }

  static std::string suffix_of(const Program& p, const Step& step) {
    // When forward and recompute have separate buffers, the slot of the layer's middle distinguishes them.
    for (const Use& use : step.operands) {
      const Buffer& b = p.buffers[static_cast<std::size_t>(use.buffer)];
      if (b.role == Value::kMid || b.role == Value::kMidSum || b.role == Value::kMidRows) return b.slot;
    }
    return "";
  }

  // Gathers the rows that `step` reads into a separate buffer.
  void gather(const Exchanging& e, Step& step) {
    std::map<int, int> own;  // one copy for all pieces that share a buffer
    for (const std::int64_t chunk : chunks_of(step)) {
      Step gather = detail::make_step(p_, AllGather{Axis::kTp, e.payload, e.layer, chunk}, -1, step.phase,
                                      stream_of(Axis::kTp), suffix_of(p_, step));
      const int rows = gather.operand(Arg::kTo).buffer;
      if (!own.count(rows)) own[rows] = detail::copy_of(p_, rows, copies_[rows]++);
      gather.operand(Arg::kTo).buffer = own[rows];
      steps_.insert(place_of_gather(e, chunk), std::move(gather));
    }
    for (Use& use : step.operands)
      if (const auto copy = own.find(use.buffer); use.reads() && copy != own.end()) use.buffer = copy->second;
  }

  // Returns the place right after the reduce-scatter of the same piece, or the end when there is no such op. The
  // reduce-scatter precedes the gather on the same stream, so the next product may begin while sums of later pieces
  // run.
  std::vector<Step>::iterator place_of_gather(const Exchanging& e, std::int64_t chunk) {
    if (chunk >= 0)
      for (auto step = steps_.end(); step != steps_.begin();) {
        const auto* sum = std::get_if<ReduceScatter>(&(--step)->op);
        if (sum && sum->payload == e.payload && sum->layer == e.layer && sum->portion == chunk) return step + 1;
        const auto* product = std::get_if<Compute>(&step->op);
        if (product && !by_pieces(p_.setting.rows(), product->part)) break;
      }
    return steps_.end();
  }

  void sum(const Exchanging& e, const Step& step) {
    const auto add = [&](Op op) {
      steps_.push_back(detail::make_step(p_, std::move(op), -1, step.phase, stream_of(Axis::kTp), suffix_of(p_, step)));
    };
    if (e.payload == Payload::kHead) return add(AllGather{Axis::kTp, e.payload, e.layer});
    if (!p_.setting.sharded_rows()) return add(AllReduce{Axis::kTp, e.payload, e.layer});
    for (const std::int64_t chunk : chunks_of(step)) add(ReduceScatter{Axis::kTp, e.payload, e.layer, chunk});
  }

  Program& p_;
  std::map<int, int> copies_;
  std::vector<Step> steps_;
};

}  // namespace

Program exchange_tensors(Program p) {
  if (!p.setting.tensor()) return p;
  for (Body& body : p.bodies) Exchanger(p).run(body);
  if (p.setting.rows_in_pieces()) detail::drop_unused_buffers(p);  // buffers of all rows, which are now in pieces
  return p;
}

}  // namespace molen::program::pass
