#include "train/job/resident.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <type_traits>
#include <utility>
#include <vector>

#include "exec/executor.h"
#include "math/allocation.h"
#include "math/experts.h"
#include "math/gemm.h"
#include "program/build/build.h"

namespace molen::train {
namespace {

// Returns the bytes of this process that are resident now.
Bytes resident() {
  std::ifstream in("/proc/self/statm");
  std::int64_t pages = 0, rss = 0;
  in >> pages >> rss;
  return Bytes(rss * ::sysconf(_SC_PAGESIZE));
}
// Runs one GEMM of each kind and shape of the model, in the compute type, so that the library allocates its packing
// buffers, its workspace and its generated code. Runs only a part of a very large GEMM, because the buffers grow no
// further. The operands lie in a memory mapping of their own, which leaves no memory behind.
void run_gemms(const Job& job) {
  const c10::InferenceMode inference;
  const auto& a = job.arch;
  const bool aten = job.setting.kernels == arch::Kernels::kAten;
  const DType type = aten ? job.setting.compute : DType::kF32;
  struct Shape {
    std::int64_t m, n, k;
  };
  // The height of all rows or, when the rows are cut into pieces, the heights of the largest and the smallest piece.
  std::vector<std::int64_t> heights{job.setting.tokens()};
  if (job.setting.rows_in_pieces()) {
    heights.clear();
    for (const std::int64_t piece : {std::int64_t{0}, job.setting.tensor_chunks - 1}) {
      const auto [first, last] = program::rows_of_piece(job.setting.rows(), piece);
      heights.push_back(last - first);
    }
  }
  // MKL's buffers do not depend on the shape.
  const bool by_shape = aten || math::gemm_library() == math::GemmLibrary::kOneDnn;
  std::vector<Shape> shapes = {{job.setting.head_chunk, a.vocabulary, a.hidden}};
  std::vector<std::pair<std::int64_t, std::int64_t>> layer{{a.qkv_size(), a.hidden}, {a.hidden, a.query_size()}};
  if (a.dense()) layer.insert(layer.end(), {{a.up_size(), a.hidden}, {a.hidden, a.ffn}});
  if (a.shares_experts()) layer.insert(layer.end(), {{a.shared_up_size(), a.hidden}, {a.hidden, a.shared_ffn()}});
  if (by_shape)
    for (const auto& [n, k] : layer)
      for (const std::int64_t rows : heights) shapes.push_back({std::min<std::int64_t>(rows, 4096), n, k});
  if (!aten && !job.setting.other_kernels.empty())  // scores of attention
    shapes.push_back({job.setting.local_sequence(), job.setting.local_sequence(), a.head_dim});
  for (auto [m, n, k] : shapes) {
    n = std::min<std::int64_t>(n, 16384), k = std::min<std::int64_t>(k, by_shape ? 16384 : 1024);
    const std::int64_t x_bytes = math::Scratch::aligned(m * k * size_of(type)),
                       w_bytes = math::Scratch::aligned(n * k * size_of(type));
    const exec::Arena space(Bytes(x_bytes + w_bytes + m * n * size_of(type)), at::kCPU);
    at::Tensor x = space.view(0, type, {m, k}), w = space.view(x_bytes, type, {n, k}),
               y = space.view(x_bytes + w_bytes, type, {m, n});
    const math::AllocationGuard guard(nullptr);
    if (!aten) {
      auto *px = x.data_ptr<float>(), *pw = w.data_ptr<float>(), *py = y.data_ptr<float>();
      math::matmul_nt(m, n, k, px, pw, false, py);
      math::matmul_nn(m, k, n, py, pw, false, px);
      math::matmul_tn(n, k, m, py, px, false, pw);
      continue;
    }
    const math::LibraryCall call;
    at::mm_out(y, x, w.t());
    at::addmm_out(y, y, x, w.t());
    at::mm_out(x, y, w);
    at::mm_out(w, y.t(), x);
  }
}

// Does what run_gemms does for the GEMMs of experts, each of which runs on a single thread.
template <class S>
void run_grouped(const Job& job, std::int64_t out, std::int64_t in) {
  const int threads = job.setting.threads;
  const std::int64_t experts = std::min<std::int64_t>(job.arch.sparse_experts().count, threads),
                     slots = std::min<std::int64_t>(job.setting.tokens() * job.arch.sparse_experts().per_token,
                                                    128 * experts),
                     scratch_bytes = std::is_same_v<S, float>
                                         ? math::grouped_tn_scratch(threads, out)
                                         : math::grouped_tn_narrow_scratch(threads, slots, out, in);
  std::vector<std::int32_t> offsets;
  for (std::int64_t e = 0; e <= experts; ++e) offsets.push_back(static_cast<std::int32_t>(slots * e / experts));
  std::int64_t bytes = 0;
  const auto place = [&](std::int64_t size) { return std::exchange(bytes, bytes + math::Scratch::aligned(size)); };
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(S));
  const std::int64_t x = place(slots * in * kSize), y = place(slots * out * kSize),
                     w = place(experts * out * in * kSize), d_w = place(experts * out * in * 4),
                     scratch = place(scratch_bytes);
  const exec::Arena space(Bytes(bytes), at::kCPU);
  const auto at = [&](std::int64_t offset) { return static_cast<S*>(space.view(offset, DType::kF32, {1}).data_ptr()); };
  const math::Groups groups{experts, out, in, offsets.data()};
  const math::AllocationGuard guard(nullptr);
  math::grouped_nt(groups, at(x), at(w), at(y));
  math::grouped_nn(groups, at(y), at(w), at(x));
  math::grouped_tn(groups, at(y), at(x), false, space.view(d_w, DType::kF32, {experts * out * in}).data_ptr<float>(),
                   {reinterpret_cast<std::byte*>(at(scratch)), static_cast<std::size_t>(scratch_bytes)});
}

void run_experts(const Job& job) {
  const auto& a = job.arch;
  for (const auto& [out, in] : {std::pair{a.expert_up_size(), a.hidden}, {a.hidden, a.sparse_experts().ffn}}) {
    if (job.setting.kernels == arch::Kernels::kFused) run_grouped<float>(job, out, in);
    if (job.setting.kernels == arch::Kernels::kAten && job.setting.compute == DType::kBF16)
      run_grouped<std::uint16_t>(job, out, in);
  }
}

}  // namespace

Resident resident_before_arena(const Job& job, comm::Communicator& world) {
  at::set_num_threads(job.setting.threads);
  math::AllocationGuard::install();
  if (!job.machine.cuda) run_gemms(job);
  if (!job.machine.cuda && job.arch.sparse()) run_experts(job);
  world.barrier();
  std::int64_t bytes = resident().value, kept = math::LibraryCall::kept();
  world.all_reduce(&bytes, 1, DType::kI64, comm::Reduce::kMax);
  world.all_reduce(&kept, 1, DType::kI64, job.communicator == "threads" ? comm::Reduce::kSum : comm::Reduce::kMax);
  return {Bytes(bytes), Bytes(kept)};
}

}  // namespace molen::train
