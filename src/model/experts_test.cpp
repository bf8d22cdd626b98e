// Tests the parts of a sparse layer, chained, forward and backward, on every path. The oracle is libtorch's autograd on
// composite operators in float64, with a loop over experts. The gradients are those of an objective with both losses of
// the router, which leave out some tokens, and they are accumulated over two micro-batches.
#include "model/experts.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "math/test_close.h"
#include "model/test_parts.h"
#include "program/parts/part.h"

namespace molen::model {
namespace {

constexpr double kGradScale = 0.125;

struct SparseCase {
  const char* name;
  std::int64_t experts, per_token, ffn;
  bool norm_topk;
  arch::Norm norm;
  arch::Activation activation;
  double balance, z;
  std::int64_t shared = 0;
  bool sigmoid = false;
  double scale = 1.0;
  bool biased = false;
  double capacity = 0.0;
};
const SparseCase kSparse[] = {
    {"as Mixtral", 5, 2, 23, true, arch::Norm::kRms, arch::Activation::kSwiGlu, 0.7, 0.3},
    {"as OLMoE", 7, 3, 300, false, arch::Norm::kRms, arch::Activation::kSwiGlu, 0.7, 0.0},
    {"one of a token", 4, 1, 19, false, arch::Norm::kLayer, arch::Activation::kGeluTanh, 0.0, 0.3},
    {"as DeepSeek-V2", 6, 3, 21, false, arch::Norm::kRms, arch::Activation::kSwiGlu, 0.7, 0.0, 2},
    {"a shared one without gates", 5, 2, 19, true, arch::Norm::kLayer, arch::Activation::kGeluTanh, 0.0, 0.0, 1},
    {"as DeepSeek-V3", 6, 3, 21, true, arch::Norm::kRms, arch::Activation::kSwiGlu, 0.7, 0.0, 1, true, 2.5, true},
    {"sigmoids of one", 5, 1, 19, false, arch::Norm::kRms, arch::Activation::kSwiGlu, 0.7, 0.0, 0, true, 0.5, false},
    {"a biased softmax", 5, 2, 19, true, arch::Norm::kLayer, arch::Activation::kSwiGlu, 0.7, 0.3, 0, false, 1.5, true},
    {"all of a token", 3, 3, 17, true, arch::Norm::kLayerPlain, arch::Activation::kSwiGlu, 0.0, 0.0},
    {"half of the choices", 5, 2, 300, true, arch::Norm::kRms, arch::Activation::kSwiGlu, 0.7, 0.3, 0, false, 1.0,
     false, 0.5},
    {"as DeepSeek-V3, with a capacity", 6, 3, 21, true, arch::Norm::kRms, arch::Activation::kSwiGlu, 0.7, 0.0, 1, true,
     2.5, true, 1.0}};

arch::Architecture architecture_of(const SparseCase& c) {
  arch::Architecture a = small(c.name, 37, 53, 6, 2, 10);
  a.norm = c.norm, a.activation = c.activation;
  a.experts = arch::Experts{c.experts, c.per_token, c.ffn, c.norm_topk, c.balance, c.z};
  a.experts->shared = c.shared, a.experts->scale = c.scale, a.experts->bias_rate = c.biased ? 0.01 : 0.0;
  a.experts->capacity = c.capacity;
  if (c.sigmoid) a.experts->scores = arch::RouterScores::kSigmoid;
  return a;
}

// The weights of a layer, or their gradients.
struct SparseWeights {
  NormWeights norm;
  at::Tensor router, up, down, shared_up = {}, shared_down = {}, router_bias = {};
  std::vector<std::pair<const char*, at::Tensor>> named() const {
    std::vector<std::pair<const char*, at::Tensor>> all{{"router", router}, {"up", up}, {"down", down}};
    if (norm.weight_d.defined()) all.emplace_back("norm", norm.weight_d);
    if (norm.bias_d.defined()) all.emplace_back("norm's bias", norm.bias_d);
    if (shared_up.defined()) all.insert(all.end(), {{"shared up", shared_up}, {"shared down", shared_down}});
    return all;
  }
  template <class F>
  SparseWeights each(F&& f) const {
    const auto of = [&](const at::Tensor& t) { return t.defined() ? f(t) : t; };
    return {{of(norm.weight_d), of(norm.bias_d)},
            of(router),
            of(up),
            of(down),
            of(shared_up),
            of(shared_down),
            of(router_bias)};
  }
};

SparseWeights make_sparse_weights(const arch::Architecture& a) {
  const arch::Experts& e = *a.experts;
  SparseWeights w{{},
                  random_normal({e.count, a.hidden}, "router", 0.4),
                  random_normal({e.count, a.expert_up_size(), a.hidden}, "experts' up", 0.2),
                  random_normal({e.count, a.hidden, e.ffn}, "experts' down", 0.2)};
  if (a.norm != arch::Norm::kLayerPlain) w.norm.weight_d = random_normal({a.hidden}, "norm", 0.2).add_(1.0);
  if (a.norm == arch::Norm::kLayer) w.norm.bias_d = random_normal({a.hidden}, "norm's bias", 0.2);
  // The bias rises with the number of the expert, so that it changes many choices.
  if (a.biases_router()) w.router_bias = at::arange(e.count, at::kDouble).mul_(0.125);
  if (!a.shares_experts()) return w;
  w.shared_up = random_normal({a.shared_up_size(), a.hidden}, "shared up", 0.2);
  w.shared_down = random_normal({a.hidden, a.shared_ffn()}, "shared down", 0.2);
  return w;
}

struct SparseBatch {
  at::Tensor mid, labels, d_y;
};

// --- the oracle

at::Tensor oracle_normed(const arch::Architecture& a, const at::Tensor& x, const NormWeights& w) {
  if (a.norm == arch::Norm::kRms) return x * at::rsqrt(x.pow(2).mean(-1, true) + a.norm_eps) * w.weight_d;
  const at::Tensor centred = x - x.mean(-1, true), y = centred * at::rsqrt(centred.pow(2).mean(-1, true) + a.norm_eps);
  return w.weight_d.defined() ? y * w.weight_d + w.bias_d : y;
}

// The output of an expert for all tokens.
at::Tensor oracle_expert(const arch::Architecture& a, const at::Tensor& rows, const at::Tensor& w_up,
                         const at::Tensor& w_down) {
  const at::Tensor up = at::matmul(rows, w_up.t());
  const std::int64_t width = w_down.size(1);
  const at::Tensor act =
      a.gated() ? at::silu(up.narrow(1, 0, width)) * up.narrow(1, width, width) : at::gelu(up, "tanh");
  return at::matmul(act, w_down.t());
}

struct Oracle {
  at::Tensor y, choice, balance, z, load;
  std::int64_t dropped = 0;  // dropped choices of tokens that count
};

// Returns 1 where an expert takes a token's choice and 0 elsewhere, [N, t]. In each sequence an expert takes the first
// choices, and those of tokens that count before those of the others.
at::Tensor oracle_taken(const arch::Experts& e, const at::Tensor& chosen, const at::Tensor& labels, std::int64_t B,
                        std::int64_t& dropped) {
  const std::int64_t S = chosen.size(0) / B;
  const auto most = static_cast<int>(
      std::ceil(e.capacity * static_cast<double>(e.per_token * S) / static_cast<double>(e.count) - 1e-9));
  at::Tensor taken = at::ones(chosen.sizes(), at::kDouble);
  if (e.capacity == 0.0) return taken;
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t expert = 0; expert < e.count; ++expert) {
      int room = most;
      for (const bool counts : {true, false})
        for (std::int64_t n = b * S; n < (b + 1) * S; ++n) {
          if ((labels[n].item<int>() >= 0) != counts) continue;
          for (std::int64_t j = 0; j < e.per_token; ++j)
            if (chosen[n][j].item<std::int64_t>() == expert && room-- <= 0) {
              taken[n][j] = 0.0;
              dropped += counts;
            }
        }
    }
  return taken;
}

// When `choice` is defined, the layer uses these experts: near-equal scores of rounded numbers may have another order.
Oracle oracle_layer(const arch::Architecture& a, const at::Tensor& mid, const at::Tensor& labels,
                    const SparseWeights& w, std::int64_t B, const at::Tensor& choice) {
  const arch::Experts& e = *a.experts;
  const std::int64_t N = mid.size(0), S = N / B;
  const at::Tensor rows = oracle_normed(a, mid, w.norm), logits = at::matmul(rows, w.router.t()),
                   scores = e.scores == arch::RouterScores::kSigmoid ? at::sigmoid(logits) : at::softmax(logits, -1),
                   counts = labels.ge(0).to(at::kDouble).view({B, S, 1});
  Oracle o;
  const at::Tensor unbiased = std::get<1>(at::topk(logits, e.per_token, -1));
  o.choice = w.router_bias.defined() ? std::get<1>(at::topk(scores + w.router_bias, e.per_token, -1)) : unbiased;
  const at::Tensor chosen = choice.defined() ? choice.to(at::kLong) : o.choice;
  at::Tensor weights = scores.gather(1, chosen);
  if (e.norm_topk) weights = weights / weights.sum(-1, true);
  const at::Tensor taken = oracle_taken(e, chosen, labels, B, o.dropped),
                   dense = at::zeros({N, e.count}, at::kDouble).scatter(1, chosen, weights * taken * e.scale);
  o.y = mid;
  for (std::int64_t k = 0; k < e.count; ++k)
    o.y = o.y + dense.narrow(1, k, 1) * oracle_expert(a, rows, w.up[k], w.down[k]);
  if (e.shared > 0) o.y = o.y + oracle_expert(a, rows, w.shared_up, w.shared_down);
  const auto share = [&](const at::Tensor& of) {
    return at::zeros({N, e.count}, at::kDouble).scatter(1, of, 1.0).view({B, S, e.count}) * counts;
  };
  // The balance loss ignores the bias, and takes scores that add up to 1.
  const at::Tensor mask = share(w.router_bias.defined() ? unbiased : chosen), parts = scores / scores.sum(-1, true),
                   of_scores = (parts.view({B, S, e.count}) * counts).sum(1), tokens = counts.sum(1);
  o.load = share(chosen).sum(at::IntArrayRef{0, 1});
  // The loss of each sequence is E / t sum_e f_e P_e, where f and P are the shares of its tokens that count. It is
  // multiplied by the number of these tokens.
  o.balance = ((mask.sum(1) / tokens) * (of_scores / tokens)).sum(-1).mul(tokens.view({-1})).sum() *
              (static_cast<double>(e.count) / static_cast<double>(e.per_token));
  o.z = (at::logsumexp(logits, -1).pow(2) * counts.view({-1})).sum();
  return o;
}

// --- the parts

class SparseLayer {
 public:
  SparseLayer(const arch::Architecture& a, const Path& path, const SparseWeights& w, std::int64_t B, std::int64_t S)
      : a_(a),
        w_(w),
        shape_{B, S, 0, path.compute, path.threads, path.kernels},
        compute_(scalar_type(path.compute)),
        wide_(path.compute == DType::kF64 ? at::kDouble : at::kFloat) {}

  at::Tensor y, d_x;
  Routed routed;
  struct {
    double balance = 0, z = 0, dropped = 0;
  } sums;

  void forward(const SparseBatch& batch) {
    const arch::Experts& e = *a_.experts;
    const std::int64_t n = batch.mid.size(0);
    stats_ = {wide({n}), a_.norm == arch::Norm::kRms ? at::Tensor() : wide({n})};
    routed = {wide({n, e.count}), wide({n}), at::full({n, e.per_token}, -7, at::kInt), wide({n, e.per_token}),
              wide({shape_.batch, 2, e.count})};
    rows_ = narrow({n, a_.hidden});
    with(Part::kRoute, Pass::kForward, [&](const Context& c) {
      const RouterSums made =
          route_forward(c, batch.mid, batch.labels, w_.norm, {w_.router, w_.router_bias}, stats_, rows_, routed);
      sums.z += made.z, sums.dropped += made.dropped;
    });
    with(Part::kBalance, Pass::kForward,
         [&](const Context& c) { sums.balance += balance_loss(c, routed.load_B2E, shape_.sequence); });
    const at::Tensor residual = a_.shares_experts() ? shared_forward(batch.mid) : batch.mid;
    const std::int64_t m = arch::most_rows_of_experts(e, shape_.sequences(), 1);
    in_ = narrow({m, a_.hidden}), places_ = at::full({n, e.per_token}, -7, at::kInt);
    offsets_ = at::full({e.count + 1}, -7, at::kInt);
    with(Part::kDispatch, Pass::kForward,
         [&](const Context& c) { dispatch_forward(c, rows_, routed.choice_Nt, in_, places_, offsets_); });
    up_ = narrow({m, a_.expert_up_size()}), act_ = narrow({m, e.ffn}), out_ = narrow({m, a_.hidden});
    with(Part::kExpertUp, Pass::kForward, [&](const Context& c) { experts_forward(c, in_, offsets_, w_.up, up_); });
    at::Tensor made = present(act_);
    with(Part::kExpertActivation, Pass::kForward, [&](const Context& c) { activation_forward(c, present(up_), made); });
    with(Part::kExpertDown, Pass::kForward,
         [&](const Context& c) { experts_forward(c, act_, offsets_, w_.down, out_); });
    y = narrow({n, a_.hidden});
    with(Part::kCombine, Pass::kForward,
         [&](const Context& c) { combine_forward(c, out_, places_, routed.weights_Nt, residual, y); });
  }

  void backward(const SparseBatch& batch, bool accumulate, SparseWeights& grads) {
    accumulate_ = accumulate;
    d_x = batch.d_y.clone();
    at::Tensor d_out = narrow(out_.sizes()), d_weights = wide(routed.weights_Nt.sizes()), d_act = narrow(act_.sizes()),
               d_up = narrow(up_.sizes()), d_in = narrow(in_.sizes()), d_rows = narrow(d_x.sizes());
    with(Part::kCombine, Pass::kBackward,
         [&](const Context& c) { combine_backward(c, d_x, out_, places_, routed.weights_Nt, d_out, d_weights); });
    with(Part::kExpertDown, Pass::kBackward,
         [&](const Context& c) { experts_backward(c, d_out, act_, offsets_, w_.down, d_act, grads.down); });
    at::Tensor d_made = present(d_up);
    with(Part::kExpertActivation, Pass::kBackward,
         [&](const Context& c) { activation_backward(c, present(d_act), present(up_), d_made); });
    with(Part::kExpertUp, Pass::kBackward,
         [&](const Context& c) { experts_backward(c, d_up, in_, offsets_, w_.up, d_in, grads.up); });
    with(Part::kDispatch, Pass::kBackward, [&](const Context& c) { dispatch_backward(c, d_in, places_, d_rows); });
    if (a_.shares_experts()) shared_backward(d_rows, grads);
    RouterWeights d_router{grads.router, grads.router_bias};
    with(Part::kRoute, Pass::kBackward, [&](const Context& c) {
      route_backward(c, d_rows, d_weights, batch.mid, batch.labels, stats_, routed, w_.norm,
                     {w_.router, w_.router_bias}, shape_.sequence, kGradScale, d_x, grads.norm, d_router);
    });
  }

 private:
  // Returns the middle of the layer plus the output of the shared experts.
  at::Tensor shared_forward(const at::Tensor& mid) {
    const std::int64_t n = mid.size(0);
    shared_up_ = narrow({n, a_.shared_up_size()}), shared_act_ = narrow({n, a_.shared_ffn()});
    at::Tensor out = narrow({n, a_.hidden});
    with(Part::kSharedUp, Pass::kForward, [&](const Context& c) {
      shared_up_forward(c, rows_, {w_.shared_up, {}}, shared_up_);
    });
    with(Part::kSharedActivation, Pass::kForward,
         [&](const Context& c) { activation_forward(c, shared_up_, shared_act_); });
    with(Part::kSharedDown, Pass::kForward, [&](const Context& c) {
      down_forward(c, shared_act_, mid, {w_.shared_down, {}}, out);
    });
    return out;
  }
  void shared_backward(at::Tensor& d_rows, SparseWeights& grads) {
    at::Tensor d_act = narrow(shared_act_.sizes()), d_up = narrow(shared_up_.sizes());
    Linear g_up{grads.shared_up, {}}, g_down{grads.shared_down, {}};
    with(Part::kSharedDown, Pass::kBackward, [&](const Context& c) {
      down_backward(c, d_x, shared_act_, {w_.shared_down, {}}, d_act, g_down);
    });
    with(Part::kSharedActivation, Pass::kBackward,
         [&](const Context& c) { activation_backward(c, d_act, shared_up_, d_up); });
    with(Part::kSharedUp, Pass::kBackward, [&](const Context& c) {
      shared_up_backward(c, d_up, rows_, {w_.shared_up, {}}, d_rows, g_up);
    });
  }
  // Runs a part with exactly the scratch that it declares; the part may allocate nothing.
  template <class F>
  void with(Part part, Pass pass, F&& call) {
    Workspace work(program::part_cost(a_, part, pass, shape_).scratch.value);
    const Context context{a_, shape_, work.scratch, accumulate_};
    guarded(shape_, work.scratch, [&] { call(context); });
    EXPECT_EQ(work.scratch.high_water(), work.scratch.capacity()) << arch::name_of(part) << " " << name_of(pass);
  }
  // Returns the rows that belong to experts.
  at::Tensor present(const at::Tensor& rows) const {
    return rows.narrow(0, 0, offsets_[offsets_.numel() - 1].item<int>());
  }
  at::Tensor narrow(at::IntArrayRef shape) const { return at::full(shape, NAN, compute_); }
  at::Tensor wide(at::IntArrayRef shape) const { return at::full(shape, NAN, wide_); }

  const arch::Architecture& a_;
  const SparseWeights& w_;
  arch::PartShape shape_;
  at::ScalarType compute_, wide_;
  bool accumulate_ = false;
  NormSaved stats_;
  at::Tensor rows_, shared_up_, shared_act_, in_, places_, offsets_, up_, act_, out_;
};

// The bound is c u sqrt(n depth) of the largest element, as in model_test.cpp, because the parts in between round in
// turn.
double sparse_bound(const arch::Architecture& a, DType compute, std::int64_t tokens) {
  const std::int64_t n = compute == DType::kBF16 ? 1 : std::max({a.hidden, a.expert_up_size(), tokens});
  return 8.0 * unit_roundoff(compute) * std::sqrt(static_cast<double>(n * 2 * 6));
}

void expect_within(const at::Tensor& got, const at::Tensor& want, double allowed, const char* what) {
  const double scale = want.abs().max().item<double>(), error = (got.to(at::kDouble) - want).abs().max().item<double>();
  EXPECT_GT(scale, 0.0) << what;
  EXPECT_LE(error, allowed * scale) << what;  // NaN fails
}

void check_layer(const SparseCase& of, const Path& path) {
  SCOPED_TRACE(of.name);
  constexpr std::int64_t B = 3, S = 7;
  const arch::Architecture a = architecture_of(of);
  const at::ScalarType compute = scalar_type(path.compute),
                       wide = path.compute == DType::kF64 ? at::kDouble : at::kFloat;
  const SparseWeights weights = make_sparse_weights(a).each([&](const at::Tensor& t) { return t.to(compute); });
  const SparseWeights leaves =
      weights.each([](const at::Tensor& t) { return t.to(at::kDouble, false, true).requires_grad_(true); });
  SparseWeights grads = weights.each([&](const at::Tensor& t) { return at::full(t.sizes(), NAN, wide); });
  const double allowed = sparse_bound(a, path.compute, 2 * B * S);
  at::Tensor load = at::zeros({a.experts->count}, at::kDouble);
  EXPECT_LT(allowed, 0.3) << "a bound that proves nothing";
  for (const std::string key : {"first", "second"}) {
    const SparseBatch batch{random_normal({B * S, a.hidden}, key, 1.0).to(compute),
                            random_ids(B * S, a.vocabulary, 4, key + " labels"),
                            random_normal({B * S, a.hidden}, key + " d_y", 1.0).to(compute)};
    SparseLayer layer(a, path, weights, B, S);
    {
      const c10::InferenceMode inference;
      layer.forward(batch);
      layer.backward(batch, key == "second", grads);
    }
    const at::Tensor mid = batch.mid.to(at::kDouble, false, true).requires_grad_(true);
    const at::Tensor marked = layer.routed.choice_Nt, choice = at::where(marked.lt(0), marked.bitwise_not(), marked);
    const Oracle want = oracle_layer(a, mid, batch.labels, leaves, B, choice);
    load += want.load;
    if (path.compute != DType::kBF16) {
      EXPECT_TRUE(at::equal(choice.to(at::kLong), want.choice));
    }
    EXPECT_EQ(layer.sums.dropped, static_cast<double>(want.dropped));
    EXPECT_EQ(want.dropped > 0, of.capacity > 0.0);
    const double each = kGradScale / static_cast<double>(a.layers);
    ((want.y * batch.d_y.to(at::kDouble)).sum() + want.balance * (each * of.balance) + want.z * (each * of.z))
        .backward();
    expect_within(layer.y, want.y.detach(), allowed, "y");
    expect_within(layer.d_x, mid.grad(), allowed, "d_x");
    EXPECT_NEAR(layer.sums.balance / want.balance.item<double>(), 1.0, allowed);
    EXPECT_NEAR(layer.sums.z / want.z.item<double>(), 1.0, allowed);
  }
  // The bias has no gradient; its place holds the number of tokens that chose each expert, of the tokens that count in
  // both micro-batches.
  if (of.biased) {
    EXPECT_TRUE(at::equal(grads.router_bias.to(at::kDouble), load));
  }
  const auto named = grads.named(), wanted = leaves.named();
  for (std::size_t i = 0; i < named.size(); ++i)
    expect_within(named[i].second, wanted[i].second.grad(), allowed, named[i].first);
}

const Path kSparsePaths[] = {{"reference_fp64", Kernels::kReference, DType::kF64, 2},
                             {"reference_fp32", Kernels::kReference, DType::kF32, 2},
                             {"fused_fp32", Kernels::kFused, DType::kF32, 2},
                             {"fused_fp32_1", Kernels::kFused, DType::kF32, 1},
                             {"aten_bf16", Kernels::kAten, DType::kBF16, 2}};

class Experts : public OnPath {};
INSTANTIATE_TEST_SUITE_P(Paths, Experts, ::testing::ValuesIn(kSparsePaths),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Experts, AgreeWithAutograd) {
  for (const SparseCase& c : kSparse) check_layer(c, GetParam());
}

TEST(ExpertsOnAten, OtherTypesThanBf16AreRefused) {
  const arch::Architecture a = architecture_of(kSparse[0]);
  Workspace work(1 << 16);
  const Context c{a, {1, 2, 0, DType::kF32, 1, Kernels::kAten}, work.scratch};
  const at::Tensor x = at::zeros({4, 37}), w = at::zeros({5, 46, 37});
  at::Tensor y = at::zeros({4, 46});
  EXPECT_THROW(experts_forward(c, x, at::zeros({6}, at::kInt), w, y), Error);
}

}  // namespace
}  // namespace molen::model
