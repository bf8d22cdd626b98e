// Where the collector listens: HOST:PORT over TCP, or unix:PATH.
#pragma once

#include <string>

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

// Begins to connect without waiting; the socket becomes writable when it is connected or has failed
// (connection_error). A host with several addresses gets another one with each `attempt`. Failures say why there is no
// connection.
Result<int> begin_connection(const Address& address, std::size_t attempt = 0);
// Returns why a connection that was begun failed; "" if it is there.
std::string connection_error(int socket);

// Lets the kernel notice that the other machine is gone.
void keep_alive(int socket);

// Makes reads and writes of the descriptor return at once. Throws Error.
void set_nonblocking(int descriptor);

}  // namespace molen::collect
