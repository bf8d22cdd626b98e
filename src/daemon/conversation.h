// One connection of the daemon: waits for requests, answers them, and ends with the peer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/power_limits.h"
#include "daemon/server.h"
#include "daemon/wire.h"

namespace molen::daemon {

class Conversation {
 public:
  struct Services {
    MeterBoard& board;
    Leases& leases;
    Allowances& allowances;
    PowerLimits& power_limits;
    const AllowList& limiters;  // who may limit
    const ServerLimits& limits;
    const std::function<double()>& clock;
    int ending;  // readable once the daemon ends
  };
  Conversation(Services services, int socket, Peer peer)
      : services_(services), socket_(socket), peer_(std::move(peer)) {}

  // Returns once the peer has ended, or is cut, or the daemon ends; the settings of the peer are restored then. Returns
  // why the peer was cut; "" where it left by itself, or the daemon ends.
  std::string run();

 private:
  enum class Event { kBytes, kRoom, kNothing, kPeerGone, kEnding };
  Event wait(short socket_events, double seconds);
  std::string serve();
  std::string look();
  std::optional<std::string> wait_for_turn();
  std::string answer(std::string_view line);
  Answer answer_to(const Request& request);
  bool send(std::string_view bytes);

  Services services_;
  int socket_;
  Peer peer_;
  int process_ = -1;     // a descriptor of the peer's process
  double looked_s_ = 0;  // when the lease was looked at last
  std::unique_ptr<DeviceLease> lease_;
};

}  // namespace molen::daemon
