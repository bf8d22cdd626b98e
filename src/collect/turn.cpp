#include "collect/turn.h"

#include <poll.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace molen::collect {
namespace {

constexpr int kLookMs = 50;  // between two tries: flock has no descriptor to wait for

}  // namespace

Turn::Turn(const fs::path& file) : file_(File::append(file)) {}

bool Turn::try_take() const {
  if (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK || errno == EINTR) return false;
  throw IoError(errno, "{}: cannot be locked", file_.path().string());
}

bool Turn::wait(int stop) {
  while (!try_take()) {
    pollfd polled{stop, POLLIN, 0};
    const int found = ::poll(&polled, 1, kLookMs);
    if (found < 0 && errno != EINTR) throw Error("poll: {}", std::strerror(errno));
    if (found > 0) return false;
  }
  return true;
}

void Turn::give_up() {
  ::flock(file_.descriptor(), LOCK_UN);
}

bool Turn::taken() const {
  if (!try_take()) return true;
  ::flock(file_.descriptor(), LOCK_UN);
  return false;
}

}  // namespace molen::collect
