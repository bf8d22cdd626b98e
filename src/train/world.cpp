#include "train/world.h"

#include <ATen/Context.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/mpi/mpi.h"
#include "comm/self/self.h"
#include "comm/threads/threads.h"

namespace molen::train {
namespace {

void run_threads(int ranks, const std::function<void(comm::Communicator&)>& body) {
  comm::ThreadWorld world(ranks);
  std::vector<std::unique_ptr<comm::Communicator>> communicators;
  for (int r = 0; r < ranks; ++r) communicators.push_back(world.communicator(r));
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        body(*communicators[static_cast<std::size_t>(r)]);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        communicators[static_cast<std::size_t>(r)]->abort(error.what());
      }
    });
  threads.clear();  // joins
  if (first) std::rethrow_exception(first);
}

void run_mpi(const std::function<void(comm::Communicator&)>& body) {
  const auto world = comm::mpi_world();
  try {
    body(*world);
  } catch (const UsageError& error) {
    // Wrong input is wrong on every rank alike: rank 0 says it, and all end with the same code. Should one rank be
    // alone with it (a file missing on its host), the others would wait for it in MPI_Finalize: it then says so itself
    // and ends the job.
    std::thread([text = std::string(error.what()), rank = world->rank()] {
      std::this_thread::sleep_for(std::chrono::seconds(10));
      std::fprintf(stderr, "molen: rank %d: %s\n", rank, text.c_str());
      ::_exit(2);
    }).detach();
    throw;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "molen: rank %d: %s\n", world->rank(), error.what());
    std::fflush(stderr);
    world->abort(error.what());
    throw;
  }
}

}  // namespace

namespace {

bool resolve_cuda(const config::Config& c, int ranks) {
  const std::string& kind = c.device.kind;
  if (kind == "cuda" && !at::hasCUDA())
    throw UsageError("{}: this libtorch has no CUDA device; `molen doctor` says what is here", c.where("device.kind"));
  const bool cuda = kind == "cuda" || (kind == "auto" && at::hasCUDA());
  if (cuda && ranks > 1)
    throw UsageError("{}: {} ranks on cuda devices are not built yet; use one rank, or device.kind = \"cpu\"",
                     c.where("device.kind"), ranks);
  return cuda;
}

Launch resolve_ranks(const config::Config& c, std::optional<int> thread_ranks);

}  // namespace

Launch resolve_launch(const config::Config& c, std::optional<int> thread_ranks) {
  Launch launch = resolve_ranks(c, thread_ranks);
  launch.machine.cuda = resolve_cuda(c, launch.machine.ranks);
  return launch;
}

namespace {

Launch resolve_ranks(const config::Config& c, std::optional<int> thread_ranks) {
  const std::string& wanted = c.device.communicator;
  const auto environment = comm::launch_environment();
  const bool launched = environment.size > 1 || (environment.size == 1 && wanted == "mpi");
  if (launched && thread_ranks)
    throw UsageError("--ranks: the launcher ({}) already gives {} ranks", environment.source, environment.size);
  if (launched && (wanted == "self" || wanted == "threads"))
    throw UsageError("{}: \"{}\" under a launcher ({}, {} ranks) would run as many separate jobs",
                     c.where("device.communicator"), wanted, environment.source, environment.size);
  if ((launched || wanted == "mpi") && !comm::mpi_available())
    throw UsageError("{}: this build has no MPI; install libopenmpi-dev and build again",
                     launched ? environment.source : c.where("device.communicator"));
  if (wanted == "mpi" && !launched)
    throw UsageError("{}: \"mpi\" needs a launcher: mpirun -n N molen train ...", c.where("device.communicator"));
  if (wanted == "nccl")
    throw UsageError("{}: nccl is for cuda devices and is chosen there", c.where("device.communicator"));
  Launch l;
  if (launched) {
    l.communicator = "mpi";
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

}  // namespace

void run_ranks(const Launch& launch, const std::function<void(comm::Communicator&)>& body) {
  if (launch.communicator == "mpi") return run_mpi(body);
  if (launch.communicator == "threads") return run_threads(launch.machine.ranks, body);
  const auto self = comm::make_self();
  body(*self);
}

}  // namespace molen::train
