#include "train/job/resident.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "exec/executor.h"
#include "math/allocation.h"
#include "math/gemm.h"
#include "program/build/build.h"

namespace molen::train {
namespace {

// Returns resident bytes now, and their peak.
Bytes resident() {
  std::ifstream in("/proc/self/statm");
  std::int64_t pages = 0, rss = 0;
  in >> pages >> rss;
  return Bytes(rss * ::sysconf(_SC_PAGESIZE));
}
// Runs one product of each kind and shape of the model, in the compute type, so that the library's packing buffers, its
// workspace and its generated code are allocated. Of a very large product it runs only a part, because the buffers stop
// growing. The operands lie in a mapping of their own, which leaves no memory behind.
void run_products(const Job& job) {
  const c10::InferenceMode inference;
  const auto& a = job.arch;
  const bool aten = job.setting.kernels == arch::Kernels::kAten;
  const DType type = aten ? job.setting.compute : DType::kF32;
  struct Shape {
    std::int64_t m, n, k;
  };
  // The heights of all rows or, when the rows are cut into pieces, of the largest and the smallest piece.
  std::vector<std::int64_t> heights{job.setting.tokens()};
  if (job.setting.chunked_rows()) {
    heights.clear();
    for (const std::int64_t piece : {std::int64_t{0}, job.setting.tensor_chunks - 1}) {
      const auto [first, last] = program::chunk_rows(job.setting.rows(), piece);
      heights.push_back(last - first);
    }
  }
  // MKL's buffers do not depend on the shape.
  const bool by_shape = aten || math::gemm_library() == math::GemmLibrary::kOneDnn;
  std::vector<Shape> shapes = {{job.setting.head_chunk, a.vocabulary, a.hidden}};
  if (by_shape)
    for (const auto& [n, k] :
         {std::pair{a.qkv_size(), a.hidden}, {a.hidden, a.query_size()}, {a.up_size(), a.hidden}, {a.hidden, a.ffn}})
      for (const std::int64_t rows : heights) shapes.push_back({std::min<std::int64_t>(rows, 4096), n, k});
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

}  // namespace

Resident resident_before_arena(const Job& job, comm::Communicator& world) {
  at::set_num_threads(job.setting.threads);
  math::AllocationGuard::install();
  if (!job.machine.cuda) run_products(job);
  world.barrier();
  std::int64_t bytes = resident().value, kept = math::LibraryCall::kept();
  world.all_reduce(&bytes, 1, DType::kI64, comm::Reduce::kMax);
  world.all_reduce(&kept, 1, DType::kI64, job.communicator == "threads" ? comm::Reduce::kSum : comm::Reduce::kMax);
  return {Bytes(bytes), Bytes(kept)};
}

}  // namespace molen::train
