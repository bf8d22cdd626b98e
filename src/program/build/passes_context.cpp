// The communication of context ranks: for the attention of a layer, for the balance loss of its router, and for the
// capacity of its experts.
#include <map>
#include <utility>

#include "program/build/build.h"
#include "program/build/build_detail.h"
#include "program/parts/part.h"
#include "program/values/of_setting.h"

namespace molen::program::pass {
namespace {

class ContextExchanger {
 public:
  explicit ContextExchanger(Program& p) : p_(p) {}

  void run(Body& body) {
    held_ = -1;
    known_ = nullptr;
    for (Step& step : body.steps) {
      const auto* c = std::get_if<Compute>(&step.op);
      const bool counts = c && c->part == arch::Part::kRoute && c->pass == Pass::kForward;
      if (counts && p_.setting.purpose == Purpose::kTrain)
        routed(*c, step);
      else if (!c || !declaration_of(c->part).mixes_positions())
        steps_.push_back(std::move(step));
      else if (p_.setting.ring())
        ring(*c, step);
      else
        gathered(*c, step);
    }
    body.steps = std::move(steps_);
  }

 private:
  // Adds an op beside `whole` or in its place. The op uses the buffers of `whole`, because recomputation may have moved
  // some operands to other buffers.
  void add(Op op, const Compute& c, const Step& whole, Stream stream) {
    if (std::exchange(known_, &whole) != &whole) find_buffers(c, whole);
    Step step = detail::make_step(p_, std::move(op), -1, whole.phase, stream);
    for (Use& use : step.operands)
      if (const auto found = actual_.find(use.buffer); found != actual_.end()) use.buffer = found->second;
    steps_.push_back(std::move(step));
  }

  // Finds the buffers that `whole` uses in place of those that are made for its operands.
  void find_buffers(const Compute& c, const Step& whole) {
    Compute plain = c;
    plain.portion = -1;
    actual_.clear();
    for (const Operand& o : signature(p_, plain, -1).operands)
      actual_[detail::ensure_buffer(p_, o)] = whole.operand(o.arg).buffer;
  }

  void gathered(const Compute& c, const Step& whole) {
    if (std::exchange(held_, c.layer) != c.layer)
      add(AllGather{Axis::kCp, Payload::kKeys, c.layer}, c, whole, stream_of(Axis::kCp));
    steps_.push_back(whole);
    if (is_backward(c.pass)) add(ReduceScatter{Axis::kCp, Payload::kDKeys, c.layer}, c, whole, stream_of(Axis::kCp));
  }

  // An expert takes the first tokens of a sequence, which the ranks find from their numbers of choices. The balance
  // loss of a sequence needs the load of all tokens of the sequence. The experts wait for the choices and not for the
  // load.
  void routed(const Compute& c, const Step& whole) {
    steps_.push_back(whole);
    if (p_.arch.drops_tokens()) {
      add(AllGather{Axis::kCp, Payload::kCounts, c.layer}, c, whole, stream_of(Axis::kCp));
      add(Compute{arch::Part::kLimit, Pass::kForward, c.layer}, c, whole, Stream::kCompute);
    }
    add(AllReduce{Axis::kCp, Payload::kLoad, c.layer}, c, whole, stream_of(Axis::kCp));
  }

  // Sends keys on while the attention over the present keys runs, and sends their gradients on while the attention over
  // the next keys runs.
  void ring(const Compute& c, const Step& whole) {
    const int ranks = p_.setting.context_ranks();
    // With at most 3 ranks, the two key slots still hold the keys of all other ranks.
    const bool there = std::exchange(held_, c.layer) == c.layer && ranks <= 3;
    for (int i = 0; i < ranks; ++i) {
      if (i + 1 < ranks && !there)
        add(RingExchange{Axis::kCp, Payload::kKeys, c.layer, i + 1}, c, whole, stream_of(Axis::kCp));
      Compute step = c;
      step.portion = i;
      add(step, c, whole, Stream::kCompute);
      if (is_backward(c.pass))
        add(RingExchange{Axis::kCp, Payload::kDKeys, c.layer, i + 1}, c, whole, stream_of(Axis::kCp));
    }
  }

  Program& p_;
  std::vector<Step> steps_;
  const Step* known_ = nullptr;  // the op of which actual_ has the buffers
  std::map<int, int> actual_;
  // The layer whose keys the previous attention left in the slots. The keys are still there for the backward of the
  // last layer and of a layer that has just been computed again.
  std::int64_t held_ = -1;
};

}  // namespace

Program exchange_context(Program p) {
  if (!p.setting.context()) return p;
  for (Body& body : p.bodies) ContextExchanger(p).run(body);
  detail::drop_unused_buffers(p);
  return p;
}

}  // namespace molen::program::pass
