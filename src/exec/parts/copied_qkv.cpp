#include "exec/parts/copied_qkv.h"

namespace molen::exec {

template <class F>
void CopiedQkv::each(F&& f, const model::Linear& all) const {
  const auto one = [&](const at::Tensor& whole, Role query, Role key, Role value) {
    const at::Tensor q = weights_.weight(query);
    std::int64_t row = q.size(0);
    f(whole.narrow(0, 0, row), q);
    for (const Role role : {key, value})
      for (const std::int64_t head : heads_) {
        f(whole.narrow(0, row, head_dim_), weights_.weight(role).narrow(0, head * head_dim_, head_dim_));
        row += head_dim_;
      }
  };
  one(all.weight_OI, Role::kQuery, Role::kKey, Role::kValue);
  if (all.bias_O.defined()) one(all.bias_O, Role::kQueryBias, Role::kKeyBias, Role::kValueBias);
}

model::Linear CopiedQkv::assemble(math::Scratch& scratch) const {
  model::Linear all = empty(scratch);
  each([&](at::Tensor part, const at::Tensor& source) { part.copy_(source); }, all);
  return all;
}

model::Linear CopiedQkv::empty(math::Scratch& scratch) const {
  const at::Tensor q = weights_.weight(Role::kQuery), bias = weights_.weight(Role::kQueryBias);
  const auto make = [&](at::IntArrayRef shape, std::int64_t elements) {
    if (!q.device().is_cpu()) return at::empty(shape, q.options());
    return at::from_blob(scratch.take_bytes(elements * q.element_size()), shape, q.options());
  };
  model::Linear all{make({rows_, q.size(1)}, rows_ * q.size(1)), {}};
  if (bias.defined()) all.bias_O = make({rows_}, rows_);
  return all;
}

model::Linear CopiedQkv::fresh(math::Scratch& scratch, bool adds) const {
  model::Linear d_w = empty(scratch);
  if (adds) {
    d_w.weight_OI.zero_();
    if (d_w.bias_O.defined()) d_w.bias_O.zero_();
  }
  return d_w;
}

std::int64_t CopiedQkv::spread(const model::Linear& all, bool accumulate) const {
  if (!accumulate)
    for (const Role role : {Role::kKey, Role::kValue, Role::kKeyBias, Role::kValueBias})
      if (at::Tensor w = weights_.weight(role); w.defined()) w.zero_();
  const std::int64_t query = weights_.weight(Role::kQuery).size(0);
  std::int64_t row = 0, moved = 0;
  each(
      [&](const at::Tensor& part, at::Tensor target) {
        // Two of the rank's query heads may share one key head.
        const bool zeroed = !accumulate && row >= query;
        if (accumulate || zeroed)
          target.add_(part);
        else
          target.copy_(part);
        moved += (zeroed ? 4 : accumulate ? 3 : 2) * RunState::bytes_of(part);
        row += part.size(0);
        if (row == rows_) row = 0;  // the weights are complete, and the biases follow
      },
      all);
  return moved;
}

std::int64_t CopiedQkv::bytes_of(const model::Linear& all) {
  return RunState::bytes_of(all.weight_OI) + (all.bias_O.defined() ? RunState::bytes_of(all.bias_O) : 0);
}

}  // namespace molen::exec
