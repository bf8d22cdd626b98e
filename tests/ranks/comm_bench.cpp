// Benchmarks collectives of a 56M-parameter model's gradient, 225 MB in fp32: `comm_bench [RANKS]` on threads, `mpirun
// -n N comm_bench` on MPI, where MPI_Allreduce is measured too. Prints the median and the best of 7. `mpirun -n N
// comm_bench turns` runs molen's collectives over messages and the library's in turns, and prints how many times as
// long the library's take.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/mpi.h"
#include "comm/threads/threads.h"

namespace {

using molen::DType;
using molen::comm::Communicator;
using molen::comm::Reduce;
constexpr std::int64_t kCount = 56'250'000;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void measure(Communicator& c, const char* what, const std::function<void()>& call) {
  std::vector<double> seconds;
  for (int i = 0; i < 8; ++i) {
    c.barrier();
    const double start = now();
    call();
    c.barrier();
    if (i > 0) seconds.push_back(now() - start);  // the first round touches memory
  }
  std::sort(seconds.begin(), seconds.end());
  if (c.rank() == 0)
    std::printf("%-8s %d ranks  %-28s median %6.1f ms  best %6.1f ms\n", c.name().c_str(), c.size(), what,
                seconds[seconds.size() / 2] * 1e3, seconds[0] * 1e3);
}

void all(Communicator& c) {
  std::vector<float> x(kCount, 1.0f), y(kCount / c.size() + 1);
  std::vector<std::int64_t> counts;
  for (int r = 0; r < c.size(); ++r) counts.push_back(kCount * (r + 1) / c.size() - kCount * r / c.size());
  const std::int64_t first = kCount * c.rank() / c.size();
  const auto scatter = [&] { c.reduce_scatter(x.data(), y.data(), counts, DType::kF32, Reduce::kMax); };
  const auto gather = [&] { c.all_gather(x.data() + first, x.data(), counts, DType::kF32); };
  measure(c, "all_reduce", [&] { c.all_reduce(x.data(), kCount, DType::kF32, Reduce::kMax); });
  measure(c, "all_reduce (sum)", [&] { c.all_reduce(x.data(), kCount, DType::kF32, Reduce::kSum); });
  std::fill(x.begin(), x.end(), 1.0f);
  measure(c, "reduce_scatter", scatter);
  measure(c, "all_gather in place", gather);
  measure(c, "reduce_scatter + all_gather", [&] {
    c.reduce_scatter(x.data(), x.data() + first, counts, DType::kF32, Reduce::kSum);
    gather();
  });
  if (c.name() == "mpi") {
    std::fill(x.begin(), x.end(), 1.0f);
    measure(c, "MPI_Allreduce (sum)", [&] {
      MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(kCount), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
    for (const int count : {1, 1000, 10000, 100000}) {
      char what[64];
      std::snprintf(what, sizeof what, "1000 x all_reduce of %d", count);
      measure(c, what, [&] {
        for (int i = 0; i < 1000; ++i) c.all_reduce(x.data(), count, DType::kF32, Reduce::kMax);
      });
      std::snprintf(what, sizeof what, "1000 x MPI_Allreduce of %d", count);
      measure(c, what, [&] {
        for (int i = 0; i < 1000; ++i) MPI_Allreduce(MPI_IN_PLACE, x.data(), count, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
      });
    }
  }
}

// Returns the seconds of one call, from when all ranks have begun until all have ended.
double seconds_of(Communicator& c, int calls, const std::function<void()>& call) {
  c.barrier();
  const double start = now();
  for (int i = 0; i < calls; ++i) call();
  c.barrier();
  return (now() - start) / calls;
}

void turns(const char* what, std::int64_t bytes, Communicator& own, Communicator& library,
           const std::function<void(Communicator&)>& call) {
  const int calls = bytes < 100'000 ? 200 : bytes < 10'000'000 ? 20 : 2;
  std::vector<double> ours, theirs, ratios;
  for (int round = 0; round < 12; ++round) {
    double a = 0, b = 0;
    for (const bool first : {round % 2 == 0, round % 2 != 0})
      (first ? a : b) = seconds_of(own, calls, [&] { call(first ? own : library); });
    if (round < 2) continue;  // the first rounds touch memory
    ours.push_back(a);
    theirs.push_back(b);
    ratios.push_back(b / a);
  }
  for (auto* v : {&ours, &theirs, &ratios}) std::sort(v->begin(), v->end());
  if (own.rank() == 0)
    std::printf("%d ranks  %9lld B  %-14s ours %9.1f us  library %9.1f us  library/ours median %.2f (%.2f to %.2f)\n",
                own.size(), static_cast<long long>(bytes), what, ours[5] * 1e6, theirs[5] * 1e6, ratios[5], ratios[1],
                ratios[8]);
}

void in_turns(Communicator& own, Communicator& library) {
  for (const std::int64_t count : {1 << 10, 1 << 18, 1 << 24}) {
    std::vector<float> x(static_cast<std::size_t>(count), 1.0f);
    std::vector<std::int64_t> counts;
    for (int r = 0; r < own.size(); ++r) counts.push_back(count * (r + 1) / own.size() - count * r / own.size());
    const std::int64_t first = count * own.rank() / own.size(), bytes = count * 4;
    turns("all_reduce", bytes, own, library,
          [&](Communicator& c) { c.all_reduce(x.data(), count, DType::kF32, Reduce::kMax); });
    turns("all_gather", bytes, own, library,
          [&](Communicator& c) { c.all_gather(x.data() + first, x.data(), counts, DType::kF32); });
    turns("broadcast", bytes, own, library, [&](Communicator& c) { c.broadcast(x.data(), count, DType::kF32, 0); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  using molen::comm::MpiCollectives;
  if (molen::comm::launch_environment().size > 0) {
    const auto own = molen::comm::mpi_world(MpiCollectives::kOwn);
    if (argc > 1 && std::string(argv[1]) == "turns")
      in_turns(*own, *molen::comm::mpi_world(MpiCollectives::kLibrary));
    else
      all(*own);
    return 0;
  }
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  molen::comm::ThreadWorld world(ranks);
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([c = std::shared_ptr<Communicator>(world.communicator(r))] { all(*c); });
  return 0;
}
