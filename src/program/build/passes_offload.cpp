// Offloads the values that layers keep for backward to the host.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "program/build/build.h"
#include "program/build/build_detail.h"
#include "program/values/of_setting.h"

namespace molen::program::pass {
namespace {

// A kept value and its layer.
struct Kept {
  Payload payload{};
  std::int64_t layer = -1;
};

bool is_forward_of_layer(const Step& step) {
  const auto* c = std::get_if<Compute>(&step.op);
  return c && c->layer >= 0 && c->pass == Pass::kForward;
}

// Returns the position where backward begins in a body: at the first value that is gathered or computed again for it.
// Forward and the head come before that position.
std::size_t turn_of(const Body& body) {
  const auto found = std::find_if(body.steps.begin(), body.steps.end(), [](const Step& step) {
    const bool backward = step.phase == Phase::kBackward || step.phase == Phase::kRecompute;
    return backward && !std::holds_alternative<ZeroFill>(step.op);
  });
  return static_cast<std::size_t>(found - body.steps.begin());
}

class ActivationOffload {
 public:
  explicit ActivationOffload(Program& p) : p_(p), ahead_(static_cast<std::size_t>(p.setting.prefetch)) {
    std::map<int, Kept> made;
    for (const Body& body : p_.bodies) find_made(body, made);
    std::set<int> read;
    for (const Body& body : p_.bodies)
      for (std::size_t k = turn_of(body); k < body.steps.size(); ++k)
        for (const Use& use : body.steps[k].operands)
          if (use.reads()) read.insert(use.buffer);
    for (const auto& [buffer, kept] : made)
      if (read.count(buffer) && !next_is_backward(kept.layer)) leaving_.emplace(buffer, kept);
  }

  void run() {
    for (Body& body : p_.bodies) rebuild(body);
    detail::find_lifetimes(p_);
    detail::drop_unused_buffers(p_);
  }

 private:
  // Whether the layer is the last of the model, so that its backward follows the head directly.
  bool next_is_backward(std::int64_t layer) const {
    return std::any_of(p_.chunks.begin(), p_.chunks.end(),
                       [&](const Chunk& c) { return c.head && layer + 1 >= c.end; });
  }

  // Collects the buffers whose values may be offloaded among those that forward ops of the layers read and write.
  void find_made(const Body& body, std::map<int, Kept>& made) {
    for (std::size_t k = 0; k < turn_of(body); ++k) {
      const Step& step = body.steps[k];
      if (!is_forward_of_layer(step)) continue;
      for (const Use& use : step.operands)
        if (use.writes()) made_by_layers_.insert(use.buffer);
      for (const Operand& o : signature(p_, step.op, -1).operands)
        for (const Payload payload : kKeptForBackward)
          if (o.value == kept_value(payload)) made[step.operand(o.arg).buffer] = {payload, o.layer};
    }
  }

  // A layer whose backward in this body reads offloaded values, with the first and the last op that read them.
  struct Reader {
    std::int64_t layer = -1;
    std::size_t first = 0, last = 0;
    std::set<int> buffers;
  };
  std::vector<Reader> readers_of(const Body& body) const {
    std::vector<Reader> readers;
    for (std::size_t k = turn_of(body); k < body.steps.size(); ++k)
      for (const Use& use : body.steps[k].operands) {
        const auto kept = leaving_.find(use.buffer);
        if (!use.reads() || kept == leaving_.end()) continue;
        if (readers.empty() || readers.back().layer != kept->second.layer)
          readers.push_back({kept->second.layer, k, k, {}});
        readers.back().last = k;
        readers.back().buffers.insert(use.buffer);
      }
    return readers;
  }

  // Returns the buffers that leave, by the forward step after which each leaves. A buffer leaves when it is complete,
  // or after its first reader when a message has brought its value.
  std::multimap<std::size_t, int> leaving_after(const Body& body) const {
    std::map<int, std::size_t> at;
    const bool layers = std::any_of(body.steps.begin(), body.steps.end(), is_forward_of_layer);
    for (std::size_t k = 0; layers && k < turn_of(body); ++k) {
      for (const Use& use : body.steps[k].operands) {
        if (!leaving_.count(use.buffer)) continue;
        if (use.writes())
          at[use.buffer] = k;
        else if (!made_by_layers_.count(use.buffer))
          at.emplace(use.buffer, k);
      }
    }
    std::multimap<std::size_t, int> after;
    for (const auto& [buffer, k] : at) after.emplace(k, buffer);
    return after;
  }

  int back(int buffer) {
    Buffer copy = p_.buffers[static_cast<std::size_t>(buffer)];
    copy.name += "/back";
    copy.copy = 1;
    if (const int found = p_.find_buffer(copy.name); found >= 0) return found;
    p_.buffers.push_back(copy);
    return static_cast<int>(p_.buffers.size()) - 1;
  }

  template <class Copy>
  Step copy_of(int buffer, Phase phase) {
    const Kept kept = leaving_.at(buffer);
    Copy op;
    op.payload = kept.payload;
    op.layer = kept.layer;
    const Stream stream = stream_of(p_, op);
    Step step = detail::make_step(p_, op, -1, phase, stream);
    if constexpr (std::is_same_v<Copy, CopyToHost>)
      step.operand(Arg::kFrom).buffer = buffer;
    else
      step.operand(Arg::kTo).buffer = back(buffer);
    return step;
  }

  void rebuild(Body& body) {
    for (const Step& step : body.steps) MOLEN_CHECK(step.after.empty(), "edges exist before activations are placed");
    const std::vector<Reader> readers = readers_of(body);
    const auto leaving = leaving_after(body);
    const std::size_t turn = turn_of(body);
    std::multimap<std::size_t, std::size_t> coming;  // readers by the step before which their values are copied back
    for (std::size_t r = 0; r < readers.size(); ++r)
      coming.emplace(r > ahead_ ? readers[r - ahead_].first : readers[0].first, r);

    std::vector<Step> steps;
    std::vector<int> moved(body.steps.size(), -1);
    std::map<std::int64_t, std::vector<int>> out;  // copies to the host, by layer
    int last_forward = -1;
    for (std::size_t k = 0; k < body.steps.size(); ++k) {
      for (auto [at, end] = coming.equal_range(k); at != end; ++at) {
        const std::size_t r = at->second;
        // Keeps the values of at most `ahead_` layers besides the current one on the device. No value comes back before
        // forward has ended.
        const int bound = r > ahead_ ? moved[readers[r - ahead_ - 1].last] : last_forward;
        for (const int buffer : readers[r].buffers) {
          steps.push_back(copy_of<CopyToDevice>(buffer, Phase::kBackward));
          if (bound >= 0) steps.back().after.push_back({-1, bound});
        }
      }
      Step step = body.steps[k];
      if (k < turn && is_forward_of_layer(step)) {
        wait_for_earlier(step, out);
        last_forward = static_cast<int>(steps.size());
      }
      if (k >= turn)
        for (Use& use : step.operands)
          if (use.reads() && leaving_.count(use.buffer)) use.buffer = back(use.buffer);
      moved[k] = static_cast<int>(steps.size());
      steps.push_back(std::move(step));
      for (auto [at, end] = leaving.equal_range(k); at != end; ++at) {
        out[leaving_.at(at->second).layer].push_back(static_cast<int>(steps.size()));
        steps.push_back(copy_of<CopyToHost>(at->second, Phase::kForward));
      }
    }
    body.steps = std::move(steps);
  }

  // Makes the first op of a layer wait until the kept values of all earlier layers but the last `ahead_` have left.
  void wait_for_earlier(Step& step, std::map<std::int64_t, std::vector<int>>& out) const {
    const std::int64_t layer = std::get<Compute>(step.op).layer;
    while (!out.empty() && out.begin()->first + static_cast<std::int64_t>(ahead_) < layer) {
      step.after.push_back({-1, out.begin()->second.back()});
      out.erase(out.begin());
    }
  }

  Program& p_;
  const std::size_t ahead_;
  std::map<int, Kept> leaving_;  // by buffer
  std::set<int> made_by_layers_;
};

}  // namespace

Program offload_activations(Program p) {
  ActivationOffload(p).run();
  return p;
}

}  // namespace molen::program::pass
