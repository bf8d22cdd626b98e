#include "collect/lookup.h"

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/descriptor.h"
#include "base/error.h"

namespace molen::collect {

struct Lookup::Shared {
  const Descriptor ready{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<bool> done{false};
  std::optional<Result<std::vector<Endpoint>>> result;  // of the thread until `done`
};

Lookup::Lookup(Address address, Find find) : shared_(std::make_shared<Shared>()) {
  if (shared_->ready.get() < 0) throw Error("{}: {}", address.text(), std::strerror(errno));
  try {
    std::thread([shared = shared_, address = std::move(address), find = std::move(find)] {
      try {
        shared->result.emplace(find(address));
      } catch (const std::exception& error) {
        shared->result.emplace(Failure{error.what()});
      }
      shared->done = true;
      ::eventfd_write(shared->ready.get(), 1);
    }).detach();
  } catch (const std::system_error& error) {
    throw Error("no thread to look up a host: {}", error.what());
  }
}

int Lookup::descriptor() const {
  return shared_->ready.get();
}

bool Lookup::done() const {
  return shared_->done;
}

Result<std::vector<Endpoint>> Lookup::take() {
  MOLEN_CHECK(done() && shared_->result, "a lookup that is not done");
  return *std::exchange(shared_->result, std::nullopt);
}

}  // namespace molen::collect
