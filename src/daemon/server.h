// The energy daemon of a node (docs/decisions/0019-energy-daemon.md): answers the jobs of the users on its list over a
// Unix socket. Each connection has a thread, so that a slow or silent peer holds up only itself.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/descriptor.h"
#include "collect/server.h"
#include "daemon/leases.h"
#include "daemon/meter_board.h"
#include "daemon/permission.h"
#include "daemon/power_limits.h"

namespace molen::daemon {

struct ServerLimits {
  int connections = 256, connections_of_user = 16;
  double requests_per_s = 50;  // of a user, over all its connections; more wait
  double burst = 100;          // requests that a user may make at once
  double line_s = 10;          // from the first byte of a request to its last
  double answer_s = 10;        // for a peer to take an answer
  double look_s = 1;           // between two looks at whether a lease may go on
  double retry_s = 10;         // between two tries to restore what could not be restored
};

struct ServerOptions {
  fs::path socket;
  AllowList allowed;
  AllowList limiters;       // those of them who may limit the power of the node; root always may
  LeaseOptions leases;      // `said` is set by the server
  Seconds read_every{0.1};  // as MeterBoard
  ServerLimits limits;
  std::function<double()> clock;  // seconds of a clock that nobody sets
  // Tells a person one sentence; called by any thread. What peers cause is limited to 20 sentences a minute.
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

// How many requests each user may make: so many at once, and then so many per second.
class Allowances {
 public:
  Allowances(double per_s, double burst) : per_s_(per_s), burst_(burst) {}
  // Takes one request of a user; returns how many seconds it has to wait before it is answered. Thread-safe.
  double take(std::uint32_t uid, double now_s);

 private:
  struct Left {
    double requests = 0, time_s = 0;
  };
  const double per_s_, burst_;
  std::mutex mutex_;
  std::map<std::uint32_t, Left> of_;
};

class Server {
 public:
  // Restores what an earlier daemon has left, and listens; makes the folder of the socket if it is missing. Throws
  // UsageError if it cannot, and where others may write into that folder.
  Server(energy::Meters meters, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves until the descriptor `stop` is readable; then restores all and returns.
  void run(int stop);

 private:
  struct Visitor;
  void retry(const std::stop_token& stop);
  void accept_some(int stop);
  void admit(int socket);
  void serve(Visitor& visitor);
  void say(const std::string& text);   // of the node's own state
  void tell(const std::string& text);  // of what peers did

  const ServerOptions options_;
  std::mutex saying_;  // guards notices_, and keeps sentences apart
  collect::Notices notices_;
  MeterBoard board_;
  Leases leases_;
  PowerLimits power_limits_;
  Allowances allowances_;
  Descriptor ending_;  // readable once the daemon ends
  Descriptor listening_;
  dev_t device_ = 0;  // of the socket's file, which only this daemon may remove
  ino_t inode_ = 0;
  std::list<std::unique_ptr<Visitor>> visitors_;  // of the thread of `run`
};

}  // namespace molen::daemon
