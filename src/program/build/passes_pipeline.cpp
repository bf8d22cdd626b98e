// One stage of a pipeline: its actions in the order of the schedule, and the messages between them.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "program/build/build.h"
#include "program/build/build_detail.h"
#include "program/build/stage_by_stage.h"
#include "program/values/of_setting.h"

namespace molen::program::pass {
namespace {

// An event of the step. Events are sorted into the order that all stages share: a message comes before the actions that
// start when it can be sent.
struct Event {
  double time = 0.0;
  int action = 0;  // 1: action; 0: message
  int backward = 0;
  int global_stage = 0, micro_batch = 0;  // of the action, or of the sender
  int body = -1;
  auto key() const { return std::tie(time, action, backward, global_stage, micro_batch); }
};

bool is_forward(Pass kind) {
  return kind == Pass::kForward;
}

class Stage {
 public:
  explicit Stage(Program p) : p_(std::move(p)), at_(p_.setting.pipeline), stages_(p_.setting.stages()) {
    // The constructor takes the bodies of pass::micro_batch, chunk by chunk. Each chunk has a buffer for its residual
    // gradient. Two chunks share one buffer when one hands its gradient to the other on this stage.
    const std::size_t each = p_.bodies.size() / p_.chunks.size();
    int gradients = 0;
    for (std::size_t c = 0; c < p_.chunks.size(); ++c) {
      const bool turns = c > 0 && p_.chunks[c].global_stage == p_.chunks[c - 1].global_stage + 1;
      if (c > 0 && !turns) ++gradients;
      gradient_.push_back(gradients);
      const auto first = p_.bodies.begin() + static_cast<std::ptrdiff_t>(c * each);
      actions_.emplace_back(first, first + static_cast<std::ptrdiff_t>(each));
      for (Body& body : actions_.back()) use_gradient(body, gradients);
    }
    p_.bodies.clear();
    begun_.assign(p_.chunks.size(), false);
  }

  Program train(const Schedule& schedule, const ScheduleTimes& times) {
    check_loads(schedule);
    count_left(schedule);
    // Messages are exchanged with the stages before and behind this one alone, of which the last and the first may be a
    // pair too.
    const std::set<int> near{at_.stage, (at_.stage + 1) % stages_, (at_.stage + stages_ - 1) % stages_};
    for (const int stage : near) {
      const auto& order = schedule.order[static_cast<std::size_t>(stage)];
      for (std::size_t k = 0; k < order.size(); ++k)
        add(stage, order[k], times.actions[static_cast<std::size_t>(stage)][k]);
    }
    return finish();
  }

  Program evaluate() {
    for (int g = 0; g < global(); ++g) {
      const int stage = stage_of(at_.placement, stages_, g);
      add(stage, {Pass::kForward, chunk_of(g), 0}, {2.0 * g, 2.0 * g + 1.0, 0.0});
    }
    return finish();
  }

 private:
  int global() const { return stages_ * at_.chunks; }
  int chunk_of(int g) const { return g / stages_; }

  void use_gradient(Body& body, int copy) {
    const int d_x = p_.find_buffer(Value::kDResidual, -1);
    if (d_x < 0 || copy == 0) return;
    const int own = detail::copy_of(p_, d_x, copy);
    for (Step& step : body.steps)
      for (Use& use : step.operands)
        if (use.buffer == d_x) use.buffer = own;
  }

  // The loader delivers micro-batches in ascending order.
  void check_loads(const Schedule& schedule) const {
    const bool first_loads = p_.embeds() || p_.setting.document_mask;
    if (!first_loads && !p_.has_head()) return;
    int next = 0;
    for (const Action& a : schedule.order[static_cast<std::size_t>(at_.stage)]) {
      const Chunk& chunk = p_.chunks[static_cast<std::size_t>(a.chunk)];
      const bool loads = first_loads ? a.chunk == 0 && is_forward(a.kind)
                                     : chunk.head && !is_forward(a.kind) && a.kind != Pass::kBackwardWeights;
      if (loads && a.micro_batch != next++)
        throw UsageError(
            "parallel.schedule: stage {} begins micro-batch {} where {} is next; samples are read in their order",
            at_.stage, a.micro_batch, next - 1);
    }
  }

  // Counts the actions of each kind that each chunk still has to run.
  void count_left(const Schedule& schedule) {
    left_.assign(p_.chunks.size(), {});
    for (const Action& a : schedule.order[static_cast<std::size_t>(at_.stage)]) {
      if (a.kind != Pass::kForward && a.kind != Pass::kBackward && !at_.halves)
        throw UsageError("parallel.schedule: has backwards in halves (I and W), which this run does not");
      ++left_[static_cast<std::size_t>(a.chunk)][static_cast<std::size_t>(a.kind)];
    }
  }

  // Returns the body of the stage's next action. The first backward of a chunk finds arbitrary contents in the
  // gradients. The last backward of a kind has a separate body, because that body completes the gradients.
  int body_of(const Action& a) {
    const auto c = static_cast<std::size_t>(a.chunk), kind = static_cast<std::size_t>(a.kind);
    const bool first = !begun_[c], last = !is_forward(a.kind) && --left_[c][kind] == 0;
    if (!is_forward(a.kind)) begun_[c] = true;
    int& known = action_bodies_.try_emplace({a.chunk, a.kind, !is_forward(a.kind) && first, last}, -1).first->second;
    if (known < 0) known = new_body_of(a, first, last);
    return known;
  }

  int new_body_of(const Action& a, bool first, bool last) {
    const auto c = static_cast<std::size_t>(a.chunk), kind = static_cast<std::size_t>(a.kind);
    Body body = actions_[c][kind];
    if (is_forward(a.kind)) return append(std::move(body));
    if (!first || !last) body.name += first ? ".first" : last ? ".last" : ".middle";
    prepare_gradients(body, p_.chunks[c], a.kind, first);
    return append(std::move(body));
  }

  void prepare_gradients(Body& body, const Chunk& chunk, Pass kind, bool first) {
    const bool fresh = p_.setting.reduces_each_micro_batch();  // each micro-batch has a gradient of its own
    // A half writes only some of a unit's parameters, and halves and whole backwards may come in any order. The
    // gradient is therefore cleared once, and all of these bodies add to it.
    const bool adds = at_.halves && (!fresh || kind != Pass::kBackward);
    detail::set_gradient_access(p_, body, !adds && (first || fresh));
    if (!first && !fresh) return;
    // On a stage with both ends of the model, a tied table is already cleared where the head's backward begins.
    const bool cleared = !fresh && p_.arch.tied && p_.has_head() && !chunk.head;
    detail::clear_gradients(p_, body, {cleared ? p_.find_unit("embed") : -1, adds, adds && !fresh ? &chunk : nullptr});
  }

  int append(Body body) {
    p_.bodies.push_back(std::move(body));
    return static_cast<int>(p_.bodies.size()) - 1;
  }

  // Adds an action of any stage. If this stage runs the action, its instance is added. If this stage sends or receives
  // the action's message, the message is added.
  void add(int stage, const Action& a, const OpTime& time) {
    const int g = global_stage_of(at_.placement, stages_, stage, a.chunk);
    const int backward = is_forward(a.kind) ? 0 : 1;
    const auto c = static_cast<std::size_t>(a.chunk);
    if (stage == at_.stage) events_.push_back({time.start_s, 1, backward, g, a.micro_batch, body_of(a)});
    if (a.kind == Pass::kBackwardWeights) return;
    const int to = backward ? g - 1 : g + 1;
    if (to < 0 || to >= global()) return;
    const int peer = stage_of(at_.placement, stages_, to);
    if (peer == stage || (stage != at_.stage && peer != at_.stage)) return;
    const int body = stage == at_.stage ? message<Send>(backward, c, peer)
                                        : message<Receive>(backward, static_cast<std::size_t>(chunk_of(to)), stage);
    events_.push_back({time.end_s, 0, backward, g, a.micro_batch, body});
  }

  // Returns the body that sends the result of chunk `c`, or the body that receives the chunk's input.
  template <class M>
  int message(int backward, std::size_t c, int peer) {
    int& known = message_bodies_.try_emplace({std::is_same_v<M, Send>, backward, c}, -1).first->second;
    if (known < 0) known = new_message<M>(backward, c, peer);
    return known;
  }

  template <class M>
  int new_message(int backward, std::size_t c, int peer) {
    constexpr bool kSends = std::is_same_v<M, Send>;
    const Payload payload = backward ? Payload::kDResidual : Payload::kResidual;
    const bool front = kSends == (backward == 1);  // at the chunk's end nearer to the model's first layer
    const std::int64_t layer = front ? p_.chunks[c].first : p_.chunks[c].end;
    Body body{fmt::format("{}.{}.{}", kSends ? "send" : "receive", name_of(payload), layer), {}};
    body.steps.push_back(detail::make_step(p_, M{payload, layer, peer}, -1,
                                           backward ? Phase::kBackward : Phase::kForward, stream_of(Axis::kPp)));
    if (backward) use_gradient(body, gradient_[c]);
    return append(std::move(body));
  }

  Program finish() {
    std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.key() < b.key(); });
    Body begin{"begin", {}};
    begin.steps.push_back(detail::make_step(p_, ZeroFill{}, -1, Phase::kData, Stream::kCompute));
    p_.schedule = {{append(std::move(begin)), -1}};
    for (const Event& e : events_) p_.schedule.push_back({e.body, e.micro_batch});
    detail::find_lifetimes(p_);
    detail::drop_unused_buffers(p_);
    return std::move(p_);
  }

  Program p_;
  const Pipeline at_;
  const int stages_;
  std::vector<std::vector<Body>> actions_;  // by chunk and Pass
  std::vector<std::array<int, 4>> left_;    // number of actions still to run, by chunk and Pass
  std::vector<bool> begun_;                 // by chunk: whether it has run a backward, or half of one
  std::vector<int> gradient_;               // by chunk: the copy of d_x that it uses
  std::map<std::tuple<int, Pass, bool, bool>, int> action_bodies_;    // by chunk and kind; the first, the last
  std::map<std::tuple<bool, int, std::size_t>, int> message_bodies_;  // of sends; by direction and chunk
  std::vector<Event> events_;
};

}  // namespace

Ordered with_times(Schedule schedule) {
  ScheduleTimes times = simulate(schedule, uniform_costs(schedule, 1.0, 1.0, 1.0));
  return {std::move(schedule), std::move(times)};
}

Program pipeline(Program p, const Ordered& ordered) {
  return Stage(std::move(p)).train(ordered.schedule, ordered.times);
}

Program pipeline(Program p, const Schedule& schedule) {
  return pipeline(std::move(p), with_times(schedule));
}

Program pipeline_forward(Program p) {
  return Stage(std::move(p)).evaluate();
}

}  // namespace molen::program::pass
