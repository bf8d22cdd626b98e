// The collector of a site: takes batches from many nodes and has them stored (docs/decisions/0017-collector.md). One
// thread serves all connections, another one stores (writer.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "collect/address.h"
#include "collect/connection.h"
#include "collect/writer.h"

namespace molen::collect {

struct ServerOptions {
  std::vector<Address> listen;
  std::string token;                    // that nodes must have; empty for none
  std::size_t most_connections = 4096;  // fewer where the process may not open as many files
  double finish_s = 10;                 // longest wait for the database at the end
  ConnectionLimits limits;
  WriterOptions writer;
  // Tells a person one sentence. Called by both threads.
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

struct ServerTotals {
  Stored stored;
  std::int64_t connections = 0;  // accepted so far
  std::int64_t cut = 0;          // of those
  std::int64_t turned_away = 0;  // for want of room
  std::int64_t failures = 0;     // of the database
};

// Passes messages on, but only so many in a time: a hostile node must not fill the disk with them.
class Notices {
 public:
  Notices(std::function<void(const std::string&)> say, int most = 20, double within_s = 60)
      : say_(std::move(say)), most_(most), within_s_(within_s) {}
  void add(const std::string& text, double now_s);
  // Tells how many messages were left out, once the time is over.
  void check_time(double now_s);

 private:
  std::function<void(const std::string&)> say_;
  int most_, said_ = 0;
  double within_s_, since_s_ = 0;
  std::int64_t left_out_ = 0;
};

class Server {
 public:
  // Listens. Throws UsageError if it cannot, or if an address that other machines reach has no token.
  Server(std::unique_ptr<Database> database, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The addresses, with the ports that were chosen for port 0.
  const std::vector<Address>& addresses() const { return addresses_; }
  // Serves until the descriptor `stop` is readable. Then it stores and acknowledges what it has, if the database
  // answers, and returns.
  void run(int stop);
  // Call it when `run` does not run.
  ServerTotals totals() const;

 private:
  struct Peer;
  void watch(int descriptor, std::uint64_t id, std::uint32_t events, bool add = true);
  void accept_all(int listening);
  void handle(std::uint64_t id, std::uint32_t events, int stop);
  void read_from(std::uint64_t id, Peer& peer);
  void serve(std::uint64_t id, Peer& peer);
  void send_to(std::uint64_t id, Peer& peer);
  void update_interest(std::uint64_t id, Peer& peer);
  void take_done();
  void check_times();
  void close(std::uint64_t id);
  double clock() const;

  const ServerOptions options_;
  Notices notices_;
  std::deque<Descriptor> listening_;
  std::vector<Address> addresses_;
  Descriptor epoll_, wake_;
  std::map<std::uint64_t, std::unique_ptr<Peer>> peers_;
  std::uint64_t next_id_;
  std::size_t most_connections_ = 0;
  ServerTotals totals_;
  bool stopping_ = false;
  bool full_ = false;  // batches wait in connections, because the writer has no room
  double checked_s_ = 0;
  std::unique_ptr<Writer> writer_;  // last member: its thread ends first
};

}  // namespace molen::collect
