// Where the collector listens: HOST:PORT over TCP, or unix:PATH.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.h"

namespace molen::collect {

inline constexpr int kDefaultPort = 4722;

struct Address {
  std::string host;  // a name or a number; empty for a path
  int port = 0;
  std::string path;  // of a Unix socket
  std::string text() const;
  bool operator==(const Address&) const = default;
};

// Parses "HOST:PORT", "HOST" (with kDefaultPort), "[::1]:PORT" or "unix:PATH". Throws UsageError that names `flag`.
Address parse_address(const std::string& text, const std::string& flag);

// Returns whether only this machine can reach the address: a path, or a host whose addresses are all those of the
// loopback. Throws UsageError if the host has no address.
bool is_local(const Address& address);

// A socket that listens, for one address of the host, with the port that it got if the address has port 0. Throws
// UsageError if the address is not one of this machine, is in use, or may not be taken. A path may hold the socket of a
// collector that is gone, but nothing else; only the owner of the process can connect to it.
struct Listening {
  int socket = -1;  // the caller closes it
  Address address;
};
Listening listen_at(const Address& address);

// One of the places to which an address leads, as the kernel takes it.
struct Endpoint {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

// Returns the places of an address, at least one. A path has one; for a host's name this may wait for a name service,
// without bound. Throws UsageError for a path that is too long. Failures say why there is none.
Result<std::vector<Endpoint>> find_endpoints(const Address& address);

// Begins to connect without waiting; the socket becomes writable when it is connected or has failed
// (connection_error). Failures name `address` and say why there is no connection.
Result<int> begin_connection(const Address& address, const Endpoint& endpoint);
// Returns why a connection that was begun failed; "" if it is there.
std::string connection_error(int socket);

// Returns why the process that listens at the other end of a Unix socket is not to be trusted; "" if it is root's or
// this user's.
std::string foreign_listener(int socket);

// Lets the kernel notice that the other machine is gone.
void keep_alive(int socket);

// Makes reads and writes of the descriptor return at once. Throws Error.
void set_nonblocking(int descriptor);

}  // namespace molen::collect
