// Sends what is in a spool to the collector, and connects again whenever the connection is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "base/descriptor.h"
#include "collect/address.h"
#include "collect/lookup.h"
#include "collect/spool.h"
#include "collect/wire.h"

namespace molen::collect {

struct SenderOptions {
  Address to;
  std::string node, token;
  double retry_first_s = 1, retry_last_s = 60;  // between two tries; each pause is twice the one before, with chance
  double answer_s = 15;                // for the name of the host, for a connection, and for the answer to the hello
  Lookup::Find find = find_endpoints;  // where the collector is; it may take its time
  std::int64_t ahead = 16;             // lines that are sent and not acknowledged, at most
  // Takes the limits that the collector answers to `ask`, with the seconds that are left of them. Without it, the
  // sender speaks protocol 1 and asks nothing. With a token, only limits that prove the token are taken; without one,
  // whoever listens at a path must be root or this user.
  std::function<void(const LimitOrder&)> on_limits = {};
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

class Sender {
 public:
  Sender(SenderOptions options, Spool& spool);

  enum class Until { kTime, kEmpty };
  // Sends and listens until the steady clock shows `until_s`, or until the descriptor `stop` is readable (-1: none);
  // with kEmpty also until nothing waits, and then it begins with a try at once. Returns whether `stop` is readable.
  bool run(double until_s, int stop, Until until = Until::kTime);

  // Asks for the limits of this node, once there is a connection and the last question is answered. If
  // several questions wait, only the last one is asked.
  void ask(Limitable limits);

  std::int64_t connections() const { return connections_; }  // that were welcomed

 private:
  enum class State { kPausing, kLooking, kConnecting, kGreeting, kOpen };
  void look();
  void connect(const Result<std::vector<Endpoint>>& found);
  void connected();
  void queue_lines();
  int protocol() const;
  void send();
  void receive();
  void take(const Answer& answer);
  void take_limits(const Answer& answer);
  void lost(const std::string& reason, bool refused = false);
  int wait_ms(double until_s) const;

  const SenderOptions options_;
  Spool& spool_;
  State state_ = State::kPausing;
  std::unique_ptr<Lookup> lookup_;  // of the collector's host, also while a pause after it took too long
  std::unique_ptr<Descriptor> socket_;
  LineBuffer incoming_{kMostLineBytes};
  std::string outgoing_;
  std::int64_t next_ = 0;              // the first line that was not sent on this connection
  bool ended_ = false;                 // nothing more is sent on this connection
  std::optional<Limitable> question_;  // that waits
  struct Asked {
    Limitable limits;
    std::string nonce;
    double since_s = 0;  // of the steady clock
  };
  std::optional<Asked> asked_;  // that is not answered yet on this connection
  std::size_t attempts_ = 0;
  double pause_s_ = 0, change_by_s_ = 0;  // when the state changes if nothing happens
  std::string trouble_;                   // that was said and lasts
  double trouble_since_s_ = 0;
  std::int64_t connections_ = 0;
  std::mt19937_64 random_;
};

}  // namespace molen::collect
