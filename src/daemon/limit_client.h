// The side of a sender that passes the limits of the site's manager on to the energy daemon of its node.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collect/limits.h"
#include "daemon/client.h"

namespace molen::daemon {

// Between two questions for limits, at most. It is short beside the time after which a manager holds a question for
// old.
inline constexpr Seconds kAskAgain{15};

// Returns the settings of a daemon as the collector takes them; `problem` names those that it cannot take, and why.
collect::Limitable in_watts(const std::vector<LimitableSetting>& settings);

// Not thread-safe. The daemon is waited for at most `patience`, and connected to again where it has gone away.
class LimitClient {
 public:
  // `socket`: that of the daemon; nothing where this process has none. `say`: a sentence for a person.
  LimitClient(std::optional<fs::path> socket, std::function<void(const std::string&)> say,
              Seconds patience = Seconds(5));

  // Returns what this node can limit; where it can limit nothing, the reason.
  collect::Limitable limitable();
  // Makes the daemon keep these limits. A limit that it refuses is reported, also as the reason in the next
  // `limitable`.
  void keep(const collect::LimitOrder& order);
  // Returns for how long after a question the next one may wait: half of the time that the last limits have, so that
  // they are renewed, and kAskAgain at most.
  Seconds ask_after() const { return ask_after_; }

 private:
  Result<Answer> ask(const Request& request);
  void trouble(const std::string& text);

  const std::optional<fs::path> socket_;
  const std::function<void(const std::string&)> say_;
  const Seconds patience_;
  std::unique_ptr<Client> client_;
  std::string trouble_;  // that was said and lasts
  std::string unfit_;    // settings that the collector does not take, as they were said
  Seconds ask_after_ = kAskAgain;
};

}  // namespace molen::daemon
