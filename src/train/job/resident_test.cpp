// Tests the GEMMs that a rank runs before its memory is read.
#include "train/job/resident.h"

#include <gtest/gtest.h>

#include <tuple>

#include "arch/architecture.h"
#include "comm/self/self.h"

namespace molen::train {
namespace {

// The products of experts are run in memory of their own, in each type that has kernels for them. A product refuses
// memory that is smaller than it needs. What a gradient of the weights needs depends most on the number of threads
// where experts are small, and on the size of a weight where they are large.
TEST(Resident, RunsTheProductsOfExpertsToo) {
  for (const auto& [compute, kernels, hidden, ffn] : {std::tuple{DType::kF32, arch::Kernels::kFused, 512, 1024},
                                                      {DType::kBF16, arch::Kernels::kAten, 512, 1024},
                                                      {DType::kBF16, arch::Kernels::kAten, 64, 64}}) {
    Job job;
    job.arch = arch::preset("llama-tiny");
    job.arch.hidden = hidden;
    job.arch.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = ffn};
    job.setting.compute = compute, job.setting.kernels = kernels;
    job.setting.micro_batch = 2, job.setting.sequence = 256, job.setting.threads = 2;
    job.communicator = "self";
    const auto world = comm::make_self();
    const Resident resident = resident_before_arena(job, *world);
    EXPECT_GT(resident.total, Bytes(1 << 20));
    EXPECT_GE(resident.total, resident.workspace);
  }
}

}  // namespace
}  // namespace molen::train
