// Times every layer part at the sizes of the 56.4M Llama (d 512, 8 heads, 4 KV heads, D 64, FFN 1408, V 32000, S 512, B
// 4) and prints ms, GFLOP/s or GB/s, and what a whole step of 8 layers comes to. Usage: bench_kernels [--threads N]
// [--kernels fused|aten|reference]
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "math/vector_kernels.h"
#include "model/parts.h"
#include "program/parts/part.h"

namespace {

using namespace molen;
using arch::Part;
using arch::Pass;

arch::Architecture llama() {
  arch::Architecture a;
  a.name = "llama-56m";
  a.layers = 8, a.hidden = 512, a.ffn = 1408, a.heads = 8, a.kv_heads = 4, a.head_dim = 64, a.vocabulary = 32000,
  a.max_sequence = 512;
  return a;
}

at::Tensor normal(at::IntArrayRef shape, double scale = 1.0) {
  return at::randn(shape).mul_(scale);
}

struct Line {
  std::string name;
  int times;  // in one step
  double ms = 0.0, flops = 0.0, bytes = 0.0;
};

class Bench {
 public:
  Bench(arch::Kernels kernels, int threads)
      : shape_{4, 512, 0, DType::kF32, threads, kernels}, scratch_(at::empty({std::int64_t{1} << 27}, at::kChar)) {}

  void run() {
    const c10::InferenceMode inference;
    const std::int64_t n = shape_.tokens(), d = a_.hidden, layers = a_.layers;
    auto ids = at::randint(a_.vocabulary, {n}, at::kInt), labels = at::randint(a_.vocabulary, {n}, at::kInt);
    auto table = normal({a_.vocabulary, d}, 0.05), d_table = normal({a_.vocabulary, d}), x = normal({n, d}),
         y = normal({n, d}), d_x = normal({n, d});
    auto qkv = normal({n, a_.qkv_size()}), d_qkv = normal({n, a_.qkv_size()}), o = normal({n, a_.query_size()}),
         d_o = normal({n, a_.query_size()});
    auto up = normal({n, a_.up_size()}), d_up = normal({n, a_.up_size()}), act = normal({n, a_.ffn}),
         d_act = normal({n, a_.ffn});
    auto lse = normal({4, a_.heads, 512}), losses = normal({n}), none = at::Tensor();
    model::NormSaved saved{at::ones({n}), none};
    model::NormWeights norm{normal({d}), none}, d_norm{normal({d}), none};
    const auto linear = [&](std::int64_t out, std::int64_t in) { return model::Linear{normal({out, in}, 0.02), none}; };
    auto w_qkv = linear(a_.qkv_size(), d), w_out = linear(d, a_.query_size()), w_up = linear(a_.up_size(), d),
         w_down = linear(d, a_.ffn);
    auto g_qkv = linear(a_.qkv_size(), d), g_out = linear(d, a_.query_size()), g_up = linear(a_.up_size(), d),
         g_down = linear(d, a_.ffn);
    const auto rope = model::make_rope_table(a_, 512, at::kFloat, at::kCPU);
    const int l = static_cast<int>(layers);
    time(Part::kEmbed, Pass::kForward, 1, [&](auto& c) { model::embed_forward(c, ids, table, none, x); });
    time(Part::kNormQkv, Pass::kForward, l, [&](auto& c) { model::norm_qkv_forward(c, x, norm, w_qkv, saved, qkv); });
    time(Part::kRotate, Pass::kForward, l, [&](auto& c) { model::rotate(c, rope, false, qkv); });
    time(Part::kAttention, Pass::kForward, l, [&](auto& c) { model::attention_forward(c, qkv, o, lse); });
    time(Part::kOutProjection, Pass::kForward, l,
         [&](auto& c) { model::output_projection_forward(c, o, x, w_out, y); });
    time(Part::kNormUp, Pass::kForward, l, [&](auto& c) { model::norm_up_forward(c, x, norm, w_up, saved, up); });
    time(Part::kActivation, Pass::kForward, l, [&](auto& c) { model::activation_forward(c, up, act); });
    time(Part::kDown, Pass::kForward, l, [&](auto& c) { model::down_forward(c, act, x, w_down, y); });
    time(Part::kFinalNorm, Pass::kForward, 1, [&](auto& c) { model::final_norm_forward(c, x, norm, saved, y); });
    const std::int64_t chunk = arch::head_chunk(table.size(0));
    auto head_y = y.narrow(0, 0, chunk), head_labels = labels.narrow(0, 0, chunk),
         head_losses = losses.narrow(0, 0, chunk), head_d = d_x.narrow(0, 0, chunk);
    shape_.chunk = chunk;
    time(Part::kHead, Pass::kBackward, static_cast<int>(n / chunk),
         [&](auto& c) { model::head_loss(c, head_y, head_labels, table, 1.0 / 2048, head_losses, head_d, d_table); });
    shape_.chunk = 0;
    time(Part::kFinalNorm, Pass::kBackward, 1,
         [&](auto& c) { model::final_norm_backward(c, y, x, saved, norm, d_x, d_norm); });
    time(Part::kDown, Pass::kBackward, l, [&](auto& c) { model::down_backward(c, d_x, act, w_down, d_act, g_down); });
    time(Part::kActivation, Pass::kBackward, l, [&](auto& c) { model::activation_backward(c, d_act, up, d_up); });
    time(Part::kNormUp, Pass::kBackward, l,
         [&](auto& c) { d_x.copy_(y), model::norm_up_backward(c, d_up, x, saved, norm, w_up, d_x, d_norm, g_up); });
    time(Part::kOutProjection, Pass::kBackward, l,
         [&](auto& c) { model::output_projection_backward(c, d_x, o, w_out, d_o, g_out); });
    time(Part::kAttention, Pass::kBackward, l, [&](auto& c) { model::attention_backward(c, d_o, qkv, o, lse, d_qkv); });
    time(Part::kRotate, Pass::kBackward, l, [&](auto& c) { model::rotate(c, rope, true, d_qkv); });
    time(Part::kNormQkv, Pass::kBackward, l,
         [&](auto& c) { d_x.copy_(y), model::norm_qkv_backward(c, d_qkv, x, saved, norm, w_qkv, d_x, d_norm, g_qkv); });
    time(Part::kEmbed, Pass::kBackward, 1, [&](auto& c) { model::embed_backward(c, ids, d_x, d_table, none); });
    peak();
    kernels_alone();
    print();
  }

 private:
  // The best of several runs: what the machine can do when nothing else disturbs it.
  static double best_ms(const std::function<void()>& call) {
    call();
    double best = 1e30, spent = 0.0;
    for (int i = 0; i < 200 && (i < 5 || spent < 400.0); ++i) {
      const double start = now().value;
      call();
      const double ms = (now().value - start) * 1e3;
      best = std::min(best, ms), spent += ms;
    }
    return best;
  }

  template <class F>
  void time(Part part, Pass pass, int times, F&& call) {
    const auto cost = program::part_cost(a_, part, pass, shape_);
    const double ms = best_ms([&] {
      math::Scratch scratch(scratch_.data_ptr(), cost.scratch.value);
      const model::Context c{a_, shape_, scratch, true};
      call(c);
    });
    lines_.push_back({fmt::format("{} {}", name_of(part), pass == Pass::kForward ? "forward" : "backward"), times, ms,
                      cost.flops.value, static_cast<double>(cost.moved.value)});
  }

  void peak() {
    auto a = normal({2048, 2048}), b = normal({2048, 2048}), c = normal({2048, 2048});
    peak_gflops_ = 2.0 * 2048 * 2048 * 2048 / best_ms([&] { at::mm_out(c, a, b); }) * 1e-6;
  }

  // Single kernels, outside a step's sum.
  void kernels_alone() {
    const auto& v = math::vector_kernels();
    const int t = shape_.threads;
    const std::int64_t n = 2048, d = 512, chunk = 256, vocabulary = 32000;
    auto x = normal({n, d}), y = normal({n, d}), w = normal({d}), stats = normal({n}), partial = normal({64, d}),
         logits = normal({chunk, vocabulary});
    auto losses = normal({chunk}), qkv = normal({n, 1024}), table = normal({512, 32});
    auto labels = at::randint(vocabulary, {chunk}, at::kInt);
    const auto f = [](at::Tensor& tensor) { return tensor.data_ptr<float>(); };
    const auto add = [&](const char* name, double bytes, const std::function<void()>& call) {
      alone_.push_back({name, 0, best_ms(call), 0.0, bytes});
    };
    const double rows = static_cast<double>(n * d) * 4;
    add("RMSNorm forward", 2 * rows,
        [&] { v.norm_forward(t, n, d, 1e-5, f(x), f(w), nullptr, f(stats), nullptr, f(y)); });
    auto ones = at::ones({n});
    add("RMSNorm backward", 4 * rows, [&] {
      v.norm_backward(t, n, d, f(y), f(x), f(ones), nullptr, f(w), false, f(x), true, f(w), nullptr, f(partial));
    });
    add("RoPE in place", rows * 3, [&] { v.rope(t, n, 512, 12, 64, 1024, f(table), f(table), false, f(qkv)); });
    add("cross entropy in place", 2.0 * chunk * vocabulary * 4, [&] {
      v.cross_entropy(t, chunk, vocabulary, labels.data_ptr<std::int32_t>(), true, 1.0, f(logits), f(losses));
    });
    auto head_y = normal({chunk, d}), head = normal({vocabulary, d}), d_head = normal({vocabulary, d});
    const auto gemm = [&](const char* name, const std::function<void()>& call) {
      alone_.push_back({name, 0, best_ms(call), 2.0 * chunk * vocabulary * d, 1.0});
    };
    gemm("head logits", [&] { at::mm_out(logits, head_y, head.t()); });
    gemm("head d_y", [&] { at::mm_out(head_y, logits, head); });
    gemm("head d_W", [&] { at::addmm_out(d_head, d_head, logits.t(), head_y); });
  }

  void print() const {
    fmt::print("{} threads, {} kernels; GEMM 2048^3: {:.0f} GFLOP/s\n", shape_.threads, math::vector_kernels().name,
               peak_gflops_);
    fmt::print("{:<26} {:>9} {:>5} {:>9} {:>9} {:>7}\n", "part", "ms", "x", "ms/step", "GFLOP/s", "GB/s");
    double step = 0.0, flops = 0.0;
    const auto row = [](const Line& line) {
      fmt::print("{:<26} {:>9.3f} {:>5} {:>9.2f} {:>9} {:>7.1f}\n", line.name, line.ms, line.times,
                 line.ms * line.times, line.flops > 0 ? fmt::format("{:.0f}", line.flops / line.ms * 1e-6) : "",
                 line.bytes / line.ms * 1e-6);
    };
    for (const Line& line : lines_) row(line), step += line.ms * line.times, flops += line.flops * line.times;
    fmt::print("{:<26} {:>9} {:>5} {:>9.1f} {:>9.0f}\n", "sum of a step's parts", "", "", step, flops / step * 1e-6);
    for (const Line& line : alone_) row(line);
  }

  arch::Architecture a_ = llama();
  arch::PartShape shape_;
  at::Tensor scratch_;
  std::vector<Line> lines_, alone_;
  double peak_gflops_ = 0.0;
};

}  // namespace

int main(int argc, char** argv) {
  int threads = 2;
  arch::Kernels kernels = arch::Kernels::kFused;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--threads") threads = std::max(1, std::atoi(value.c_str()));
    if (key == "--kernels")
      kernels = value == "aten"        ? arch::Kernels::kAten
                : value == "reference" ? arch::Kernels::kReference
                                       : arch::Kernels::kFused;
  }
  at::set_num_threads(threads);
  Bench(kernels, threads).run();
  return 0;
}
