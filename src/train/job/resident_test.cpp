// Tests the GEMMs that a rank runs before its memory is read.
#include "train/job/resident.h"

#include <gtest/gtest.h>

#include "arch/architecture.h"
#include "comm/self/self.h"

namespace molen::train {
namespace {

// The products of experts are run in memory of their own, in each type that has kernels for them. Products that took
// more than they placed would end the process.
TEST(Resident, RunsTheProductsOfExpertsToo) {
  for (const auto& [compute, kernels] :
       {std::pair{DType::kF32, arch::Kernels::kFused}, {DType::kBF16, arch::Kernels::kAten}}) {
    Job job;
    job.arch = arch::preset("llama-tiny");
    job.arch.hidden = 512;
    job.arch.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 1024};
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
