#include "launch/world.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "comm/mpi/mpi.h"
#include "comm/self/self.h"
#include "comm/threads/threads.h"
#include "exec/device_memory.h"
#include "math/gemm.h"

namespace molen::launch {
namespace {

void run_threads(const plan::Machine& machine, const std::function<void(comm::Communicator&)>& body) {
  const int ranks = machine.ranks;
  exec::DeviceMemory memory(machine.cuda ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(machine.device))
                                         : at::Device(at::kCPU));
  comm::ThreadOptions options;
  if (machine.cuda) options.memory = &memory;
  comm::ThreadWorld world(ranks, options);
  std::vector<std::unique_ptr<comm::Communicator>> communicators;
  for (int r = 0; r < ranks; ++r) communicators.push_back(world.communicator(r));
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      // The communicator is destroyed at the end of this rank's thread, even after an exception. Ranks that still wait
      // for this one then get an error.
      const auto communicator = std::move(communicators[static_cast<std::size_t>(r)]);
      try {
        body(*communicator);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        communicator->abort(error.what());
      }
    });
  threads.clear();  // joins
  if (first) std::rethrow_exception(first);
}

void run_mpi(const std::function<void(comm::Communicator&)>& body) {
  const auto world = comm::mpi_world();
  if (const auto environment = comm::launch_environment(); environment.size != world->size())
    throw UsageError(
        "{} started {} ranks, and MPI's world has {}: this MPI does not know the launcher; start with its own mpirun, "
        "or "
        "with srun --mpi=TYPE for a type that it was built for (srun --mpi=list)",
        environment.source, environment.size, world->size());
  try {
    body(*world);
  } catch (const UsageError& error) {
    // Wrong input is usually wrong on every rank: rank 0 reports it, and all ranks end with the same code. If only one
    // rank has the error (a file missing on its host), the others would wait for it in MPI_Finalize; after a delay that
    // rank reports the error itself and ends the job.
    std::thread([text = std::string(error.what()), rank = world->rank()] {
      std::this_thread::sleep_for(std::chrono::seconds(10));
      say(fmt::format("rank {}: {}", rank, text));
      ::_exit(2);
    }).detach();
    throw;
  } catch (const std::exception& error) {
    say(fmt::format("rank {}: {}", world->rank(), error.what()));
    world->abort(error.what());
    throw;
  }
}

Launch resolve_ranks(const config::Config& c, std::optional<int> thread_ranks) {
  const std::string& wanted = c.device.communicator;
  const auto environment = comm::launch_environment();
  const bool launched = environment.size > 1 || (environment.size == 1 && (wanted == "mpi" || wanted == "nccl"));
  if (launched && thread_ranks)
    throw UsageError("--ranks: the launcher ({}) already gives {} ranks", environment.source, environment.size);
  if (launched && (wanted == "self" || wanted == "threads"))
    throw UsageError("{}: \"{}\" under a launcher ({}, {} ranks) would run as many separate jobs",
                     c.where("device.communicator"), wanted, environment.source, environment.size);
  if ((launched || wanted == "mpi") && !comm::mpi_available())
    throw UsageError("{}: this build has no MPI; install libopenmpi-dev and build again",
                     launched ? environment.source : c.where("device.communicator"));
  if ((wanted == "mpi" || wanted == "nccl") && !launched)
    throw UsageError("{}: \"{}\" needs a launcher: mpirun -n N molen train ...", c.where("device.communicator"),
                     wanted);
  Launch l;
  if (launched) {
    l.communicator = wanted == "nccl" ? "nccl" : "mpi";
    l.machine.ranks = environment.size;
    l.machine.local_ranks = environment.local_size;
    return l;
  }
  l.machine.ranks = l.machine.local_ranks = thread_ranks.value_or(1);
  if (wanted == "self" && l.machine.ranks > 1)
    throw UsageError("{}: \"self\" is one rank, --ranks says {}", c.where("device.communicator"), l.machine.ranks);
  l.communicator = l.machine.ranks > 1 || wanted == "threads" ? "threads" : "self";
  return l;
}

bool resolve_cuda(const config::Config& c) {
  const std::string& kind = c.device.kind;
  if (kind == "cuda" && !at::hasCUDA())
    throw UsageError("{}: this libtorch has no CUDA device; `molen doctor` says what is here", c.where("device.kind"));
  return kind == "cuda" || (kind == "auto" && at::hasCUDA());
}

// Handles several ranks with a device each: the processes of a launcher, in the order of their host's devices.
void on_devices(const config::Config& c, Launch& launch) {
  if (launch.communicator == "threads")
    throw UsageError("{}: thread-ranks on cuda devices are for molen verify; start one process a device (mpirun -n {})",
                     c.where("device.kind"), launch.machine.ranks);
  const int devices = at::accelerator::deviceCount();  // NOLINT(bugprone-signed-char-misuse): a number
  if (launch.machine.local_ranks > devices)
    throw UsageError(
        "{}: {} ranks on this host share {} cuda devices; start one rank a device, or device.kind = \"cpu\"",
        c.where("device.kind"), launch.machine.local_ranks, devices);
  launch.machine.device = comm::launch_environment().local_rank;
  if (c.device.communicator == "mpi")
    throw UsageError("{}: \"mpi\" moves host memory here; use \"auto\" or \"nccl\" on cuda devices",
                     c.where("device.communicator"));
  launch.communicator = "nccl";
}

}  // namespace

Launch resolve_launch(const config::Config& c, std::optional<int> thread_ranks, bool share) {
  math::gemm_library();  // throws now, before anything runs, if the library asked for is not usable
  Launch launch = resolve_ranks(c, thread_ranks);
  launch.machine.cuda = resolve_cuda(c);
  if (!launch.machine.cuda && launch.communicator == "nccl")
    throw UsageError("{}: \"nccl\" moves the memory of cuda devices, and this run is on the cpu",
                     c.where("device.communicator"));
  const bool shared = share && launch.communicator == "threads";
  if (share && launch.communicator == "mpi" && launch.machine.cuda) {  // MPI then moves host memory only
    if (c.device.kind == "cuda")
      throw UsageError("{}: the processes of a launcher prove it on the host; use \"cpu\", or --ranks N on one device",
                       c.where("device.kind"));
    launch.machine.cuda = false;
  }
  if (launch.machine.cuda && launch.machine.ranks > 1 && !shared) on_devices(c, launch);
  if (launch.machine.cuda) require_determinism();
  return launch;
}

bool has_cuda() {
  return at::hasCUDA();
}

void require_determinism() {
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // no op of molen reads what it has not written
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);                   // libtorch refuses products without it
}

Launch launch_threads(int ranks) {
  Launch launch;
  launch.communicator = "threads";
  launch.machine.ranks = launch.machine.local_ranks = ranks;
  return launch;
}

void run_ranks(const Launch& launch, const std::function<void(comm::Communicator&)>& body) {
  if (launch.communicator == "mpi" || launch.communicator == "nccl") return run_mpi(body);
  if (launch.communicator == "threads") return run_threads(launch.machine, body);
  const auto self = comm::make_self();
  body(*self);
}

}  // namespace molen::launch
