#include "collect/address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/filesystem.h"

namespace molen::collect {
namespace {

Result<std::shared_ptr<addrinfo>> resolve(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (code != 0) return Failure{fmt::format("{}: {}", address.text(), ::gai_strerror(code))};
  return std::shared_ptr<addrinfo>(found, &::freeaddrinfo);
}

bool is_loopback(const sockaddr* any) {
  if (any->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, any, sizeof v4);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  if (any->sa_family != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, any, sizeof v6);
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

int port_of(int socket) {
  sockaddr_storage any{};
  socklen_t size = sizeof any;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&any), &size) != 0) return 0;
  if (any.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&any)->sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&any)->sin6_port);
}

sockaddr_un path_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw UsageError("unix:{}: the path of a socket has at most {} bytes", path, sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Removes the socket of a collector that is gone.
void remove_stale_socket(const std::string& path, const sockaddr_un& address) {
  FileStatus status;
  if (file_system().status(path, status) != 0) return;
  struct stat inode {};
  if (::lstat(path.c_str(), &inode) != 0 || !S_ISSOCK(inode.st_mode))
    throw UsageError("unix:{}: there is something that is no socket", path);
  const Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool answers = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (answers || errno != ECONNREFUSED) throw UsageError("unix:{}: another process listens there", path);
  remove_file(path);
}

Listening listen_at_path(const Address& address) {
  const sockaddr_un path = path_address(address.path);
  remove_stale_socket(address.path, path);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) throw Error("{}: {}", address.text(), std::strerror(errno));
  // The mode of the socket decides who may connect; it is made with the right one, since a later change would be late.
  const mode_t before = ::umask(0177);
  const int bound = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&path), sizeof path);
  const int code = errno;
  ::umask(before);
  if (bound != 0) throw UsageError("{}: {}", address.text(), std::strerror(code));
  if (::listen(socket.get(), SOMAXCONN) != 0) throw Error("{}: {}", address.text(), std::strerror(errno));
  return {socket.release(), address};
}

}  // namespace

std::string Address::text() const {
  if (!path.empty()) return "unix:" + path;
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

Address parse_address(const std::string& text, const std::string& flag) {
  const auto refuse = [&] { return UsageError("{}: '{}' must be HOST:PORT, [ADDRESS]:PORT or unix:PATH", flag, text); };
  Address address;
  if (text.starts_with("unix:")) {
    address.path = text.substr(5);
    if (address.path.empty() || address.path.find('\0') != std::string::npos) throw refuse();
    return address;
  }
  std::string port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string::npos || (end + 1 < text.size() && text[end + 1] != ':')) throw refuse();
    address.host = text.substr(1, end - 1);
    port = end + 1 < text.size() ? text.substr(end + 2) : std::to_string(kDefaultPort);
  } else {
    const std::size_t colon = text.find(':');
    if (colon != text.rfind(':')) throw refuse();
    address.host = text.substr(0, colon);
    port = colon == std::string::npos ? std::to_string(kDefaultPort) : text.substr(colon + 1);
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool number = error == std::errc() && end == port.data() + port.size();
  if (address.host.empty() || !number || address.port < 0 || address.port > 65535) throw refuse();
  return address;
}

bool is_local(const Address& address) {
  if (!address.path.empty()) return true;
  const auto found = resolve(address, 0);
  if (!found) throw UsageError("{}", found.reason());
  for (const addrinfo* a = found.value().get(); a != nullptr; a = a->ai_next)
    if (!is_loopback(a->ai_addr)) return false;
  return true;
}

Listening listen_at(const Address& address) {
  if (!address.path.empty()) return listen_at_path(address);
  const auto found = resolve(address, AI_PASSIVE);
  if (!found) throw UsageError("{}", found.reason());
  std::string why;
  for (const addrinfo* a = found.value().get(); a != nullptr; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    Descriptor socket(fd);
    const int yes = 1;
    if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // ports of connections that ended
    if (fd < 0 || ::bind(fd, a->ai_addr, a->ai_addrlen) != 0 || ::listen(fd, SOMAXCONN) != 0) {
      why = std::strerror(errno);
      continue;
    }
    return {socket.release(), {address.host, port_of(fd), ""}};
  }
  throw UsageError("{}: cannot listen there: {}", address.text(), why);
}

Result<std::vector<Endpoint>> find_endpoints(const Address& address) {
  std::vector<Endpoint> all;
  const auto add = [&](const void* bytes, socklen_t size) {
    all.emplace_back().size = size;
    std::memcpy(&all.back().bytes, bytes, size);
  };
  if (!address.path.empty()) {
    const sockaddr_un path = path_address(address.path);
    add(&path, sizeof path);
    return all;
  }
  const auto found = resolve(address, 0);
  if (!found) return Failure{found.reason()};
  for (const addrinfo* a = found.value().get(); a != nullptr; a = a->ai_next) add(a->ai_addr, a->ai_addrlen);
  if (all.empty()) return Failure{fmt::format("{}: the host has no address", address.text())};
  return all;
}

Result<int> begin_connection(const Address& address, const Endpoint& endpoint) {
  Descriptor socket(::socket(endpoint.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return Failure{fmt::format("{}: {}", address.text(), std::strerror(errno))};
  const auto* to = reinterpret_cast<const sockaddr*>(&endpoint.bytes);
  if (::connect(socket.get(), to, endpoint.size) != 0 && errno != EINPROGRESS)
    return Failure{fmt::format("{}: {}", address.text(), std::strerror(errno))};
  return socket.release();
}

std::string connection_error(int socket) {
  int code = 0;
  socklen_t size = sizeof code;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &size) != 0) code = errno;
  return code == 0 ? "" : std::strerror(code);
}

std::string foreign_listener(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::strerror(errno);
  if (credentials.uid == 0 || credentials.uid == ::geteuid()) return "";
  return fmt::format("user {} listens there, who is neither root nor you", credentials.uid);
}

void keep_alive(int socket) {
  const int yes = 1, idle_s = 60, between_s = 20, probes = 3, unanswered_ms = 120'000;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void set_nonblocking(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) != 0)
    throw Error("a descriptor cannot be made non-blocking: {}", std::strerror(errno));
}

}  // namespace molen::collect
