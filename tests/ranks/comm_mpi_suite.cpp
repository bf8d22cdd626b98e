// The communicator suite under a launcher, over molen's own collectives and over the library's: mpirun -n N
// comm_mpi_suite.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "comm/comm_suite.h"
#include "comm/mpi/mpi.h"
#include "comm/wire_suite.h"

namespace {

using namespace molen::comm;

// Checks that the library's collectives count no wire bytes; messages and molen's own exchanges for a sum are still
// counted, by kind.
std::string library_is_silent(Communicator& c) {
  std::vector<double> x(static_cast<std::size_t>(c.size()) * 3), y(x.size());
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(c.size()), 3);
  const auto group = c.split(0, c.rank());
  group->reduce_scatter(x.data(), y.data(), counts, molen::DType::kF64, Reduce::kSum);
  if (group->traffic().wire_bytes != 24 * (c.size() - 1)) return "a reduce_scatter beside the library is not counted";
  group->all_gather(x.data(), y.data(), counts, molen::DType::kF64);
  if (group->traffic().wire_bytes.has_value() != (c.size() == 1)) return "the library's all_gather has wire bytes";
  if (group->traffic_of(CallKind::kReduceScatter).wire_bytes != 24 * (c.size() - 1))
    return "the library's all_gather hides the wire bytes of another kind";
  return "";
}

// Checks that a sender may use its memory as soon as `send` returns, however late and large the message is.
std::string sent_memory_is_free(Communicator& c) {
  if (c.size() < 2) return "";
  std::vector<double> x(std::size_t{1} << 20, c.rank() == 0 ? 1.0 : 0.0);
  const auto count = static_cast<std::int64_t>(x.size());
  if (c.rank() == 0) {
    c.send(x.data(), count, molen::DType::kF64, 1);
    std::fill(x.begin(), x.end(), 2.0);
  } else if (c.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    c.recv(x.data(), count, molen::DType::kF64, 0);
    if (std::count(x.begin(), x.end(), 1.0) != count) return "what was sent has changed after `send` returned";
  }
  return "";
}

// Outlives MPI, which ends with the process: the communicator must then not free what it holds in MPI.
std::unique_ptr<Communicator> outlives;

std::string suites(Communicator& own, Communicator& library) {
  if (const std::string wrong = suite::Suite(own).run(); !wrong.empty()) return "own collectives: " + wrong;
  if (const std::string wrong = sent_memory_is_free(own); !wrong.empty()) return wrong;
  if (const std::string wrong = suite::WireSuite(own, kMpiShort).run(); !wrong.empty()) return wrong;
  if (const std::string wrong = suite::Suite(library).run(); !wrong.empty()) return "the library's: " + wrong;
  return library_is_silent(library);
}

}  // namespace

int main() {
  const auto own = mpi_world(MpiCollectives::kOwn), library = mpi_world(MpiCollectives::kLibrary);
  try {
    outlives = own->split(0, own->rank());
    const std::string wrong = suites(*own, *library);
    if (wrong.empty()) {
      if (own->rank() == 0) std::printf("communicator suite on %d MPI ranks: ok\n", own->size());
      return 0;
    }
    std::fprintf(stderr, "rank %d: %s\n", own->rank(), wrong.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", own->rank(), error.what());
  }
  own->abort("the suite failed");
  return 1;
}
