// Compares the GFLOP/s of attention with ATen's fused CPU op. This is not a test: run it alone on an idle machine with
//   math_test --gtest_also_run_disabled_tests --gtest_filter='AttentionSpeed.*'
// Only the causal half of the FLOPs counts: 2 B h S^2 D forward (two products), and 5/2 of it backward (five products).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "math/attention.h"
#include "math/attention_narrow.h"

namespace molen::math {
namespace {

double best_seconds(const std::function<void()>& f) {
  f();
  double best = 1e9;
  const auto begin = std::chrono::steady_clock::now();
  for (int n = 0; n < 3 || (n < 40 && std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(300)); ++n) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// Allocates on huge pages, as the executor's arena may: rows of qkv lie a page or more apart.
at::Tensor huge(at::IntArrayRef sizes, bool random) {
  constexpr std::size_t kPage = 2 << 20;
  std::size_t bytes = sizeof(float);
  for (auto n : sizes) bytes *= static_cast<std::size_t>(n);
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* at = std::aligned_alloc(kPage, bytes);
  if (!std::getenv("SMALL_PAGES")) madvise(at, bytes, MADV_HUGEPAGE);
  at::Tensor t = at::from_blob(
      at, sizes, [](void* p) { std::free(p); }, at::kFloat);
  return random ? t.normal_() : t.zero_();
}

void measure(std::int64_t B, std::int64_t h, std::int64_t k, std::int64_t S, std::int64_t D, int threads,
             AttentionIsa isa, bool aten) {
  at::set_num_threads(threads);
  const AttentionShape shape{B, S, h, k, D, threads, nullptr, isa};
  const at::Tensor qkv = huge({B * S, (h + 2 * k) * D}, true), d_o = huge({B * S, h * D}, true);
  at::Tensor o = huge({B * S, h * D}, false), lse = at::empty({B, h, S}), d_qkv = huge({B * S, (h + 2 * k) * D}, false);
  at::Tensor scratch = huge({std::max(attention_forward_scratch(shape), attention_backward_scratch(shape)) / 4}, false);
  const double forward = best_seconds([&] {
    attention_forward(shape, qkv.const_data_ptr<float>(), o.data_ptr<float>(), lse.data_ptr<float>(),
                      scratch.data_ptr());
  });
  const double backward = best_seconds([&] {
    attention_backward(shape, d_o.const_data_ptr<float>(), qkv.const_data_ptr<float>(), o.const_data_ptr<float>(),
                       lse.const_data_ptr<float>(), d_qkv.data_ptr<float>(), scratch.data_ptr());
  });
  const double flops = 2e-9 * static_cast<double>(B * h * S * S * D);
  std::printf("%-8s B%ld h%ld k%ld S%-5ld D%-4ld threads %d | forward %6.1f  backward %6.1f", name_of(isa), B, h, k, S,
              D, threads, flops / forward, 2.5 * flops / backward);
  const at::Tensor n_qkv = qkv.to(at::kBFloat16), n_d_o = d_o.to(at::kBFloat16);
  at::Tensor n_o = n_d_o.clone(), n_d_qkv = n_qkv.clone();
  at::Tensor space =
      huge({std::max(narrow_attention_forward_scratch(shape), narrow_attention_backward_scratch(shape)) / 4}, false);
  const auto bits = [](const at::Tensor& t) { return static_cast<std::uint16_t*>(t.data_ptr()); };
  const double narrow_forward = best_seconds(
      [&] { narrow_attention_forward(shape, bits(n_qkv), bits(n_o), lse.data_ptr<float>(), space.data_ptr()); });
  const double narrow_backward = best_seconds([&] {
    narrow_attention_backward(shape, bits(n_d_o), bits(n_qkv), bits(n_o), lse.data_ptr<float>(), bits(n_d_qkv),
                              space.data_ptr());
  });
  std::printf(" | bf16 %6.1f %6.1f", flops / narrow_forward, 2.5 * flops / narrow_backward);
  if (aten) {
    const auto part = [&](std::int64_t first, std::int64_t n) {
      return qkv.view({B, S, h + 2 * k, D}).slice(2, first, first + n).transpose(1, 2);
    };
    const at::Tensor q = part(0, h), kk = part(h, k), v = part(h + k, k), g = d_o.view({B, S, h, D}).transpose(1, 2);
    const auto [o2, lse2] = at::_scaled_dot_product_flash_attention_for_cpu(q, kk, v, 0.0, true);
    const double f = best_seconds([&] { at::_scaled_dot_product_flash_attention_for_cpu(q, kk, v, 0.0, true); });
    const at::Tensor out = o2, l = lse2;
    const double b =
        best_seconds([&] { at::_scaled_dot_product_flash_attention_for_cpu_backward(g, q, kk, v, out, l, 0.0, true); });
    std::printf(" | ATen %6.1f %6.1f", flops / f, 2.5 * flops / b);
  }
  std::printf("\n");
  std::fflush(stdout);
}

TEST(AttentionSpeed, DISABLED_Table) {
  for (int threads : {1, 2}) {
    const at::Tensor a = at::randn({2048, 2048});
    at::set_num_threads(threads);
    std::printf("sgemm 2048, threads %d: %.1f GFLOP/s\n", threads,
                2e-9 * 2048 * 2048 * 2048 / best_seconds([&] { at::mm(a, a); }));
    measure(4, 8, 4, 512, 64, threads, AttentionIsa::kBest, true);
    measure(4, 8, 4, 1024, 64, threads, AttentionIsa::kBest, true);
    measure(4, 8, 4, 2048, 64, threads, AttentionIsa::kBest, true);
    measure(4, 8, 4, 512, 128, threads, AttentionIsa::kBest, true);
    measure(4, 8, 4, 2048, 128, threads, AttentionIsa::kBest, true);
  }
}

TEST(AttentionSpeed, DISABLED_Quick) {
  for (std::int64_t D : {64, 128})
    for (std::int64_t S : {512, 2048}) measure(4, 8, 4, S, D, 1, AttentionIsa::kBest, false);
  measure(1, 8, 4, 512, 64, 1, AttentionIsa::kAvx2, false);
  measure(1, 8, 4, 512, 64, 1, AttentionIsa::kGeneric, false);
}

TEST(AttentionSpeed, DISABLED_Narrow) {  // dot products of bf16 beside tiles
  for (std::int64_t D : {64, 128})
    for (std::int64_t S : {512, 2048})
      for (AttentionIsa isa :
           {AttentionIsa::kAvx512Bf16, AttentionIsa::kAmx, AttentionIsa::kAvx512Bf16, AttentionIsa::kAmx})
        if (attention_isa_available(isa)) measure(4, 8, 4, S, D, 2, isa, false);
}

}  // namespace
}  // namespace molen::math
