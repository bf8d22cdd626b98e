#include "collect/turn.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "collect/record.h"

namespace molen::collect {
namespace {

constexpr std::size_t kMostHolderBytes = 512;

// A wait for the lock in a thread of its own: flock has no descriptor to poll, and nothing but a signal ends it.
struct LockWait {
  explicit LockWait(std::shared_ptr<File> lock) : file(std::move(lock)) {}
  const std::shared_ptr<File> file;
  const Descriptor ready{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex;
  bool done = false, abandoned = false;
  int error = 0;  // errno of the lock that failed

  void run() {
    int code = 0;
    while (::flock(file->descriptor(), LOCK_EX) != 0 && (code = errno) == EINTR) code = 0;
    const std::lock_guard guard(mutex);
    done = true;
    error = code;
    if (abandoned && code == 0) ::flock(file->descriptor(), LOCK_UN);
    ::eventfd_write(ready.get(), 1);
  }
};

int poll_ms(double until_s) {
  return static_cast<int>(std::clamp(std::ceil((until_s - now().value) * 1000.0), 0.0, 60'000.0));
}

}  // namespace

Turn::Turn(const fs::path& file, std::string name)
    : file_(std::make_shared<File>(File::append(file))), name_(std::move(name)) {}

bool Turn::try_take() const {
  if (::flock(file_->descriptor(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK || errno == EINTR) return false;
  throw IoError(errno, "{}: cannot be locked", file_->path().string());
}

bool Turn::wait(int stop, double patience_s, const std::function<void(const std::string&)>& still_waits) {
  if (!try_take() && !take_beside(stop, patience_s, still_waits)) return false;
  write_name();
  return true;
}

bool Turn::take_beside(int stop, double patience_s, const std::function<void(const std::string&)>& still_waits) {
  const auto waiting = std::make_shared<LockWait>(file_);
  if (waiting->ready.get() < 0) throw Error("{}: {}", file_->path().string(), std::strerror(errno));
  try {
    std::thread([waiting] { waiting->run(); }).detach();
  } catch (const std::system_error& error) {
    throw Error("{}: no thread that waits for it: {}", file_->path().string(), error.what());
  }
  const double say_s = now().value + patience_s;
  bool to_say = static_cast<bool>(still_waits);
  for (;;) {
    std::array<pollfd, 2> polled{pollfd{stop, POLLIN, 0}, pollfd{waiting->ready.get(), POLLIN, 0}};
    const int found = ::poll(polled.data(), polled.size(), to_say ? poll_ms(say_s) : -1);
    if (found < 0 && errno != EINTR) throw Error("poll: {}", std::strerror(errno));
    if (found == 0 && now().value >= say_s && std::exchange(to_say, false)) still_waits(holder());
    if (found <= 0) continue;
    const std::lock_guard guard(waiting->mutex);
    if (waiting->done && waiting->error != 0)
      throw IoError(waiting->error, "{}: cannot be locked", file_->path().string());
    if (waiting->done) return true;
    waiting->abandoned = true;  // the thread leaves the lock free if it gets it yet
    return false;
  }
}

// A name that cannot be written is no reason not to measure.
void Turn::write_name() {
  try {
    file_->truncate(0);
    if (!name_.empty()) file_->write(name_ + "\n");
  } catch (const IoError&) {
  }
}

void Turn::give_up() {
  ::flock(file_->descriptor(), LOCK_UN);
}

bool Turn::taken() const {
  if (!try_take()) return true;
  ::flock(file_->descriptor(), LOCK_UN);
  return false;
}

std::string Turn::holder() const {
  std::string text(kMostHolderBytes, '\0');
  const std::int64_t got = file_system().read(file_->descriptor(), text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<std::int64_t>(got, 0)));
  return as_text(text.substr(0, text.find('\n')));
}

}  // namespace molen::collect
