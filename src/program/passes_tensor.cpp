// What tensor ranks exchange between the parts of a layer.
#include <map>

#include "program/build.h"
#include "program/build_detail.h"

namespace molen::program::pass {
namespace {

struct Exchange {
  Moves moves{};
  std::int64_t layer = -1;
};

// What a part reads by rows, and what it leaves as a sum.
struct Exchanges {
  std::vector<Exchange> in;
  std::optional<Exchange> out;
  bool adds = false;  // the sum joins the residual gradient
};

Exchanges exchanges_of(const Program& p, const Compute& c) {
  using arch::Part;
  const std::int64_t l = c.layer, last = p.arch.layers;
  const bool backward = is_backward(c.pass);
  switch (c.part) {
    case Part::kEmbed:
      if (backward) return {{{Moves::kDResidual, 0}}, {}, false};
      return {{}, Exchange{Moves::kResidual, 0}, false};
    case Part::kNormQkv:
      if (backward) return {{{Moves::kResidual, l}}, Exchange{Moves::kDResidual, l}, true};
      return {{{Moves::kResidual, l}}, {}, false};
    case Part::kOutProjection:
      if (backward) return {{{Moves::kDMid, l}}, {}, false};
      return {{}, Exchange{Moves::kMid, l}, false};
    case Part::kNormUp:
      if (backward) return {{{Moves::kMid, l}}, Exchange{Moves::kDMid, l}, true};
      return {{{Moves::kMid, l}}, {}, false};
    case Part::kDown:
      if (backward) return {{{Moves::kDResidual, l + 1}}, {}, false};
      return {{}, Exchange{Moves::kResidual, l + 1}, false};
    case Part::kFinalNorm:
      // Its backward follows at once and finds the rows that its forward gathered.
      if (backward) return {{}, Exchange{Moves::kDResidual, last}, false};
      return {{{Moves::kResidual, last}}, {}, false};
    case Part::kHeadLogits:
      return {{}, Exchange{Moves::kHead, c.chunk}, false};
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
      if (p_.setting.sharded_rows())
        for (const Exchange& in : e.in) gather(in, step);
      steps_.push_back(step);
      // Gradients of weights stay on their rank.
      if (e.out && c->pass != ComputePass::kWeights) sum(*e.out, e.adds, step);
    }
    body.steps = std::move(steps_);
  }

 private:
  static std::string suffix_of(const Program& p, const Step& step) {
    // Buffers of a layer's middle carry the pass they belong to: "mid.3", "mid.fwd", "mid.re".
    for (const auto* uses : {&step.reads, &step.writes})
      for (const Use& use : *uses) {
        const std::string& name = p.buffers[static_cast<std::size_t>(use.buffer)].name;
        if (name.rfind("mid", 0) == 0) return name.substr(name.find('.') + 1);
      }
    return "";
  }

  // All rows for `step` to read, in a buffer of its own.
  void gather(const Exchange& e, Step& step) {
    Step gather = detail::make_step(p_, AllGather{Axis::kTp, e.moves, e.layer}, -1, step.phase, Stream::kDpComm,
                                    suffix_of(p_, step));
    const int rows = gather.writes[0].buffer, copy = detail::copy_of(p_, rows, copies_[rows]++);
    gather.writes[0].buffer = copy;
    for (Use& use : step.reads)
      if (use.buffer == rows) use.buffer = copy;
    steps_.push_back(std::move(gather));
  }

  void sum(const Exchange& e, bool adds, const Step& step) {
    Op op = AllReduce{Axis::kTp, e.moves, e.layer};
    if (e.moves == Moves::kHead)
      op = AllGather{Axis::kTp, e.moves, e.layer};
    else if (p_.setting.sharded_rows())
      op = ReduceScatter{Axis::kTp, adds, e.moves, e.layer};
    steps_.push_back(detail::make_step(p_, std::move(op), -1, step.phase, Stream::kDpComm, suffix_of(p_, step)));
  }

  Program& p_;
  std::map<int, int> copies_;
  std::vector<Step> steps_;
};

}  // namespace

Program exchange_tensors(Program p) {
  if (!p.setting.tensor()) return p;
  for (Body& body : p.bodies) Exchanger(p).run(body);
  return p;
}

}  // namespace molen::program::pass
