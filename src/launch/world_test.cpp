#include "launch/world.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/mpi/mpi.h"
#include "config/config.h"

namespace molen::launch {
namespace {

// Returns the error that the ranks' run throws, "" for none. Ranks that wait for each other's end would do so for long.
std::string thrown_by(int ranks, const std::function<void(comm::Communicator&)>& body) {
  const auto begun = std::chrono::steady_clock::now();
  std::string text;
  try {
    run_ranks(launch_threads(ranks), body);
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1));
  return text;
}

TEST(RunRanks, AllFinishAtTheirOwnTime) {
  std::atomic<int> sum = 0;
  EXPECT_EQ(thrown_by(4,
                      [&](comm::Communicator& world) {
                        std::int64_t one = 1;
                        world.all_reduce(&one, 1, DType::kI64, comm::Reduce::kSum);
                        sum += static_cast<int>(one);
                      }),
            "");
  EXPECT_EQ(sum, 16);
}

TEST(RunRanks, ARankThatReturnsEarlyIsNamed) {
  for (const bool point_to_point : {false, true}) {
    const std::string text = thrown_by(4, [&](comm::Communicator& world) {
      double x = 1.0;
      world.all_reduce(&x, 1, DType::kF64, comm::Reduce::kSum);
      if (world.rank() == 2) return;
      if (point_to_point)
        world.recv(&x, 1, DType::kF64, 2);
      else
        world.all_reduce(&x, 1, DType::kF64, comm::Reduce::kSum);
    });
    EXPECT_NE(text.find("rank 2 has left"), std::string::npos) << text;
  }
}

// The other ranks' errors repeat the first one's text; the first error is thrown, with its own type.
TEST(RunRanks, TheFirstErrorIsThrown) {
  EXPECT_THROW(run_ranks(launch_threads(3),
                         [](comm::Communicator& world) {
                           if (world.rank() == 1) throw UsageError("rank 1 cannot");
                           world.barrier();
                         }),
               UsageError);
}

// Returns "COMMUNICATOR RANKS/LOCAL_RANKS" of a launch, or the refusal. `launched`: how many ranks mpirun has started,
// half of them on this host; 0: none was.
std::string launch_of(const std::string& wanted, int launched, std::optional<int> threads = {},
                      const std::string& kind = "cpu", bool share = false) {
  const std::map<const char*, std::string> variables{
      {"OMPI_COMM_WORLD_SIZE", std::to_string(launched)},
      {"OMPI_COMM_WORLD_RANK", "0"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(std::max(1, launched / 2))},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
  for (const auto& [name, value] : variables)
    if (launched > 0) ::setenv(name, value.c_str(), 1);
  config::Config c;
  c.device.communicator = wanted;
  c.device.kind = kind;
  std::string text;
  try {
    const Launch l = resolve_launch(c, threads, share);
    text = fmt::format("{} {}/{}", l.communicator, l.machine.ranks, l.machine.local_ranks);
  } catch (const UsageError& error) {
    text = error.what();
  }
  for (const auto& [name, value] : variables) ::unsetenv(name);
  return text;
}

TEST(ResolveLaunch, WithoutALauncherRanksAreThreads) {
  EXPECT_EQ(launch_of("auto", 0), "self 1/1");
  EXPECT_EQ(launch_of("self", 0), "self 1/1");
  EXPECT_EQ(launch_of("self", 0, 1), "self 1/1");
  EXPECT_EQ(launch_of("threads", 0), "threads 1/1");
  EXPECT_EQ(launch_of("auto", 0, 3), "threads 3/3");
  EXPECT_EQ(launch_of("auto", 0, 3, "cpu", true), "threads 3/3");
  EXPECT_NE(launch_of("self", 0, 2).find("\"self\" is one rank, --ranks says 2"), std::string::npos);
  for (const char* library : {"mpi", "nccl"})
    EXPECT_NE(launch_of(library, 0).find(comm::mpi_available() || library[0] == 'n' ? "needs a launcher" : "no MPI"),
              std::string::npos)
        << library;
}

TEST(ResolveLaunch, UnderALauncherRanksAreItsProcesses) {
  if (!comm::mpi_available()) {
    EXPECT_NE(launch_of("auto", 4).find("no MPI"), std::string::npos);
    return;
  }
  EXPECT_EQ(launch_of("auto", 4), "mpi 4/2");
  EXPECT_EQ(launch_of("mpi", 4), "mpi 4/2");
  EXPECT_EQ(launch_of("auto", 2), "mpi 2/1");
  EXPECT_EQ(launch_of("auto", 1), "self 1/1") << "a job of one task needs no MPI";
  EXPECT_EQ(launch_of("mpi", 1), "mpi 1/1");
  EXPECT_EQ(launch_of("threads", 1, 2), "threads 2/2");
  for (const int size : {1, 4})
    EXPECT_NE(launch_of("nccl", size).find("\"nccl\" moves the memory of cuda devices"), std::string::npos) << size;
  for (const char* alone : {"self", "threads"})
    EXPECT_NE(launch_of(alone, 4).find("(Open MPI, 4 ranks) would run as many separate jobs"), std::string::npos)
        << launch_of(alone, 4);
  EXPECT_NE(launch_of("auto", 4, 2).find("--ranks: the launcher (Open MPI) already gives 4 ranks"), std::string::npos)
      << launch_of("auto", 4, 2);
  EXPECT_NE(launch_of("mpi", 1, 2).find("already gives 1 ranks"), std::string::npos);
}

TEST(ResolveLaunch, ADeviceThatIsNotThereIsRefused) {
  if (at::hasCUDA()) return;
  EXPECT_NE(launch_of("auto", 0, {}, "cuda").find("this libtorch has no CUDA device"), std::string::npos);
  EXPECT_EQ(launch_of("auto", 0, {}, "auto"), "self 1/1");
}

TEST(RunRanks, ARankAloneNeedsNoThread) {
  const auto here = std::this_thread::get_id();
  int calls = 0;
  run_ranks({"self", {}}, [&](comm::Communicator& world) {
    ++calls;
    EXPECT_EQ(world.size(), 1);
    EXPECT_EQ(std::this_thread::get_id(), here);
  });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace molen::launch
