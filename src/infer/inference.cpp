#include "infer/inference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "infer/forward.h"
#include "model/parts.h"
#include "program/parts/part.h"

namespace molen::infer {

class Inference::Impl {
 public:
  Impl(std::shared_ptr<const Weights> weights, int threads, std::int64_t max_sequence)
      : weights_(std::move(weights)),
        threads_(threads),
        max_sequence_(max_sequence),
        type_(exec::to_aten(weights_->dtype())),
        slopes_(arch().position == arch::Position::kAlibi ? model::make_slopes(arch()) : at::Tensor()) {
    cache_k_ = at::zeros({arch().layers, arch().kv_heads, max_sequence, arch().head_dim}, type_);
    cache_v_ = at::zeros_like(cache_k_);
  }

  at::Tensor logits(std::span<const std::int32_t> ids, std::int64_t batch, std::int64_t sequence) {
    if (sequence > max_sequence_)
      throw UsageError("{} tokens are more than the {} this run was set up for", sequence, max_sequence_);
    check(ids);
    const at::Tensor y = forward_of(batch, sequence)(ids, 0, nullptr);
    at::Tensor result = at::empty({batch * sequence, arch().vocabulary}, type_);
    const std::int64_t chunk = arch::head_chunk(arch().vocabulary);
    for (std::int64_t first = 0; first < y.size(0); first += chunk) {
      const std::int64_t n = std::min(chunk, y.size(0) - first);
      at::Tensor part = result.narrow(0, first, n);
      head(y.narrow(0, first, n), part);
    }
    return result.view({batch, sequence, arch().vocabulary});
  }

  at::Tensor advance(std::span<const std::int32_t> ids) {
    const auto count = static_cast<std::int64_t>(ids.size());
    if (count == 0) throw UsageError("nothing to continue from: the prompt is empty");
    if (length_ + count > max_sequence_)
      throw UsageError("the sequence would have {} tokens; the model's limit is {}", length_ + count, max_sequence_);
    check(ids);
    at::Tensor y;
    if (length_ == 0) {
      y = forward_of(1, count)(ids, 0, [&](std::int64_t layer, const at::Tensor& qkv, at::Tensor&) {
        store(layer, qkv);
        return false;
      });
      length_ = count;
    } else {
      for (std::int64_t i = 0; i < count; ++i, ++length_)
        y = forward_of(1, 1)(ids.subspan(static_cast<std::size_t>(i), 1), length_,
                             [&](std::int64_t layer, const at::Tensor& qkv, at::Tensor& out) {
                               store(layer, qkv);
                               attend_cached(layer, qkv, out);
                               return true;
                             });
    }
    at::Tensor result = at::empty({1, arch().vocabulary}, type_);
    head(y.narrow(0, y.size(0) - 1, 1), result);
    many_tokens_ = {};  // the next tokens come one by one, and the memory of a long prompt is large
    return result.view({-1});
  }

  void reset() { length_ = 0; }
  std::int64_t length() const { return length_; }

 private:
  const arch::Architecture& arch() const { return weights_->arch(); }

  void check(std::span<const std::int32_t> ids) const {
    for (const std::int32_t id : ids)
      if (id < 0 || id >= arch().vocabulary)
        throw UsageError("token id {} is not in the vocabulary of {}", id, arch().vocabulary);
  }

  // Returns the forward of B sequences of S tokens. The one of a single token, which decoding runs for each token, is
  // kept, and so is the one of the latest batch.
  Forward& forward_of(std::int64_t batch, std::int64_t sequence) {
    Kept& kept = batch == 1 && sequence == 1 ? one_token_ : many_tokens_;
    if (!kept.forward || kept.batch != batch || kept.sequence != sequence) {
      kept.forward.reset();  // its memory makes room for the next
      kept = {batch, sequence, std::make_unique<Forward>(*weights_, batch, sequence, threads_)};
    }
    return *kept.forward;
  }

  // Stores the keys and values of the rows of qkv in the cache, behind the tokens that are there.
  void store(std::int64_t l, const at::Tensor& qkv) {
    const std::int64_t n = qkv.size(0), k = arch().kv_heads, d = arch().head_dim, q = arch().query_size();
    cache_k_[l].narrow(1, length_, n).copy_(qkv.narrow(1, q, k * d).reshape({n, k, d}).transpose(0, 1));
    cache_v_[l].narrow(1, length_, n).copy_(qkv.narrow(1, q + k * d, k * d).reshape({n, k, d}).transpose(0, 1));
  }

  // Attends from one query to the cache: out_h = softmax(q_h K^T / sqrt(D) [+ ALiBi]) V.
  void attend_cached(std::int64_t l, const at::Tensor& qkv, at::Tensor& out) {
    const std::int64_t k = arch().kv_heads, d = arch().head_dim, group = arch().heads / k, t = length_ + 1;
    const at::Tensor q = qkv.narrow(1, 0, arch().query_size()).view({k, group, d});
    at::Tensor scores =
        at::bmm(q, cache_k_[l].narrow(1, 0, t).transpose(1, 2)).mul_(1.0 / std::sqrt(static_cast<double>(d)));
    if (slopes_.defined()) {
      const at::Tensor distance = at::arange(t, scores.options()).sub_(static_cast<double>(t - 1));
      scores.add_(slopes_.to(type_).view({k, group, 1}).mul(distance));
    }
    out.copy_(at::bmm(at::softmax(scores, -1), cache_v_[l].narrow(1, 0, t)).view({1, -1}));
  }

  // Computes the logits of some rows, with the scratch that the head declares.
  void head(const at::Tensor& y, at::Tensor& out) {
    arch::PartShape shape;
    shape.sequence = shape.chunk = y.size(0);
    shape.compute = weights_->dtype();
    shape.threads = threads_;
    shape.kernels = weights_->kernels();
    const std::int64_t bytes = program::part_cost(arch(), arch::Part::kHead, arch::Pass::kForward, shape).scratch.value;
    const at::Tensor workspace = at::empty({bytes}, at::kByte);
    math::Scratch scratch(workspace.data_ptr(), bytes);
    model::head_logits({arch(), shape, scratch, false}, y, weights_->head(), out);
  }

  struct Kept {
    std::int64_t batch = 0, sequence = 0;
    std::unique_ptr<Forward> forward = nullptr;
  };

  std::shared_ptr<const Weights> weights_;
  int threads_;
  std::int64_t max_sequence_;
  at::ScalarType type_;
  at::Tensor slopes_;  // ALiBi's; undefined without it
  Kept one_token_, many_tokens_;
  at::Tensor cache_k_, cache_v_;
  std::int64_t length_ = 0;  // tokens in the cache
};

Inference::Inference(std::shared_ptr<const Weights> weights, int threads, std::int64_t max_sequence) {
  const c10::InferenceMode inference;
  impl_ = std::make_unique<Impl>(std::move(weights), threads, max_sequence);
}
Inference::~Inference() = default;
at::Tensor Inference::logits(std::span<const std::int32_t> ids, std::int64_t batch, std::int64_t sequence) {
  const c10::InferenceMode inference;
  return impl_->logits(ids, batch, sequence);
}
void Inference::reset() {
  impl_->reset();
}
at::Tensor Inference::advance(std::span<const std::int32_t> ids) {
  const c10::InferenceMode inference;
  return impl_->advance(ids);
}
std::int64_t Inference::length() const {
  return impl_->length();
}

std::int32_t sample(const at::Tensor& logits, const Sampling& s, std::int64_t position) {
  const at::Tensor host = logits.to(at::kDouble).contiguous();
  const double* z = host.data_ptr<double>();
  std::vector<std::int32_t> order(static_cast<std::size_t>(host.numel()));
  std::iota(order.begin(), order.end(), 0);
  // Orders equal logits by id, so that the choice does not depend on the sort.
  const auto before = [&](std::int32_t a, std::int32_t b) { return z[a] != z[b] ? z[a] > z[b] : a < b; };
  if (s.temperature <= 0.0) return *std::min_element(order.begin(), order.end(), before);
  const std::size_t keep =
      s.top_k > 0 ? std::min<std::size_t>(static_cast<std::size_t>(s.top_k), order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep), order.end(), before);
  order.resize(keep);
  std::vector<double> weight;
  double total = 0.0;
  for (const std::int32_t id : order) {
    weight.push_back(std::exp((z[id] - z[order[0]]) / s.temperature));
    total += weight.back();
  }
  // Keeps the smallest set of most likely tokens whose summed probability is at least top_p.
  double kept = 0.0;
  std::size_t count = 0;
  while (count < weight.size() && (count == 0 || kept < s.top_p * total)) kept += weight[count++];
  double draw = uniform_at(stream_key(s.seed, "generate"), static_cast<std::uint64_t>(position)) * kept;
  for (std::size_t i = 0; i < count; ++i) {
    draw -= weight[i];
    if (draw < 0.0) return order[i];
  }
  return order[count - 1];
}

}  // namespace molen::infer
