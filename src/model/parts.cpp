// Assembles the parts from kernels on raw pointers. The same code serves the reference and the fused kernels, which
// have the same interface. parts_aten.cpp has the ATen kernels.
#include "model/parts.h"

#include <ATen/ATen.h>

#include <cmath>

#include "arch/alibi.h"
#include "model/context.h"
#include "model/kernels.h"
#include "model/parts_aten.h"

namespace molen::model {
// --- RoPE's table

namespace {

// Returns the angle by which pair i of a head's components turns from one position to the next.
double rope_frequency(const arch::Architecture& arch, i64 i) {
  const double frequency =
      std::pow(arch.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(arch.head_dim));
  if (!arch.rope_scaling) return frequency;
  // Llama 3.1 stretches long wavelengths by `factor`, keeps short ones, and interpolates between the two.
  const auto& s = *arch.rope_scaling;
  const double wavelength = 2.0 * M_PI / frequency, original = static_cast<double>(s.original_max_sequence);
  if (wavelength > original / s.low_freq_factor) return frequency / s.factor;
  if (wavelength <= original / s.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1.0 - smooth) * frequency / s.factor + smooth * frequency;
}

}  // namespace

RopeTable make_rope_table(const arch::Architecture& arch, std::int64_t sequence, at::ScalarType dtype,
                          at::Device device) {
  const PositionRun all{0, sequence};
  return make_rope_table(arch, {&all, 1}, dtype, device);
}

RopeTable make_rope_table(const arch::Architecture& arch, std::span<const PositionRun> positions, at::ScalarType dtype,
                          at::Device device) {
  if (arch.position != arch::Position::kRope) return {};
  const i64 half = arch.head_dim / 2;
  // The table needs the C library's cosine and sine. ATen calls MKL for them, and when several ranks make their first
  // call at the same moment, MKL sometimes returns values with other last bits to one of them.
  const at::Tensor cosines = at::empty({count_positions(positions), half}, at::kDouble),
                   sines = at::empty_like(cosines);
  for (i64 i = 0; i < half; ++i) {
    const double frequency = rope_frequency(arch, i);
    i64 cell = i;
    for (const PositionRun& run : positions)
      for (i64 p = run.first; p < run.last; ++p, cell += half) {
        const double angle = static_cast<double>(p) * frequency;
        cosines.data_ptr<double>()[cell] = std::cos(angle);
        sines.data_ptr<double>()[cell] = std::sin(angle);
      }
  }
  return {cosines.to(device, dtype), sines.to(device, dtype)};
}

at::Tensor make_slopes(const arch::Architecture& arch, int rank, int ranks) {
  const std::int64_t heads = arch.heads / ranks;
  return at::tensor(arch::alibi_slopes(arch.heads), at::kDouble).narrow(0, rank * heads, heads).contiguous();
}

// --- the parts

void embed_forward(const Context& c, const at::Tensor& ids, const at::Tensor& table, const at::Tensor& positions,
                   at::Tensor& x) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 d = x.size(1);
        const std::int32_t* rows = rows_of(c, ids, table.size(0));
        const T* learned = c.share.rank == 0 ? pointer<T>(positions) : nullptr;
        if (!learned || c.positions.empty())
          return k.embedding_forward(x.size(0), c.shape.sequence, d, rows, pointer<T>(table), learned, pointer<T>(x));
        check_positions(c, positions.size(0));
        for_each_run(c, [&](i64 row, i64 count, i64 first) {
          k.embedding_forward(count, count, d, rows + row, pointer<T>(table), learned + first * d,
                              pointer<T>(x) + row * d);
        });
      },
      [&] { aten::embed_forward(c, ids, table, positions, x); });
}

void embed_backward(const Context& c, const at::Tensor& ids, const at::Tensor& d_x, at::Tensor& d_table,
                    at::Tensor& d_positions) {
  check_whole(c, arch::Part::kEmbed);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        if (!c.accumulate) {
          k.fill_zero(d_table.numel(), pointer<T>(d_table));
          if (d_positions.defined()) k.fill_zero(d_positions.numel(), pointer<T>(d_positions));
        }
        const i64 d = d_x.size(1);
        const std::int32_t* rows = rows_of(c, ids, d_table.size(0));
        T* learned = c.share.rank == 0 ? pointer<T>(d_positions) : nullptr;
        if (!learned || c.positions.empty())
          return k.embedding_backward(d_x.size(0), c.shape.sequence, d, rows, pointer<T>(d_x), pointer<T>(d_table),
                                      learned);
        check_positions(c, d_positions.size(0));
        for_each_run(c, [&](i64 row, i64 count, i64 first) {
          k.embedding_backward(count, count, d, rows + row, pointer<T>(d_x) + row * d, pointer<T>(d_table),
                               learned + first * d);
        });
      },
      [&] { aten::embed_backward(c, ids, d_x, d_table, d_positions); });
}

void norm_qkv_forward(const Context& c, const at::Tensor& x, const NormWeights& norm, const Linear& qkv,
                      NormSaved& saved, at::Tensor& out) {
  run(
      c, [&](const auto& k) { norm_linear_forward(k, c, x, norm, qkv, saved, out); },
      [&] { aten::norm_linear_forward(c, x, norm, qkv, saved, out); });
}

void norm_qkv_backward(const Context& c, const at::Tensor& d_qkv, const at::Tensor& x, const NormSaved& saved,
                       const NormWeights& norm, const Linear& qkv, at::Tensor& d_x, NormWeights& d_norm, Linear& d_w) {
  run(
      c, [&](const auto& k) { norm_linear_backward(k, c, d_qkv, x, saved, norm, qkv, d_x, d_norm, d_w); },
      [&] { aten::norm_linear_backward(c, d_qkv, x, saved, norm, qkv, d_x, d_norm, d_w); });
}

void qk_norm_forward(const Context& c, const at::Tensor& projected, const QkNormWeights& w, at::Tensor& normed) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.qk_norm_forward(projected.size(0), qk_norm_sizes(c), c.arch.norm_eps, pointer<T>(projected),
                          pointer<T>(w.query), pointer<T>(w.key), pointer<T>(normed));
      },
      [&] { aten::qk_norm_forward(c, projected, w, normed); });
}

void qk_norm_backward(const Context& c, const at::Tensor& projected, const QkNormWeights& w, at::Tensor& d_qkv,
                      QkNormWeights& d_norms) {
  check_whole(c, arch::Part::kQkNorm);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.qk_norm_backward(projected.size(0), qk_norm_sizes(c), c.arch.norm_eps, pointer<T>(projected),
                           pointer<T>(w.query), pointer<T>(w.key), pointer<T>(d_qkv), c.accumulate,
                           pointer<T>(d_norms.query), pointer<T>(d_norms.key), c.scratch);
      },
      [&] { aten::qk_norm_backward(c, projected, w, d_qkv, d_norms); });
}

void rotate(const Context& c, const RopeTable& rope, bool back, at::Tensor& qkv) {
  check_whole(c, arch::Part::kRotate);
  check_rope_rows(c, rope.cos_SD2.size(0));
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.rope(qkv.size(0), c.shape.sequence, c.arch.heads + c.arch.kv_heads, c.arch.head_dim, c.arch.qkv_size(),
               pointer<T>(rope.cos_SD2), pointer<T>(rope.sin_SD2), back, pointer<T>(qkv));
      },
      [&] { aten::rotate(c, rope, back, qkv); });
}

void output_projection_forward(const Context& c, const at::Tensor& o, const at::Tensor& x, const Linear& output,
                               at::Tensor& mid) {
  run(
      c,
      [&](const auto& k) {
        linear_forward(k, pointer<RealOf<std::decay_t<decltype(k)>>>(o), x, output, c.share.first_row,
                       c.share.count_rows(mid.size(0)), mid);
      },
      [&] { aten::linear_forward(c, o, x, output, mid); });
}

void output_projection_backward(const Context& c, const at::Tensor& d_x, const at::Tensor& o, const Linear& output,
                                at::Tensor& d_o, Linear& d_output) {
  run(
      c, [&](const auto& k) { linear_backward(k, c, d_x, o, output, d_o, d_output); },
      [&] { aten::linear_backward(c, d_x, o, output, d_o, d_output); });
}

void norm_up_forward(const Context& c, const at::Tensor& mid, const NormWeights& norm, const Linear& up,
                     NormSaved& saved, at::Tensor& out) {
  run(
      c, [&](const auto& k) { norm_linear_forward(k, c, mid, norm, up, saved, out); },
      [&] { aten::norm_linear_forward(c, mid, norm, up, saved, out); });
}

void norm_up_backward(const Context& c, const at::Tensor& d_up, const at::Tensor& mid, const NormSaved& saved,
                      const NormWeights& norm, const Linear& up, at::Tensor& d_x, NormWeights& d_norm, Linear& d_w) {
  run(
      c, [&](const auto& k) { norm_linear_backward(k, c, d_up, mid, saved, norm, up, d_x, d_norm, d_w); },
      [&] { aten::norm_linear_backward(c, d_up, mid, saved, norm, up, d_x, d_norm, d_w); });
}

void activation_forward(const Context& c, const at::Tensor& up, at::Tensor& a) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        if (c.arch.activation == Activation::kSwiGlu)
          k.swiglu_forward(a.size(0), a.size(1), pointer<T>(up), pointer<T>(a));
        else
          k.gelu_tanh_forward(a.numel(), pointer<T>(up), pointer<T>(a));
      },
      [&] { aten::activation_forward(c, up, a); });
}

void activation_backward(const Context& c, const at::Tensor& d_a, const at::Tensor& up, at::Tensor& d_up) {
  check_whole(c, arch::Part::kActivation);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        if (c.arch.activation == Activation::kSwiGlu)
          k.swiglu_backward(d_a.size(0), d_a.size(1), pointer<T>(d_a), pointer<T>(up), pointer<T>(d_up));
        else
          k.gelu_tanh_backward(d_a.numel(), pointer<T>(d_a), pointer<T>(up), pointer<T>(d_up));
      },
      [&] { aten::activation_backward(c, d_a, up, d_up); });
}

void down_forward(const Context& c, const at::Tensor& a, const at::Tensor& mid, const Linear& down, at::Tensor& y) {
  output_projection_forward(c, a, mid, down, y);  // the formula is the same: y = residual + x W^T + b
}

void down_backward(const Context& c, const at::Tensor& d_x, const at::Tensor& a, const Linear& down, at::Tensor& d_a,
                   Linear& d_down) {
  output_projection_backward(c, d_x, a, down, d_a, d_down);
}

void final_norm_forward(const Context& c, const at::Tensor& x, const NormWeights& norm, NormSaved& saved,
                        at::Tensor& y) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.norm_forward(x.size(0), x.size(1), c.arch.norm_eps, pointer<T>(x), pointers<T>(norm, saved), pointer<T>(y));
      },
      [&] { aten::norm_forward(c, x, norm, saved, y); });
}

void final_norm_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const NormSaved& saved,
                         const NormWeights& norm, at::Tensor& d_x, NormWeights& d_norm) {
  check_whole(c, arch::Part::kFinalNorm);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.norm_backward(x.size(0), x.size(1), pointer<T>(d_y), pointer<T>(x), pointers<T>(norm, saved), false,
                        pointer<T>(d_x), c.accumulate, pointer<T>(d_norm.weight_d), pointer<T>(d_norm.bias_d),
                        c.scratch);
      },
      [&] { aten::norm_backward(c, d_y, x, saved, norm, false, d_x, d_norm); });
}

void head_loss(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
               double grad_scale, at::Tensor& losses, at::Tensor& d_y, at::Tensor& d_head) {
  check_whole(c, arch::Part::kHead);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 rows = y.size(0), d = y.size(1), vocabulary = head.size(0);
        const std::int32_t* label = checked_ids(labels, -1, vocabulary);
        T* logits = c.scratch.template take<T>(rows * vocabulary);
        k.matmul_nt(rows, vocabulary, d, pointer<T>(y), pointer<T>(head), false, logits);
        k.cross_entropy(rows, vocabulary, label, true, grad_scale, logits, pointer<T>(losses));
        k.matmul_nn(rows, d, vocabulary, logits, pointer<T>(head), false, pointer<T>(d_y));
        k.matmul_tn(vocabulary, d, rows, logits, pointer<T>(y), c.accumulate, pointer<T>(d_head));
      },
      [&] { aten::head_loss(c, y, labels, head, grad_scale, losses, d_y, d_head); });
}

void head_logits_sums(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                      at::Tensor& logits, at::Tensor& sums) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 rows = y.size(0), vocabulary = head.size(0);
        k.matmul_nt(rows, vocabulary, y.size(1), pointer<T>(y), pointer<T>(head), false, pointer<T>(logits));
        k.shared_sums(rows, vocabulary, c.share.vocabulary_first, checked_ids(labels, -1, c.share.vocabulary_all),
                      pointer<T>(logits), pointer<T>(sums));
      },
      [&] { aten::head_logits_sums(c, y, labels, head, logits, sums); });
}

void head_shared_loss(const Context& c, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& losses) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        combine_sums<T>(c, sums, losses.size(0), checked_ids(labels, -1, c.share.vocabulary_all), pointer<T>(losses),
                        nullptr);
      },
      [&] { aten::head_shared_loss(c, sums, labels, losses); });
}

void head_shared_gradient(const Context& c, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& logits,
                          const at::Tensor& y, const at::Tensor& head, double grad_scale, at::Tensor& losses,
                          at::Tensor& d_y, at::Tensor& d_head) {
  check_whole(c, arch::Part::kHeadLoss);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 rows = y.size(0), d = y.size(1), vocabulary = head.size(0);
        const auto t = row_targets<T>(c, sums, labels, vocabulary, grad_scale, losses);
        k.shared_gradient(rows, vocabulary, t.column, t.lse, t.scale, pointer<T>(logits));
        k.matmul_nn(rows, d, vocabulary, pointer<T>(logits), pointer<T>(head), false, pointer<T>(d_y));
        k.matmul_tn(vocabulary, d, rows, pointer<T>(logits), pointer<T>(y), c.accumulate, pointer<T>(d_head));
      },
      [&] { aten::head_shared_gradient(c, sums, labels, logits, y, head, grad_scale, losses, d_y, d_head); });
}

void head_loss_forward(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                       at::Tensor& losses) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 rows = y.size(0), d = y.size(1), vocabulary = head.size(0);
        const std::int32_t* label = checked_ids(labels, -1, vocabulary);
        T* logits = c.scratch.template take<T>(rows * vocabulary);
        k.matmul_nt(rows, vocabulary, d, pointer<T>(y), pointer<T>(head), false, logits);
        k.cross_entropy(rows, vocabulary, label, false, 1.0, logits, pointer<T>(losses));
      },
      [&] { aten::head_loss_forward(c, y, labels, head, losses); });
}

void head_logits(const Context& c, const at::Tensor& y, const at::Tensor& head, at::Tensor& logits) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.matmul_nt(y.size(0), head.size(0), y.size(1), pointer<T>(y), pointer<T>(head), false, pointer<T>(logits));
      },
      [&] { aten::head_logits(c, y, head, logits); });
}

}  // namespace molen::model
