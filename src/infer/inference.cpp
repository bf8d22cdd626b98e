#include "infer/inference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "model/experts.h"
#include "program/parts/part.h"

namespace molen::infer {

Weights::Weights(arch::Architecture arch, DType dtype)
    : arch_(std::move(arch)),
      dtype_(dtype),
      parameters_(arch::parameters(arch_)),
      units_(program::make_units({{0, 0, arch_.layers}}, parameters_)) {
  for (const auto& unit : units_) flat_.push_back(at::zeros({unit.elements}, exec::to_aten(dtype)));
}

at::Tensor Weights::parameter(std::size_t index) const {
  const auto& p = parameters_.at(index);
  for (std::size_t u = 0; u < units_.size(); ++u)
    for (const auto& entry : units_[u].entries)
      if (entry.parameter == static_cast<int>(index))
        return flat_[u].narrow(0, entry.offset, p.elements()).view(p.shape);
  throw Error("parameter {} has no unit", p.name);
}

exec::UnitWeights Weights::unit(const std::string& name) const {
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (units_[u].name == name) return {arch_, parameters_, units_[u], units_[u].first, flat_[u]};
  // A tied model whose norm has no parameters has no unit "final". It gets a unit whose weights are all undefined.
  static const program::Unit kEmpty;
  return {arch_, parameters_, kEmpty, -1, {}};
}

namespace {

// Returns the architecture without a capacity, which is only for training: a generated token must not depend on which
// tokens compete with it for an expert.
arch::Architecture without_capacity(arch::Architecture a) {
  if (a.experts) a.experts->capacity = 0.0;
  return a;
}

}  // namespace

class Inference::Impl {
 public:
  Impl(std::shared_ptr<const Weights> weights, int threads, std::int64_t max_sequence)
      : weights_(std::move(weights)),
        arch_(without_capacity(weights_->arch())),
        threads_(threads),
        max_sequence_(max_sequence),
        type_(exec::to_aten(weights_->dtype())),
        rope_(model::make_rope_table(weights_->arch(), max_sequence, type_, at::kCPU)),
        slopes_(arch().position == arch::Position::kAlibi ? model::make_slopes(arch()) : at::Tensor()) {
    for (std::int64_t l = 0; l < arch().layers; ++l) layers_.push_back(weights_->unit("layer." + std::to_string(l)));
    cache_k_ = at::zeros({arch().layers, arch().kv_heads, max_sequence, arch().head_dim}, type_);
    cache_v_ = at::zeros_like(cache_k_);
  }

  const arch::Architecture& arch() const { return arch_; }

  at::Tensor logits(std::span<const std::int32_t> ids, std::int64_t batch, std::int64_t sequence) {
    if (sequence > max_sequence_)
      throw UsageError("{} tokens are more than the {} this run was set up for", sequence, max_sequence_);
    const at::Tensor y = forward(
        ids, batch, sequence, 0,
        [&](std::int64_t, const at::Tensor& qkv, at::Tensor& out, const Shape& shape) { attend_all(qkv, out, shape); });
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
    at::Tensor y;
    if (length_ == 0) {
      y = forward(ids, 1, count, 0,
                  [&](std::int64_t layer, const at::Tensor& qkv, at::Tensor& out, const Shape& shape) {
                    store(layer, qkv, 0);
                    attend_all(qkv, out, shape);
                  });
      length_ = count;
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        y = forward(ids.subspan(static_cast<std::size_t>(i), 1), 1, 1, length_,
                    [&](std::int64_t layer, const at::Tensor& qkv, at::Tensor& out, const Shape&) {
                      store(layer, qkv, length_);
                      attend_cached(layer, qkv, out);
                    });
        ++length_;
      }
    }
    at::Tensor result = at::empty({1, arch().vocabulary}, type_);
    head(y.narrow(0, y.size(0) - 1, 1), result);
    return result.view({-1});
  }

  void reset() { length_ = 0; }
  std::int64_t length() const { return length_; }

 private:
  using Shape = arch::PartShape;

  // Calls a part with the scratch size that the part declares.
  template <class F>
  void with(arch::Part part, const Shape& shape, F&& call) {
    const std::int64_t bytes = program::part_cost(arch(), part, arch::Pass::kForward, shape).scratch.value;
    if (bytes > static_cast<std::int64_t>(workspace_.size()) - 64)
      workspace_.resize(static_cast<std::size_t>(bytes) + 64);
    void* base = workspace_.data();
    std::size_t room = workspace_.size();
    std::align(64, static_cast<std::size_t>(bytes), base, room);
    math::Scratch scratch(static_cast<char*>(base), bytes);
    model::Context context{arch(), shape, scratch, false};
    if (slopes_.defined()) context.slopes = &slopes_;
    call(context);
  }

  Shape shape_of(std::int64_t batch, std::int64_t sequence) const {
    return {batch,    sequence,
            0,        weights_->dtype(),
            threads_, weights_->dtype() == DType::kF64 ? arch::Kernels::kReference : arch::Kernels::kFused};
  }

  at::Tensor empty(std::int64_t rows, std::int64_t columns) const { return at::empty({rows, columns}, type_); }
  model::NormSaved stats(std::int64_t rows) const {
    const auto accurate = type_ == at::kDouble ? at::kDouble : at::kFloat;
    return {at::empty({rows}, accurate), arch().norm == arch::Norm::kRms ? at::Tensor() : at::empty({rows}, accurate)};
  }

  template <class Attend>
  at::Tensor forward(std::span<const std::int32_t> ids, std::int64_t batch, std::int64_t sequence,
                     std::int64_t position, Attend&& attend) {
    const Shape shape = shape_of(batch, sequence);
    const std::int64_t n = batch * sequence;
    for (const std::int32_t id : ids)
      if (id < 0 || id >= arch().vocabulary)
        throw UsageError("token id {} is not in the vocabulary of {}", id, arch().vocabulary);
    const at::Tensor tokens = at::from_blob(const_cast<std::int32_t*>(ids.data()), {n}, at::kInt);
    const auto embed = weights_->unit("embed");
    at::Tensor positions = embed.weight(arch::Role::kPositions);
    if (positions.defined()) positions = positions.narrow(0, position, sequence);
    const model::RopeTable rope =
        rope_.cos_SD2.defined()
            ? model::RopeTable{rope_.cos_SD2.narrow(0, position, sequence), rope_.sin_SD2.narrow(0, position, sequence)}
            : rope_;
    at::Tensor x = empty(n, arch().hidden);
    with(arch::Part::kEmbed, shape, [&](const model::Context& c) {
      model::embed_forward(c, tokens, embed.weight(arch::Role::kEmbedding), positions, x);
    });
    for (std::int64_t l = 0; l < arch().layers; ++l) x = layer(l, x, shape, rope, attend);
    at::Tensor y = empty(n, arch().hidden);
    auto saved = stats(n);
    with(arch::Part::kFinalNorm, shape, [&](const model::Context& c) {
      model::final_norm_forward(c, x, weights_->unit("final").final_norm(), saved, y);
    });
    return y;
  }

  // The values of a layer while its parts run, and other inputs of these parts.
  struct LayerRun {
    const exec::UnitWeights& weights;
    const Shape& shape;
    const model::RopeTable& rope;
    const std::function<void(const at::Tensor& qkv, at::Tensor& out)>& attend;
    at::Tensor x, qkv, attention, mid, up, activation, y;
    // Only sparse layers use these. While their experts run, `up` and `activation` have one row per slot (a token and
    // one of its experts).
    model::Routed routed = {};
    at::Tensor routed_rows = {}, shared = {}, places = {}, offsets = {}, expert_rows = {};
    std::int64_t rows() const { return x.size(0); }
  };
  void norm_qkv(LayerRun& r) {
    r.qkv = empty(r.rows(), arch().qkv_size());
    auto saved = stats(r.rows());
    with(arch::Part::kNormQkv, r.shape, [&](const model::Context& c) {
      model::norm_qkv_forward(c, r.x, r.weights.attention_norm(), r.weights.qkv(), saved, r.qkv);
    });
  }
  void qk_norm(LayerRun& r) {
    at::Tensor normed = empty(r.rows(), arch().qkv_size());
    with(arch::Part::kQkNorm, r.shape,
         [&](const model::Context& c) { model::qk_norm_forward(c, r.qkv, r.weights.qk_norm(), normed); });
    r.qkv = normed;
  }
  void rotate(LayerRun& r) {
    with(arch::Part::kRotate, r.shape, [&](const model::Context& c) { model::rotate(c, r.rope, false, r.qkv); });
  }
  void attention(LayerRun& r) {
    r.attention = empty(r.rows(), arch().query_size());
    r.attend(r.qkv, r.attention);
  }
  void out_projection(LayerRun& r) {
    r.mid = empty(r.rows(), arch().hidden);
    with(arch::Part::kOutProjection, r.shape, [&](const model::Context& c) {
      model::output_projection_forward(c, r.attention, r.x, r.weights.output(), r.mid);
    });
  }
  void norm_up(LayerRun& r) {
    r.up = empty(r.rows(), arch().up_size());
    auto saved = stats(r.rows());
    with(arch::Part::kNormUp, r.shape, [&](const model::Context& c) {
      model::norm_up_forward(c, r.mid, r.weights.mlp_norm(), r.weights.up(), saved, r.up);
    });
  }
  void activation(LayerRun& r) {
    r.activation = empty(r.rows(), arch().ffn);
    with(arch::Part::kActivation, r.shape,
         [&](const model::Context& c) { model::activation_forward(c, r.up, r.activation); });
  }
  void down(LayerRun& r) {
    r.y = empty(r.rows(), arch().hidden);
    with(arch::Part::kDown, r.shape,
         [&](const model::Context& c) { model::down_forward(c, r.activation, r.mid, r.weights.down(), r.y); });
  }

  std::int64_t slots(const LayerRun& r) const { return r.rows() * arch().sparse_experts().per_token; }
  void route(LayerRun& r) {
    const arch::Experts& e = arch().sparse_experts();
    auto saved = stats(r.rows());
    const auto accurate = saved.rstd_N.options();
    r.routed = {at::empty({r.rows(), e.count}, accurate), at::empty({r.rows()}, accurate),
                at::empty({r.rows(), e.per_token}, at::kInt), at::empty({r.rows(), e.per_token}, accurate),
                at::empty({r.shape.batch, 2, e.count}, accurate)};
    r.routed_rows = empty(r.rows(), arch().hidden);
    with(arch::Part::kRoute, r.shape, [&](const model::Context& c) {
      model::route_forward(c, r.mid, {}, r.weights.mlp_norm(), r.weights.router(), saved, r.routed_rows, r.routed);
    });
  }
  void balance(LayerRun&) {}  // generated text does not depend on the loss
  void shared_up(LayerRun& r) {
    r.up = empty(r.rows(), arch().shared_up_size());
    with(arch::Part::kSharedUp, r.shape,
         [&](const model::Context& c) { model::shared_up_forward(c, r.routed_rows, r.weights.shared_up(), r.up); });
  }
  void shared_activation(LayerRun& r) {
    r.activation = empty(r.rows(), arch().shared_ffn());
    with(arch::Part::kSharedActivation, r.shape,
         [&](const model::Context& c) { model::activation_forward(c, r.up, r.activation); });
  }
  void shared_down(LayerRun& r) {
    r.shared = empty(r.rows(), arch().hidden);
    with(arch::Part::kSharedDown, r.shape, [&](const model::Context& c) {
      model::down_forward(c, r.activation, r.mid, r.weights.shared_down(), r.shared);
    });
  }
  void dispatch(LayerRun& r) {
    r.expert_rows = empty(slots(r), arch().hidden);
    r.places = at::empty_like(r.routed.choice_Nt);
    r.offsets = at::empty({arch().sparse_experts().count + 1}, at::kInt);
    with(arch::Part::kDispatch, r.shape, [&](const model::Context& c) {
      model::dispatch_forward(c, r.routed_rows, r.routed.choice_Nt, r.expert_rows, r.places, r.offsets);
    });
  }
  void expert_up(LayerRun& r) {
    r.up = empty(slots(r), arch().expert_up_size());
    with(arch::Part::kExpertUp, r.shape, [&](const model::Context& c) {
      model::experts_forward(c, r.expert_rows, r.offsets, r.weights.expert_up(), r.up);
    });
  }
  void expert_activation(LayerRun& r) {
    r.activation = empty(slots(r), arch().sparse_experts().ffn);
    with(arch::Part::kExpertActivation, r.shape,
         [&](const model::Context& c) { model::activation_forward(c, r.up, r.activation); });
  }
  void expert_down(LayerRun& r) {
    with(arch::Part::kExpertDown, r.shape, [&](const model::Context& c) {
      model::experts_forward(c, r.activation, r.offsets, r.weights.expert_down(), r.expert_rows);
    });
  }
  void combine(LayerRun& r) {
    r.y = empty(r.rows(), arch().hidden);
    with(arch::Part::kCombine, r.shape, [&](const model::Context& c) {
      model::combine_forward(c, r.expert_rows, r.places, r.routed.weights_Nt, r.shared.defined() ? r.shared : r.mid,
                             r.y);
    });
  }

  // Runs the layer's parts. A part that inference cannot run is an error, because the model without it is another
  // model.
  template <class Attend>
  at::Tensor layer(std::int64_t l, const at::Tensor& x, const Shape& shape, const model::RopeTable& rope,
                   Attend&& attend) {
    static constexpr std::pair<arch::Part, void (Impl::*)(LayerRun&)> kForwards[] = {
        {arch::Part::kNormQkv, &Impl::norm_qkv},
        {arch::Part::kQkNorm, &Impl::qk_norm},
        {arch::Part::kRotate, &Impl::rotate},
        {arch::Part::kAttention, &Impl::attention},
        {arch::Part::kOutProjection, &Impl::out_projection},
        {arch::Part::kNormUp, &Impl::norm_up},
        {arch::Part::kActivation, &Impl::activation},
        {arch::Part::kDown, &Impl::down},
        {arch::Part::kRoute, &Impl::route},
        {arch::Part::kBalance, &Impl::balance},
        {arch::Part::kSharedUp, &Impl::shared_up},
        {arch::Part::kSharedActivation, &Impl::shared_activation},
        {arch::Part::kSharedDown, &Impl::shared_down},
        {arch::Part::kDispatch, &Impl::dispatch},
        {arch::Part::kExpertUp, &Impl::expert_up},
        {arch::Part::kExpertActivation, &Impl::expert_activation},
        {arch::Part::kExpertDown, &Impl::expert_down},
        {arch::Part::kCombine, &Impl::combine}};
    const std::function<void(const at::Tensor&, at::Tensor&)> attend_layer =
        [&](const at::Tensor& qkv, at::Tensor& out) { attend(l, qkv, out, shape); };
    LayerRun run{layers_[static_cast<std::size_t>(l)], shape, rope, attend_layer, x, {}, {}, {}, {}, {}, {}};
    for (const arch::Part part : arch::parts_of_layer(arch(), l)) {
      const auto forward = std::find_if(std::begin(kForwards), std::end(kForwards),
                                        [&](const auto& known) { return known.first == part; });
      if (forward == std::end(kForwards)) throw Error("inference has no {}", arch::name_of(part));
      (this->*forward->second)(run);
    }
    return run.y;
  }

  void attend_all(const at::Tensor& qkv, at::Tensor& out, const Shape& shape) {
    const auto accurate = type_ == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor lse = at::empty({shape.batch, arch().heads, shape.sequence}, accurate);
    with(arch::Part::kAttention, shape, [&](const model::Context& c) { model::attention_forward(c, qkv, out, lse); });
  }

  // Stores the keys and values of the rows of qkv in the cache, from `position` on.
  void store(std::int64_t l, const at::Tensor& qkv, std::int64_t position) {
    const std::int64_t n = qkv.size(0), k = arch().kv_heads, d = arch().head_dim, q = arch().query_size();
    cache_k_[l].narrow(1, position, n).copy_(qkv.narrow(1, q, k * d).reshape({n, k, d}).transpose(0, 1));
    cache_v_[l].narrow(1, position, n).copy_(qkv.narrow(1, q + k * d, k * d).reshape({n, k, d}).transpose(0, 1));
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

  void head(const at::Tensor& y, at::Tensor& out) {
    Shape shape = shape_of(1, y.size(0));
    shape.chunk = y.size(0);
    const at::Tensor w = arch().tied ? weights_->unit("embed").weight(arch::Role::kEmbedding)
                                     : weights_->unit("final").weight(arch::Role::kHead);
    with(arch::Part::kHead, shape, [&](const model::Context& c) { model::head_logits(c, y, w, out); });
  }

  std::shared_ptr<const Weights> weights_;
  arch::Architecture arch_;
  int threads_;
  std::int64_t max_sequence_;
  at::ScalarType type_;
  model::RopeTable rope_;
  at::Tensor slopes_;  // ALiBi's; undefined without it
  std::vector<exec::UnitWeights> layers_;
  at::Tensor cache_k_, cache_v_;
  std::int64_t length_ = 0;
  std::vector<char> workspace_ = std::vector<char>(1 << 16);
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
