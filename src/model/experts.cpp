// Assembles the parts of a sparse layer from the kernels. experts_aten.cpp has the parts in bf16.
#include "model/experts.h"

#include "math/experts.h"
#include "math/reference_experts.h"
#include "model/experts_aten.h"
#include "model/kernels.h"
#include "model/parts_aten.h"
#include "model/routing.h"

namespace molen::model {
namespace {

using math::Groups;
using math::Slots;

// The kernels of both sets under the same names.
template <class T>
void dispatch(const Reference<T>& k, const Slots& s, const T* x, T* rows) {
  math::reference::dispatch(k.threads, s, x, rows);
}
void dispatch(const Fused& k, const Slots& s, const float* x, float* rows) {
  math::dispatch(k.threads, s, x, rows);
}
template <class T>
void gather(const Reference<T>& k, const Slots& s, const T* weight, const T* rows, bool accumulate, T* y) {
  math::reference::combine(k.threads, s, weight, rows, accumulate, y);
}
void gather(const Fused& k, const Slots& s, const float* weight, const float* rows, bool accumulate, float* y) {
  math::combine(k.threads, s, weight, rows, accumulate, y);
}
template <class T>
void gather_backward(const Reference<T>& k, const Slots& s, const T* weight, const T* d_y, const T* rows, T* d_rows,
                     T* d_weight) {
  math::reference::combine_backward(k.threads, s, weight, d_y, rows, d_rows, d_weight);
}
void gather_backward(const Fused& k, const Slots& s, const float* weight, const float* d_y, const float* rows,
                     float* d_rows, float* d_weight) {
  math::combine_backward(k.threads, s, weight, d_y, rows, d_rows, d_weight);
}
template <class T>
void grouped(const Reference<T>& k, const Groups& g, const T* x, const T* w, T* y) {
  math::reference::grouped_nt(k.threads, g, x, w, y);
}
void grouped(const Fused&, const Groups& g, const float* x, const float* w, float* y) {
  math::grouped_nt(g, x, w, y);
}
template <class T>
void grouped_backward(const Reference<T>& k, const Context& c, const Groups& g, const T* d_y, const T* x, const T* w,
                      T* d_x, T* d_w) {
  math::reference::grouped_nn(k.threads, g, d_y, w, d_x);
  math::reference::grouped_tn(k.threads, g, d_y, x, c.accumulate, d_w);
}
void grouped_backward(const Fused& k, const Context& c, const Groups& g, const float* d_y, const float* x,
                      const float* w, float* d_x, float* d_w) {
  math::grouped_nn(g, d_y, w, d_x);
  math::grouped_tn(g, d_y, x, c.accumulate, d_w, c.scratch.take_span(math::grouped_tn_scratch(k.threads, g.out)));
}

}  // namespace

RouterSums route_forward(const Context& c, const at::Tensor& mid, const at::Tensor& labels, const NormWeights& norm,
                         const RouterWeights& router, NormSaved& saved, at::Tensor& rows, Routed& routed) {
  RouterSums sums;
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 n = mid.size(0), d = mid.size(1), experts = router.weight_Ed.size(0);
        k.norm_forward(n, d, c.arch.norm_eps, pointer<T>(mid), pointers<T>(norm, saved), pointer<T>(rows));
        T* logits = c.scratch.template take<T>(n * experts);
        k.matmul_nt(n, experts, d, pointer<T>(rows), pointer<T>(router.weight_Ed), false, logits);
        sums = choose_experts<T>(c, logits, pointer<T>(router.bias_E), labels, routed);
      },
      [&] { sums = aten::route_forward(c, mid, labels, norm, router, saved, rows, routed); });
  return sums;
}

double limit(const Context& c, const at::Tensor& labels, std::span<const std::vector<PositionRun>> runs, i64 rank,
             const at::Tensor& counts, at::Tensor& choice) {
  const arch::Experts& e = c.arch.sparse_experts();
  return static_cast<double>(math::limit_shared_experts(
      e.per_token, e.count, c.shape.batch, arch::capacity_of(e, c.shape.sequence * std::ssize(runs)), runs, rank,
      labels.data_ptr<std::int32_t>(), counts.data_ptr<std::int32_t>(), choice.data_ptr<std::int32_t>(),
      c.scratch.take<std::int32_t>(e.count)));
}

double balance_loss(const Context& c, const at::Tensor& load, std::int64_t sequence) {
  return load.scalar_type() == at::kDouble ? balance_sum<double>(c, load, sequence)
                                           : balance_sum<float>(c, load, sequence);
}

void route_backward(const Context& c, at::Tensor& d_rows, const at::Tensor& d_weights, const at::Tensor& mid,
                    const at::Tensor& labels, const NormSaved& saved, const Routed& routed, const NormWeights& norm,
                    const RouterWeights& router, std::int64_t sequence, double grad_scale, at::Tensor& d_x,
                    NormWeights& d_norm, RouterWeights& d_router) {
  check_whole(c, arch::Part::kRoute);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 n = mid.size(0), d = mid.size(1), experts = router.weight_Ed.size(0);
        const auto p = pointers<T>(norm, saved);
        T *d_logits = c.scratch.template take<T>(n * experts), *normed = c.scratch.template take<T>(n * d);
        choose_backward(c, d_weights, labels, routed, sequence, grad_scale, d_logits);
        k.norm_apply(n, d, pointer<T>(mid), p, normed);
        k.matmul_tn(experts, d, n, d_logits, normed, c.accumulate, pointer<T>(d_router.weight_Ed));
        if (d_router.bias_E.defined()) count_tokens(c, labels, routed, pointer<T>(d_router.bias_E));
        k.matmul_nn(n, d, experts, d_logits, pointer<T>(router.weight_Ed), true, pointer<T>(d_rows));
        norm_backward_rows(k, c, pointer<T>(d_rows), mid, p, d_x, d_norm);
      },
      [&] {
        aten::route_backward(c, d_rows, d_weights, mid, labels, saved, routed, norm, router, sequence, grad_scale, d_x,
                             d_norm, d_router);
      });
}

void dispatch_forward(const Context& c, const at::Tensor& rows, const at::Tensor& choice, at::Tensor& expert_rows,
                      at::Tensor& places, at::Tensor& offsets) {
  const i64 experts = c.arch.sparse_experts().count;
  math::expert_order(choice.size(0), choice.size(1), experts, choice.data_ptr<std::int32_t>(),
                     c.scratch.take<std::int32_t>(experts), offsets.data_ptr<std::int32_t>(),
                     places.data_ptr<std::int32_t>());
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        dispatch(k, slots_of(places, rows), pointer<T>(rows), pointer<T>(expert_rows));
      },
      [&] { aten::dispatch_forward(c, rows, places, expert_rows); });
}

void dispatch_backward(const Context& c, const at::Tensor& d_expert_rows, const at::Tensor& places,
                       at::Tensor& d_rows) {
  check_whole(c, arch::Part::kDispatch);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        gather(k, slots_of(places, d_rows), static_cast<const T*>(nullptr), pointer<T>(d_expert_rows), false,
               pointer<T>(d_rows));
      },
      [&] { aten::dispatch_backward(c, d_expert_rows, places, d_rows); });
}

void experts_forward(const Context& c, const at::Tensor& x, const at::Tensor& offsets, const at::Tensor& weight,
                     at::Tensor& y) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        grouped(k, groups_of(offsets, weight), pointer<T>(x), pointer<T>(weight), pointer<T>(y));
      },
      [&] { aten::experts_forward(c, x, offsets, weight, y); });
}

void experts_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& offsets,
                      const at::Tensor& weight, at::Tensor& d_x, at::Tensor& d_weight) {
  check_whole(c, arch::Part::kExpertUp);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        grouped_backward(k, c, groups_of(offsets, weight), pointer<T>(d_y), pointer<T>(x), pointer<T>(weight),
                         pointer<T>(d_x), pointer<T>(d_weight));
      },
      [&] { aten::experts_backward(c, d_y, x, offsets, weight, d_x, d_weight); });
}

void shared_up_forward(const Context& c, const at::Tensor& rows, const Linear& up, at::Tensor& y) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        linear_forward(k, pointer<T>(rows), at::Tensor(), up, 0, rows.size(0), y);
      },
      [&] { aten::linear_forward(c, rows, at::Tensor(), up, y); });
}

void shared_up_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& rows, const Linear& up,
                        at::Tensor& d_rows, Linear& d_up) {
  check_whole(c, arch::Part::kSharedUp);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 n = rows.size(0), d = rows.size(1), columns = d_y.size(1);
        k.matmul_nn(n, d, columns, pointer<T>(d_y), pointer<T>(up.weight_OI), true, pointer<T>(d_rows));
        linear_weight_gradient(k, c.accumulate, d_y, pointer<T>(rows), 0, n, d_up);
      },
      [&] { aten::shared_up_backward(c, d_y, rows, up, d_rows, d_up); });
}

void combine_forward(const Context& c, const at::Tensor& expert_rows, const at::Tensor& places,
                     const at::Tensor& weights, const at::Tensor& mid, at::Tensor& y) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 d = y.size(1), own = mid.size(0), first = own == y.size(0) ? 0 : c.share.first_row;
        T* out = pointer<T>(y);
        std::fill(out, out + first * d, T(0));
        k.fill_rows(own, d, pointer<T>(mid), static_cast<const T*>(nullptr), out + first * d);
        std::fill(out + (first + own) * d, out + y.size(0) * d, T(0));
        gather(k, slots_of(places, y), static_cast<const T*>(pointer<T>(weights)), pointer<T>(expert_rows), true,
               pointer<T>(y));
      },
      [&] { aten::combine_forward(c, expert_rows, places, weights, mid, y); });
}

void combine_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& expert_rows, const at::Tensor& places,
                      const at::Tensor& weights, at::Tensor& d_expert_rows, at::Tensor& d_weights) {
  check_whole(c, arch::Part::kCombine);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        gather_backward(k, slots_of(places, d_y), pointer<T>(weights), pointer<T>(d_y), pointer<T>(expert_rows),
                        pointer<T>(d_expert_rows), pointer<T>(d_weights));
      },
      [&] { aten::combine_backward(c, d_y, expert_rows, places, weights, d_expert_rows, d_weights); });
}

}  // namespace molen::model
