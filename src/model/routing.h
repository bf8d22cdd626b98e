// The sizes of a router, and its choice from logits in fp32 or fp64. All kernels of the router share them.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "math/expert_order.h"
#include "math/reference_routing.h"
#include "model/experts.h"

namespace molen::model {

inline math::reference::Router router_of(const Context& c, std::int64_t rows, const at::Tensor& labels) {
  const arch::Experts& e = c.arch.sparse_experts();
  math::reference::Router router{rows, e.count, e.per_token};
  if (e.scores == arch::RouterScores::kSigmoid) router.score = math::reference::RouterScore::kSigmoid;
  router.renormalise = e.norm_topk;
  router.scale = e.scale;
  if (labels.defined()) router.labels_N = labels.data_ptr<std::int32_t>();
  return router;
}
inline math::Slots slots_of(const at::Tensor& places, const at::Tensor& rows) {
  return {places.size(0), places.size(1), rows.size(1), places.data_ptr<std::int32_t>()};
}
inline math::Groups groups_of(const at::Tensor& offsets, const at::Tensor& weight) {
  return {weight.size(0), weight.size(1), weight.size(2), offsets.data_ptr<std::int32_t>()};
}

// `bias` has one value for each expert; null: none. The losses are those of the choice before anything is dropped
// (Switch Transformers, arXiv 2101.03961, equation 5).
template <class T>
RouterSums choose_experts(const Context& c, const T* logits, const T* bias, const at::Tensor& labels, Routed& to) {
  const int threads = std::max(c.shape.threads, 1);
  const auto router = router_of(c, to.lse_N.numel(), labels);
  auto* choice = to.choice_Nt.data_ptr<std::int32_t>();
  T *scores = to.scores_NE.data_ptr<T>(), *lse = to.lse_N.data_ptr<T>(), *load = to.load_B2E.data_ptr<T>();
  math::reference::route<T>(threads, router, logits, bias, choice, to.weights_Nt.data_ptr<T>(), scores, lse);
  math::reference::balance_sums<T>(threads, router, c.shape.batch, bias != nullptr, logits, choice, scores, load,
                                   c.scratch);
  RouterSums sums{static_cast<double>(math::reference::z_loss_sum<T>(router, lse))};
  const arch::Experts& e = c.arch.sparse_experts();
  if (to.counts_B22E.defined())
    math::count_choices(router.k, router.E, c.shape.batch, c.positions, router.labels_N, choice,
                        to.counts_B22E.data_ptr<std::int32_t>());
  else if (e.drops())
    sums.dropped = static_cast<double>(math::limit_experts(router.N, router.k, router.E, c.shape.batch,
                                                           arch::capacity_of(e, c.shape.sequence), router.labels_N,
                                                           choice, c.scratch.take<std::int32_t>(router.E)));
  return sums;
}

template <class T>
double balance_sum(const Context& c, const at::Tensor& load, std::int64_t sequence) {
  const std::int64_t batch = load.size(0);
  T* losses = c.scratch.take<T>(batch);
  math::reference::balance_losses<T>(router_of(c, 0, {}), {.B = batch, .T = sequence}, load.data_ptr<T>(), losses);
  double sum = 0.0;
  for (std::int64_t b = 0; b < batch; ++b) sum += static_cast<double>(losses[b]) * static_cast<double>(sequence);
  return sum;
}

// The backward reads the scores and not the logits, because only softmax scores have a z-loss (arch::validate).
template <class T>
void choose_backward(const Context& c, const at::Tensor& d_weights, const at::Tensor& labels, const Routed& of,
                     std::int64_t sequence, double grad_scale, T* d_logits) {
  const arch::Experts& e = c.arch.sparse_experts();
  const double each = c.share.rank == 0 ? grad_scale / static_cast<double>(c.arch.sparse_layers()) : 0.0;
  const math::reference::RouterLosses losses{each * e.balance_loss * static_cast<double>(sequence), each * e.z_loss,
                                             c.shape.batch, sequence};
  const T* scores = of.scores_NE.data_ptr<T>();
  math::reference::route_backward<T>(std::max(c.shape.threads, 1), router_of(c, of.lse_N.numel(), labels), losses,
                                     scores, scores, of.lse_N.data_ptr<T>(), of.choice_Nt.data_ptr<std::int32_t>(),
                                     d_weights.data_ptr<T>(), of.load_B2E.data_ptr<T>(), d_logits);
}

// Counts the tokens with a label that choose each expert, which is what moves a router's bias. T counts them exactly
// below 2^24. When ranks share the part, only the first of them counts.
template <class T>
void count_tokens(const Context& c, const at::Tensor& labels, const Routed& of, T* counts) {
  const auto router = router_of(c, of.lse_N.numel(), labels);
  const auto* choice = of.choice_Nt.data_ptr<std::int32_t>();
  if (!c.accumulate) std::fill(counts, counts + router.E, T(0));
  if (c.share.rank > 0) return;
  for (std::int64_t n = 0; n < router.N; ++n)
    for (std::int64_t j = 0; router.counts(n) && j < router.k; ++j)
      counts[math::expert_of(choice[n * router.k + j])] += T(1);
}

}  // namespace molen::model
