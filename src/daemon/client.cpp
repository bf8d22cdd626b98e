#include "daemon/client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "collect/address.h"

namespace molen::daemon {
std::optional<fs::path> socket_here() {
  if (const char* named = std::getenv("MOLEN_ENERGY_SOCKET"); named != nullptr)
    return *named == '\0' ? std::nullopt : std::optional<fs::path>(named);
  std::error_code unknown;
  return fs::exists(kDefaultSocket, unknown) ? std::optional<fs::path>(kDefaultSocket) : std::nullopt;
}

Result<std::unique_ptr<Client>> Client::connect(const fs::path& socket, Seconds patience) {
  const auto failed = [&](const std::string& why) {
    return Failure{fmt::format("the energy daemon at {}: {}", socket.string(), why)};
  };
  try {
    const collect::Address address{"", 0, socket.string()};
    const auto found = collect::find_endpoints(address);  // of a path: no name service is asked
    if (!found) return failed(found.reason());
    const auto begun = collect::begin_connection(address, found.value().front());
    if (!begun) return Failure{fmt::format("the energy daemon at {}", begun.reason())};
    std::unique_ptr<Client> client(new Client(begun.value(), socket));
    if (const std::string why = collect::foreign_listener(client->socket_.get()); !why.empty()) return failed(why);
    const auto welcome = client->receive(now() + patience);
    if (!welcome) return Failure{welcome.reason()};
    if (welcome.value().kind != Answer::Kind::kWelcome) return failed("its first line is no welcome");
    return client;
  } catch (const UsageError& error) {  // the path is too long
    return failed(error.what());
  }
}

Result<Answer> Client::lose(const std::string& why) {
  if (lost_.empty()) lost_ = fmt::format("the energy daemon at {}: {}", path_.string(), why);
  ::shutdown(socket_.get(), SHUT_RDWR);
  return Failure{lost_};
}

// Reads what has come; returns false at the end of the connection, with the reason, or of the time, without one.
bool Client::read_more(Seconds until, std::string& why) {
  pollfd polled{socket_.get(), POLLIN, 0};
  const double left_s = std::max(0.0, (until - now()).value);
  const int found = ::poll(&polled, 1, static_cast<int>(std::min(std::ceil(left_s * 1e3), 3.6e6)));
  if (found < 0 && errno == EINTR) return true;
  if (found == 0) return now() < until;
  std::array<char, 65536> bytes;
  const ssize_t got = ::recv(socket_.get(), bytes.data(), std::min(bytes.size(), lines_.room()), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) {
    why = got == 0 || errno == ECONNRESET ? "it is gone" : std::strerror(errno);
    return false;
  }
  lines_.append({bytes.data(), static_cast<std::size_t>(got)});
  return true;
}

Result<Answer> Client::receive(Seconds until) {
  auto answer = receive_in_time(until);
  return answer ? std::move(*answer) : lose("no answer in time");
}

std::optional<Result<Answer>> Client::receive_in_time(Seconds until) {
  if (!lost_.empty()) return Failure{lost_};
  for (;;) {
    if (const auto line = lines_.next()) {
      try {
        Answer answer = parse_answer(*line, "its answer");
        if (answer.kind == Answer::Kind::kClosing) return lose(answer.reason);
        return answer;
      } catch (const UsageError& error) {
        return lose(error.what());
      }
    }
    if (lines_.too_long()) return lose("its answer has no end");
    std::string why;
    if (read_more(until, why)) continue;
    if (why.empty()) return std::nullopt;
    return lose(why);
  }
}

Result<Answer> Client::ask(const Request& request, Answer::Kind expected, Seconds patience) {
  const Seconds until = now() + patience;
  if (const auto begun = begin(request, patience); !begun) return Failure{begun.reason()};
  auto answer = finish(expected, until - now());
  return answer ? std::move(*answer) : lose("no answer in time");
}

Result<actuate::Done> Client::begin(const Request& request, Seconds patience) {
  if (!lost().empty()) return Failure{lost_};
  const Seconds until = now() + patience;
  const std::string line = request_line(request);
  for (std::string_view bytes = line; !bytes.empty();) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (sent >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) break;  // what it said before it left may be there to read
    pollfd polled{socket_.get(), POLLOUT, 0};
    if (now() > until) return Failure{lose("it takes no request").reason()};
    ::poll(&polled, 1, 100);
  }
  return actuate::Done{};
}

std::optional<Result<Answer>> Client::finish(Answer::Kind expected, Seconds patience) {
  auto in_time = receive_in_time(now() + patience);
  if (!in_time || !in_time->ok()) return in_time;
  Result<Answer>& answer = *in_time;
  if (answer.value().kind == Answer::Kind::kRefused) return Failure{answer.value().reason};
  if (answer.value().kind != expected) return lose("its answer is one to another request");
  return in_time;
}

const std::string& Client::lost() {
  if (!lost_.empty()) return lost_;
  pollfd polled{socket_.get(), POLLIN, 0};
  // Nothing comes unasked but the daemon's last words, or its end.
  if (::poll(&polled, 1, 0) > 0)
    if (const auto last = receive(now() + Seconds(1)); last) (void)lose("it sent what nobody asked for").ok();
  return lost_;
}

}  // namespace molen::daemon
