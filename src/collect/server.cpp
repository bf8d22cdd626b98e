#include "collect/server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/filesystem.h"
#include "base/units.h"

namespace molen::collect {
namespace {

constexpr std::uint64_t kWake = 0, kStop = 1, kFirstListening = 2, kFirstPeer = 1024;
constexpr double kBetweenChecksS = 0.25;
constexpr std::size_t kOtherFiles = 64;  // of this process: libraries, the database, sockets that listen

// Raises the limit of open files as far as the process may, and returns how many connections fit.
std::size_t connections_possible(std::size_t wanted) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  const rlim_t needed = wanted + kOtherFiles;
  if (files.rlim_cur < needed) {
    files.rlim_cur = std::min<rlim_t>(needed, files.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &files);
    ::getrlimit(RLIMIT_NOFILE, &files);
  }
  if (files.rlim_cur >= needed) return wanted;
  return files.rlim_cur > 2 * kOtherFiles ? static_cast<std::size_t>(files.rlim_cur) - kOtherFiles : kOtherFiles;
}

std::string peer_text(const sockaddr_storage& any, socklen_t size) {
  if (any.ss_family == AF_UNIX) return "a local process";
  std::array<char, 64> host{};
  std::array<char, 16> port{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&any), size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return fmt::format("{} port {}", host.data(), port.data());
}

Descriptor open_descriptor(int fd, const char* what) {
  if (fd < 0) throw Error("{}: {}", what, std::strerror(errno));
  return Descriptor(fd);
}

}  // namespace

void Notices::add(const std::string& text, double now_s) {
  check_time(now_s);
  if (said_ == 0) since_s_ = now_s;
  if (said_ < most_) {
    ++said_;
    say_(text);
  } else {
    ++left_out_;
  }
}

void Notices::check_time(double now_s) {
  if (said_ == 0 || now_s - since_s_ < within_s_) return;
  if (left_out_ > 0) say_(fmt::format("{} like the last ones were left out", counted(left_out_, "message")));
  said_ = 0;
  left_out_ = 0;
}

struct Server::Peer {
  Peer(int fd, std::string name, const ServerOptions& options, double now_s)
      : socket(fd), connection(std::move(name), options.token, options.limits, now_s) {}
  Descriptor socket;
  Connection connection;
  std::uint32_t interest = 0;
  bool said = false;  // why it was cut
};

Server::Server(std::unique_ptr<Database> database, ServerOptions options)
    : options_(std::move(options)),
      notices_(options_.say),
      epoll_(open_descriptor(::epoll_create1(EPOLL_CLOEXEC), "epoll")),
      wake_(open_descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      next_id_(kFirstPeer) {
  MOLEN_CHECK(!options_.listen.empty(), "a collector without an address");
  if (options_.listen.size() > kFirstPeer - kFirstListening) throw UsageError("--listen: too many addresses");
  for (const Address& address : options_.listen) {
    if (options_.token.empty() && !is_local(address))
      throw UsageError(
          "--listen {}: other machines reach this address, so nodes must show a secret: name its file with "
          "--token-file",
          address.text());
    const Listening bound = listen_at(address);
    listening_.emplace_back(bound.socket);
    watch(bound.socket, kFirstListening + addresses_.size(), EPOLLIN);
    addresses_.push_back(bound.address);
  }
  watch(wake_.get(), kWake, EPOLLIN);
  most_connections_ = connections_possible(options_.most_connections);
  if (most_connections_ < options_.most_connections)
    options_.say(fmt::format("this process may open files for {} only: raise its limit (ulimit -n)",
                             counted(static_cast<std::int64_t>(most_connections_), "connection")));
  WriterOptions writer = options_.writer;
  writer.say = options_.say;
  writer_ =
      std::make_unique<Writer>(std::move(database), std::move(writer), [this] { ::eventfd_write(wake_.get(), 1); });
}

Server::~Server() {
  for (const Address& address : addresses_)
    if (!address.path.empty()) file_system().remove(address.path);
}

double Server::clock() const {
  return now().value;
}

void Server::watch(int descriptor, std::uint64_t id, std::uint32_t events, bool add) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, descriptor, &event) != 0)
    throw Error("epoll: {}", std::strerror(errno));
}

void Server::run(int stop) {
  watch(stop, kStop, EPOLLIN);
  std::array<epoll_event, 256> events{};
  double finish_by_s = 0;
  while (!stopping_ || (!writer_->is_finished() && clock() < finish_by_s)) {
    const bool was_stopping = stopping_;
    const int found = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   static_cast<int>(kBetweenChecksS * 1000.0));
    if (found < 0 && errno != EINTR) throw Error("epoll: {}", std::strerror(errno));
    for (int i = 0; i < found; ++i)
      handle(events[static_cast<std::size_t>(i)].data.u64, events[static_cast<std::size_t>(i)].events, stop);
    take_done();
    if (clock() - checked_s_ >= kBetweenChecksS) check_times();
    if (stopping_ && !was_stopping) {
      writer_->finish();
      finish_by_s = clock() + options_.finish_s;
    }
  }
  take_done();
  while (!peers_.empty()) close(peers_.begin()->first);
}

ServerTotals Server::totals() const {
  ServerTotals totals = totals_;
  totals.stored = writer_->stored();
  totals.failures = writer_->failures();
  return totals;
}

void Server::handle(std::uint64_t id, std::uint32_t events, int stop) {
  if (id == kWake) {
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
    return;
  }
  if (id == kStop) {
    stopping_ = true;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stop, nullptr);
    for (const Descriptor& listening : listening_) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listening.get(), nullptr);
    return;
  }
  if (id < kFirstPeer) {
    if (!stopping_) accept_all(listening_[id - kFirstListening].get());
    return;
  }
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;  // closed by an event before this one
  Peer& peer = *found->second;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) return close(id);
  if ((events & EPOLLIN) != 0) return read_from(id, peer);
  // The node is gone, and its bytes are not read because it has to wait. It will send them again.
  if ((events & EPOLLRDHUP) != 0) return close(id);
  if ((events & EPOLLOUT) != 0) send_to(id, peer);
}

void Server::accept_all(int listening) {
  for (;;) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    const int fd = ::accept4(listening, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return;
      // The system has no room. The event comes again at once, so a pause keeps this thread from running in circles.
      notices_.add(fmt::format("no more connections now: {}", std::strerror(errno)), clock());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    if (from.ss_family != AF_UNIX) keep_alive(fd);
    auto peer = std::make_unique<Peer>(fd, peer_text(from, size), options_, clock());
    const std::uint64_t id = next_id_++;
    ++totals_.connections;
    // One more than there may be is told so and closed soon.
    if (peers_.size() >= most_connections_ + kOtherFiles / 2) {
      ++totals_.turned_away;
      continue;
    }
    const bool full = peers_.size() >= most_connections_;
    Peer& added = *peers_.emplace(id, std::move(peer)).first->second;
    added.interest = EPOLLIN | EPOLLRDHUP;
    watch(added.socket.get(), id, added.interest);
    if (!full) continue;
    ++totals_.turned_away;
    added.connection.cut(fmt::format("this collector has {} connections already", most_connections_), clock());
    send_to(id, added);
  }
}

void Server::read_from(std::uint64_t id, Peer& peer) {
  static thread_local std::array<char, kMostLineBytes> bytes;
  const std::size_t room = stopping_ ? 0 : std::min(bytes.size(), peer.connection.room());
  if (room == 0) return update_interest(id, peer);
  const ssize_t got = ::recv(peer.socket.get(), bytes.data(), room, 0);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return close(id);
  if (got > 0) peer.connection.receive({bytes.data(), static_cast<std::size_t>(got)}, clock());
  serve(id, peer);
}

void Server::serve(std::uint64_t id, Peer& peer) {
  const double now_s = clock();
  while (!stopping_) {
    if (!writer_->has_room()) {
      full_ = true;
      break;
    }
    auto batch = peer.connection.next_batch(now_s);
    for (Limitable& question : peer.connection.take_questions())
      writer_->offer({id, Batch{peer.connection.node(), "", 0, {}, {}}, std::move(question)});
    if (!batch) break;
    writer_->offer({id, std::move(*batch), std::nullopt});
  }
  send_to(id, peer);
}

void Server::send_to(std::uint64_t id, Peer& peer) {
  Connection& connection = peer.connection;
  if (connection.is_cut() && !peer.said) {
    peer.said = true;
    ++totals_.cut;
    notices_.add(fmt::format("{} was cut: {}", connection.who(), connection.reason()), clock());
  }
  while (!connection.outgoing().empty()) {
    const std::string& bytes = connection.outgoing();
    const ssize_t sent = ::send(peer.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return close(id);
    if (sent < 0) break;
    connection.sent(static_cast<std::size_t>(sent), clock());
  }
  // The node reads the refusal, and then the end.
  if (connection.is_cut() && connection.outgoing().empty()) ::shutdown(peer.socket.get(), SHUT_WR);
  update_interest(id, peer);
}

void Server::update_interest(std::uint64_t id, Peer& peer) {
  std::uint32_t wanted = EPOLLRDHUP;
  if (peer.connection.room() > 0 && !stopping_) wanted |= EPOLLIN;
  if (!peer.connection.outgoing().empty()) wanted |= EPOLLOUT;
  if (wanted == peer.interest) return;
  peer.interest = wanted;
  watch(peer.socket.get(), id, wanted, false);
}

void Server::take_done() {
  std::vector<std::uint64_t> answered;
  for (const Done& done : writer_->take_done()) {
    const auto found = peers_.find(done.connection);
    if (found == peers_.end()) continue;  // the node is gone; it sends the batch again, which counts once
    if (done.order)
      found->second->connection.answered(*done.order, clock());
    else
      found->second->connection.stored(done.session, done.seq, clock());
    if (answered.empty() || answered.back() != done.connection) answered.push_back(done.connection);
  }
  for (const std::uint64_t id : answered)
    if (const auto found = peers_.find(id); found != peers_.end()) serve(id, *found->second);
  if (!full_ || stopping_ || !writer_->has_room()) return;
  full_ = false;
  std::vector<std::uint64_t> all;
  for (const auto& [id, peer] : peers_) all.push_back(id);
  for (const std::uint64_t id : all)
    if (const auto found = peers_.find(id); found != peers_.end()) serve(id, *found->second);
}

void Server::check_times() {
  checked_s_ = clock();
  notices_.check_time(checked_s_);
  std::vector<std::uint64_t> all;
  for (const auto& [id, peer] : peers_) all.push_back(id);
  for (const std::uint64_t id : all) {
    const auto found = peers_.find(id);
    Peer& peer = *found->second;
    const bool was_cut = peer.connection.is_cut();
    peer.connection.check_time(checked_s_, !full_ && peer.connection.room() > 0);
    if (peer.connection.is_over())
      close(id);
    else if (!was_cut && peer.connection.is_cut())
      send_to(id, peer);
  }
}

void Server::close(std::uint64_t id) {
  peers_.erase(id);  // closing the socket removes it from epoll
}

}  // namespace molen::collect
