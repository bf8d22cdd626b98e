#include "daemon/conversation.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/descriptor.h"
#include "base/error.h"
#include "collect/wire.h"

namespace molen::daemon {

Conversation::Event Conversation::wait(short socket_events, double seconds) {
  std::array<pollfd, 3> polled{pollfd{socket_, socket_events, 0}, pollfd{services_.ending, POLLIN, 0},
                               pollfd{process_, POLLIN, 0}};
  const int wait_ms = static_cast<int>(std::clamp(std::ceil(seconds * 1e3), 0.0, 60e3));
  const int found = ::poll(polled.data(), polled.size(), wait_ms);
  if (found < 0 && errno != EINTR) throw Error("poll: {}", std::strerror(errno));
  if (found <= 0) return Event::kNothing;
  if (polled[1].revents != 0) return Event::kEnding;
  // A child that the job forked may hold the connection open after the job's death.
  if (polled[2].revents != 0) return Event::kPeerGone;
  if ((polled[0].revents & (POLLERR | POLLNVAL)) != 0) return Event::kPeerGone;
  if ((polled[0].revents & POLLIN) != 0) return Event::kBytes;
  if ((polled[0].revents & POLLHUP) != 0) return Event::kPeerGone;
  return (polled[0].revents & POLLOUT) != 0 ? Event::kRoom : Event::kNothing;
}

std::string Conversation::run() {
  std::string cut;
  if (peer_.pid > 0) {
    process_ = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(peer_.pid), 0U));
    if (process_ < 0 && errno == ESRCH) return "";  // it has ended already
    // Old kernels and some containers have no such call; there a lease ends with its connection only.
    if (process_ < 0 && errno != ENOSYS && errno != EPERM)
      cut = fmt::format("the end of process {} cannot be watched: {}; connect again later", peer_.pid,
                        std::strerror(errno));
  }
  const Descriptor owned(process_);
  try {
    if (cut.empty()) cut = serve();
  } catch (const std::exception& error) {
    cut = error.what();
  }
  lease_.reset();  // restores before the peer sees the end
  if (!cut.empty()) {
    const std::string line = closing_line(cut);
    (void)!::send(socket_, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  return cut;
}

// Looks, every so often, at whether the lease may go on; returns why it may not.
std::string Conversation::look() {
  const double now_s = services_.clock();
  if (!lease_ || now_s - looked_s_ < services_.limits.look_s) return "";
  looked_s_ = now_s;
  if (std::string why = lease_->why_end(); !why.empty()) return why;
  return lease_->obey_limits().reason();
}

// Waits until the user may have an answer; returns why the conversation ends meanwhile.
std::optional<std::string> Conversation::wait_for_turn() {
  const double until_s = services_.clock() + services_.allowances.take(peer_.uid, services_.clock());
  for (;;) {
    // Requests that come together must not put off the look.
    if (std::string why = look(); !why.empty()) return why;
    const double left_s = until_s - services_.clock();
    if (left_s <= 0) return std::nullopt;
    const Event event = wait(0, std::min(left_s, services_.limits.look_s));
    if (event == Event::kEnding || event == Event::kPeerGone) return "";
  }
}

std::string Conversation::serve() {
  collect::LineBuffer lines(kMostRequestBytes);
  double line_since_s = 0;
  looked_s_ = services_.clock();
  if (!send(answer_line(Answer{}))) return "";
  for (;;) {
    while (const auto line = lines.next()) {
      if (const auto end = wait_for_turn()) return *end;
      if (!send(answer(*line))) return "";
      line_since_s = services_.clock();
    }
    if (lines.too_long()) return fmt::format("a request has more than {} bytes", kMostRequestBytes);
    if (!lines.empty() && services_.clock() - line_since_s > services_.limits.line_s)
      return fmt::format("a request took more than {:g} s", services_.limits.line_s);
    if (std::string why = look(); !why.empty()) return why;
    const Event event = wait(POLLIN, std::min(services_.limits.look_s, services_.limits.line_s));
    if (event == Event::kEnding || event == Event::kPeerGone) return "";
    if (event != Event::kBytes) continue;
    std::array<char, 4096> bytes;
    const ssize_t got = ::recv(socket_, bytes.data(), std::min(bytes.size(), lines.room()), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return "";
    if (got < 0) continue;
    if (lines.empty()) line_since_s = services_.clock();
    lines.append({bytes.data(), static_cast<std::size_t>(got)});
  }
}

std::string Conversation::answer(std::string_view line) {
  try {
    return answer_line(answer_to(parse_request(line, "the request")));
  } catch (const Error& error) {
    return refused_line(error.what());
  }
}

Answer Conversation::answer_to(const Request& request) {
  Answer answer;
  const auto refuse = [&](const std::string& why) {
    answer.kind = Answer::Kind::kRefused;
    answer.reason = why;
  };
  switch (request.kind) {
    case Request::Kind::kList:
      answer.kind = Answer::Kind::kListing;
      answer.listing.meters = services_.board.meters();
      services_.leases.list(peer_, lease_.get(), answer.listing);
      break;
    case Request::Kind::kRead:
      answer.kind = Answer::Kind::kReadings;
      answer.readings = services_.board.read();
      break;
    case Request::Kind::kLease: {
      if (lease_) {
        refuse("this connection has a lease already; restore it first");
        break;
      }
      auto lease = services_.leases.take(peer_, request.settings);
      answer.kind = Answer::Kind::kLeased;
      if (lease)
        lease_ = std::move(lease).value();
      else
        refuse(lease.reason());
      break;
    }
    case Request::Kind::kSet: {
      const auto set = lease_ ? lease_->set(request.settings.at(0), request.value)
                              : Result<std::optional<std::int64_t>>(Failure{"this connection has no lease"});
      answer.kind = Answer::Kind::kSet;
      if (set)
        answer.present = set.value();
      else
        refuse(set.reason());
      break;
    }
    case Request::Kind::kLimitable:
    case Request::Kind::kLimit: {
      if (!services_.limiters.permits(peer_)) {
        refuse(
            fmt::format("user {} may not limit the power of this node; an administrator allows users with "
                        "--limit-user",
                        peer_.uid));
        break;
      }
      if (request.kind == Request::Kind::kLimit)
        if (const auto done = services_.power_limits.set(request.limits, request.seconds); !done) {
          refuse(done.reason());
          break;
        }
      answer.kind = Answer::Kind::kLimitable;
      answer.limitable = services_.power_limits.limitable();
      break;
    }
    case Request::Kind::kRestore:
      answer.kind = Answer::Kind::kRestored;
      if (lease_) answer.restoration = lease_->end();
      lease_.reset();
      break;
  }
  return answer;
}

bool Conversation::send(std::string_view bytes) {
  const double until_s = services_.clock() + services_.limits.answer_s;
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (sent >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    const double left_s = until_s - services_.clock();
    if (left_s <= 0) return false;
    if (const Event event = wait(POLLOUT, left_s); event == Event::kEnding || event == Event::kPeerGone) return false;
  }
  return true;
}

}  // namespace molen::daemon
