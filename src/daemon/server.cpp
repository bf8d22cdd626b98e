#include "daemon/server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "collect/address.h"
#include "daemon/conversation.h"

namespace molen::daemon {
namespace {

constexpr double kBetweenLooksS = 0.5;  // of the thread that accepts
constexpr int kAcceptsOfATurn = 64;     // then it looks at the rest of its work

int event_descriptor() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw Error("eventfd: {}", std::strerror(errno));
  return fd;
}

// Listens at a path that every user may connect to: who is answered is decided by the kernel's word on who it is.
int listen_for_all(const fs::path& path) {
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  make_directories(parent);
  // In a folder of others, the name could stand for another file by the time that its mode is set.
  const int opened = file_system().open(parent, O_PATH | O_DIRECTORY, 0);
  if (opened < 0) throw_read_error(parent, opened);
  const Descriptor folder(opened);
  struct stat status {};
  if (::fstat(opened, &status) != 0) throw_read_error(parent, -errno);
  if (const std::string why = not_ours(status, parent); !why.empty())
    throw UsageError("{}; the socket needs a folder that no other user can write, such as /run/molen", why);
  Descriptor socket(collect::listen_at({"", 0, path.string()}).socket);
  constexpr mode_t kEverybody = 0666;
  if (::fchmodat(folder.get(), path.filename().c_str(), kEverybody, 0) != 0) throw_write_error(path, -errno);
  return socket.release();
}

LeaseOptions with_said(LeaseOptions options, std::function<void(const std::string&)> said) {
  options.said = std::move(said);
  return options;
}

}  // namespace

double Allowances::take(std::uint32_t uid, double now_s) {
  const std::lock_guard lock(mutex_);
  const auto [at, added] = of_.try_emplace(uid, Left{burst_, now_s});
  Left& left = at->second;
  left.requests = std::min(burst_, left.requests + per_s_ * (now_s - left.time_s)) - 1.0;
  left.time_s = now_s;
  return left.requests < 0 ? -left.requests / per_s_ : 0.0;
}

// A connection and its thread.
struct Server::Visitor {
  Visitor(int fd, Peer p) : socket(fd), peer(std::move(p)) {}
  Descriptor socket;
  const Peer peer;
  std::atomic<bool> over = false;
  std::jthread thread;  // last member: ends before the others
};

Server::Server(energy::Meters meters, ServerOptions options)
    : options_(std::move(options)),
      notices_(options_.say),
      board_(std::move(meters), options_.read_every, options_.clock),
      leases_(with_said(options_.leases, [this](const std::string& text) { say(text); })),
      power_limits_(leases_, options_.clock, [this](const std::string& text) { say(text); }),
      allowances_(options_.limits.requests_per_s, options_.limits.burst),
      ending_(event_descriptor()),
      listening_(listen_for_all(options_.socket)) {
  struct stat file {};
  if (::lstat(options_.socket.c_str(), &file) != 0) throw_read_error(options_.socket, -errno);
  device_ = file.st_dev;
  inode_ = file.st_ino;
}

Server::~Server() {
  ::eventfd_write(ending_.get(), 1);
  visitors_.clear();
  struct stat file {};
  if (::lstat(options_.socket.c_str(), &file) == 0 && file.st_dev == device_ && file.st_ino == inode_)
    file_system().remove(options_.socket);
}

void Server::say(const std::string& text) {
  const std::lock_guard lock(saying_);
  options_.say(text);
}

void Server::tell(const std::string& text) {
  const std::lock_guard lock(saying_);
  notices_.add(text, options_.clock());
}

// Restores what could not be restored yet. A driver may block it, so it has a thread of its own.
void Server::retry(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any tick;
  std::unique_lock lock(mutex);
  const std::chrono::duration<double> pause(options_.limits.retry_s);
  for (;;) {
    tick.wait_for(lock, stop, pause, [] { return false; });
    if (stop.stop_requested()) return;
    leases_.retry_left();
  }
}

void Server::run(int stop) {
  const std::jthread retrying([this](const std::stop_token& ends) { retry(ends); });
  const std::jthread limiting([this](const std::stop_token& ends) { power_limits_.run(ends, options_.limits.look_s); });
  const double rest_s = std::min(kBetweenLooksS, board_.keep_every_s());
  for (;;) {
    std::array<pollfd, 2> polled{pollfd{stop, POLLIN, 0}, pollfd{listening_.get(), POLLIN, 0}};
    const int found = ::poll(polled.data(), polled.size(), static_cast<int>(std::ceil(rest_s * 1e3)));
    if (found < 0 && errno != EINTR) throw Error("poll: {}", std::strerror(errno));
    if (found > 0 && polled[0].revents != 0) break;
    board_.keep();
    visitors_.remove_if([](const auto& visitor) { return visitor->over.load(); });
    if (found > 0 && polled[1].revents != 0) accept_some(stop);
    const std::lock_guard lock(saying_);
    notices_.check_time(options_.clock());
  }
  ::eventfd_write(ending_.get(), 1);
  visitors_.clear();
}

void Server::accept_some(int stop) {
  for (int i = 0; i < kAcceptsOfATurn; ++i) {
    pollfd stopping{stop, POLLIN, 0};
    if (::poll(&stopping, 1, 0) > 0) return;
    const int fd = ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      admit(fd);
      continue;
    }
    if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return;
    // The system has no room. The event comes again at once, so a pause keeps this thread from running in circles.
    tell(fmt::format("no more connections now: {}", std::strerror(errno)));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return;
  }
}

// Starts the conversation with a peer, or tells it why there is none.
void Server::admit(int socket) {
  Descriptor owned(socket);
  const auto refuse = [&](const std::string& why) {
    const std::string line = closing_line(why);
    (void)!::send(socket, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  };
  const auto peer = peer_of(socket);
  if (!peer) {
    tell(peer.reason());
    return refuse(peer.reason());
  }
  if (!options_.allowed.permits(peer.value())) {
    tell(fmt::format("{} was refused: it is not on the list of this daemon", peer.value().numbers()));
    return refuse(
        fmt::format("user {} may not use this daemon; an administrator allows users and groups with --allow-user and "
                    "--allow-group",
                    peer.value().uid));
  }
  const auto present = std::count_if(visitors_.begin(), visitors_.end(), [](const auto& v) { return !v->over; });
  const auto of_user = std::count_if(visitors_.begin(), visitors_.end(), [&](const auto& visitor) {
    return !visitor->over && visitor->peer.uid == peer.value().uid;
  });
  if (of_user >= options_.limits.connections_of_user)
    return refuse(fmt::format("user {} has {} connections already", peer.value().uid, of_user));
  if (present >= options_.limits.connections)
    return refuse(fmt::format("this daemon has {} connections already", present));
  try {
    auto visitor = std::make_unique<Visitor>(owned.release(), peer.value());
    Visitor& added = *visitors_.emplace_back(std::move(visitor));
    added.thread = std::jthread([this, &added] { serve(added); });
  } catch (const std::system_error& error) {  // no thread
    visitors_.pop_back();
    tell(fmt::format("no connection for {}: {}", peer.value().numbers(), error.what()));
  }
}

void Server::serve(Visitor& visitor) {
  try {
    Conversation conversation({board_, leases_, allowances_, power_limits_, options_.limiters, options_.limits,
                               options_.clock, ending_.get()},
                              visitor.socket.get(), visitor.peer);
    if (const std::string cut = conversation.run(); !cut.empty())
      tell(fmt::format("{} was cut: {}", visitor.peer.text(), cut));
  } catch (const std::exception&) {  // no memory for a sentence; the lease has ended with the conversation
  }
  ::shutdown(visitor.socket.get(), SHUT_RDWR);
  visitor.over = true;
}

}  // namespace molen::daemon
