// A stage of a pipeline: its actions in the order of the schedule, and the messages between them.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "program/build.h"
#include "program/build_detail.h"

namespace molen::program::pass {
namespace {

// In the order that all stages share: messages come before actions that start when they can be sent.
struct Event {
  double time = 0.0;
  int action = 0;  // 0: message
  int backward = 0;
  int global_stage = 0, micro_batch = 0;  // of the action, or of what sends
  int body = -1;
  auto key() const { return std::tie(time, action, backward, global_stage, micro_batch); }
};

bool is_forward(ActionKind kind) {
  return kind == ActionKind::kForward;
}

class Stage {
 public:
  explicit Stage(Program p) : p_(std::move(p)), at_(p_.setting.pipeline), stages_(p_.setting.stages()) {
    // One body a chunk, or two (pass::micro_batch); each chunk's residual gradient has a buffer, but where one chunk
    // hands it to the other on this stage.
    const bool train = p_.setting.purpose == Purpose::kTrain;
    int gradients = 0;
    for (std::size_t c = 0; c < p_.chunks.size(); ++c) {
      forward_.push_back(static_cast<int>(train ? 2 * c : c));
      const bool turns = c > 0 && p_.chunks[c].global_stage == p_.chunks[c - 1].global_stage + 1;
      if (c > 0 && !turns) ++gradients;
      gradient_.push_back(gradients);
      if (train) use_gradient(p_.bodies[2 * c + 1], gradients);
    }
  }

  Program train(const Schedule& schedule) {
    check_loads(schedule);
    split_backwards(schedule);
    const ScheduleTimes times = simulate(schedule, uniform_costs(schedule, 1.0, 1.0, 1.0));
    for (int stage = 0; stage < stages_; ++stage) {
      const auto& order = schedule.order[static_cast<std::size_t>(stage)];
      for (std::size_t k = 0; k < order.size(); ++k)
        add(stage, order[k], times.actions[static_cast<std::size_t>(stage)][k]);
    }
    return finish();
  }

  Program evaluate() {
    for (int g = 0; g < global(); ++g) {
      const int stage = stage_of(at_.placement, stages_, g);
      add(stage, {ActionKind::kForward, chunk_of(g), 0}, {2.0 * g, 2.0 * g + 1.0, 0.0});
    }
    return finish();
  }

 private:
  int global() const { return stages_ * at_.chunks; }
  int chunk_of(int g) const { return g / stages_; }
  bool mine(int g) const { return stage_of(at_.placement, stages_, g) == at_.stage; }

  void use_gradient(Body& body, int copy) {
    const int d_x = p_.find_buffer("d_x");
    if (d_x < 0 || copy == 0) return;
    const int own = detail::copy_of(p_, d_x, copy);
    for (Step& step : body.steps)
      for (auto* uses : {&step.reads, &step.writes})
        for (Use& use : *uses)
          if (use.buffer == d_x) use.buffer = own;
  }

  // The loader gives micro-batches one after the other.
  void check_loads(const Schedule& schedule) const {
    if (!p_.embeds() && !p_.has_head()) return;
    int next = 0;
    for (const Action& a : schedule.order[static_cast<std::size_t>(at_.stage)]) {
      const Chunk& chunk = p_.chunks[static_cast<std::size_t>(a.chunk)];
      const bool loads = p_.embeds()
                             ? chunk.embed && is_forward(a.kind)
                             : chunk.head && (a.kind == ActionKind::kBackward || a.kind == ActionKind::kBackwardInput);
      if (loads && a.micro_batch != next++)
        throw UsageError("parallel.schedule: stage {} has to begin its micro-batches in ascending order", at_.stage);
    }
  }

  // The backward of a chunk as its first, its middle and its last instance run it.
  void split_backwards(const Schedule& schedule) {
    const bool fresh = p_.setting.sharded_gradients();  // a gradient of each micro-batch by itself
    const int embed = unit_of_part(p_, arch::Part::kEmbed, -1);
    for (std::size_t c = 0; c < p_.chunks.size(); ++c) {
      const Body whole = p_.bodies[2 * c + 1];
      const auto variant = [&](const char* name, bool first) {
        Body body = whole;
        if (*name) body.name += fmt::format(".{}", name);
        detail::set_accumulate(p_, body, first || fresh);
        // The table of a stage with both ends is cleared where the head's backward begins.
        const bool cleared = !fresh && p_.has_head() && !p_.chunks[c].head;
        if (first || fresh) detail::clear_gradients(p_, body, cleared ? embed : -1);
        return body;
      };
      const int m = schedule.micro_batches;
      p_.bodies[2 * c + 1] = variant(m > 1 ? "first" : "", true);
      backward_.push_back({static_cast<int>(2 * c + 1), -1, -1});
      if (m > 2) backward_.back()[1] = append(variant("middle", false));
      if (m > 1) backward_.back()[2] = append(variant("last", false));
    }
    ran_.assign(p_.chunks.size(), 0);
    micro_batches_ = schedule.micro_batches;
  }

  int append(Body body) {
    p_.bodies.push_back(std::move(body));
    return static_cast<int>(p_.bodies.size()) - 1;
  }

  // An action of any stage: as an instance where it is this one's, and its message where this stage has part in it.
  void add(int stage, const Action& a, const OpTime& time) {
    const int g = global_stage_of(at_.placement, stages_, stage, a.chunk);
    const int backward = is_forward(a.kind) ? 0 : 1;
    const auto c = static_cast<std::size_t>(a.chunk);
    if (stage == at_.stage) {
      const int body = backward ? backward_body(c) : forward_[c];
      events_.push_back({time.start_s, 1, backward, g, a.micro_batch, body});
    }
    const int to = backward ? g - 1 : g + 1;
    if (to < 0 || to >= global()) return;
    const int peer = stage_of(at_.placement, stages_, to);
    if (peer == stage || (stage != at_.stage && peer != at_.stage)) return;
    const int body = stage == at_.stage ? message<Send>(backward, c, peer)
                                        : message<Receive>(backward, static_cast<std::size_t>(chunk_of(to)), stage);
    events_.push_back({time.end_s, 0, backward, g, a.micro_batch, body});
  }

  int backward_body(std::size_t c) {
    const int n = ran_[c]++;
    return backward_[c][n == 0 ? 0 : n + 1 == micro_batches_ ? 2 : 1];
  }

  // The body that sends what chunk `c` has made, or receives what it needs.
  template <class M>
  int message(int backward, std::size_t c, int peer) {
    constexpr bool kSends = std::is_same_v<M, Send>;
    const Moves moves = backward ? Moves::kDResidual : Moves::kResidual;
    const bool front = kSends == (backward == 1);  // the chunk's end towards the model's first layer
    const std::int64_t layer = front ? p_.chunks[c].first : p_.chunks[c].end;
    const std::string name = fmt::format("{}.{}.{}", kSends ? "send" : "receive", name_of(moves), layer);
    for (std::size_t b = 0; b < p_.bodies.size(); ++b)
      if (p_.bodies[b].name == name) return static_cast<int>(b);
    Body body{name, {}};
    body.steps.push_back(detail::make_step(p_, M{moves, layer, peer}, -1, backward ? Phase::kBackward : Phase::kForward,
                                           Stream::kDpComm));
    if (backward) use_gradient(body, gradient_[c]);
    return append(std::move(body));
  }

  Program finish() {
    std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.key() < b.key(); });
    Body begin{"begin", {}};
    begin.steps.push_back(detail::make_step(p_, ZeroFill{}, -1, Phase::kData, Stream::kCompute));
    p_.schedule = {{append(std::move(begin)), -1}};
    for (const Event& e : events_) p_.schedule.push_back({e.body, e.micro_batch});
    keep_between_bodies();
    return std::move(p_);
  }

  // What a body reads without having written it comes from another instance of the same micro-batch.
  void keep_between_bodies() {
    for (const Body& body : p_.bodies) {
      std::set<int> written;
      for (const Step& step : body.steps) {
        for (const Use& use : step.reads) {
          Buffer& buffer = p_.buffers[static_cast<std::size_t>(use.buffer)];
          if (buffer.lifetime == Lifetime::kTransient && p_.unit_of_buffer(use.buffer) < 0 &&
              !written.count(use.buffer))
            buffer.lifetime = Lifetime::kMicroBatch;
        }
        for (const Use& use : step.writes) written.insert(use.buffer);
      }
    }
  }

  Program p_;
  const Pipeline at_;
  const int stages_;
  int micro_batches_ = 1;
  std::vector<int> forward_;                  // body, by chunk
  std::vector<std::array<int, 3>> backward_;  // bodies of the first, a middle and the last one, by chunk
  std::vector<int> ran_;                      // backwards so far, by chunk
  std::vector<int> gradient_;                 // copy of d_x, by chunk
  std::vector<Event> events_;
};

}  // namespace

Program pipeline(Program p, const Schedule& schedule) {
  return Stage(std::move(p)).train(schedule);
}

Program pipeline_forward(Program p) {
  return Stage(std::move(p)).evaluate();
}

}  // namespace molen::program::pass
