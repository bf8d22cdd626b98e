// A job's side of the energy daemon: the connection, and the meters and settings that come through it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actuate/held.h"
#include "actuate/session.h"
#include "base/descriptor.h"
#include "base/filesystem.h"
#include "collect/wire.h"
#include "daemon/wire.h"
#include "energy/meter.h"
#include "energy/nvml/nvml.h"

namespace molen::daemon {

inline constexpr const char* kDefaultSocket = "/run/molen/energy.sock";

// Returns the path of the daemon's socket, for this process: MOLEN_ENERGY_SOCKET where it is set, and nothing where
// that is empty; else kDefaultSocket if it is there.
std::optional<fs::path> socket_here();

// A connection. Not thread-safe.
class Client {
 public:
  // A failure says why there is none, with the daemon's own words where it refuses. The daemon must be root's or this
  // user's, so that no other user can plant one.
  static Result<std::unique_ptr<Client>> connect(const fs::path& socket, Seconds patience = Seconds(10));

  // Asks and waits for the answer, which has the kind `expected`. A refusal is a failure with the daemon's words. After
  // any other failure the connection is lost.
  Result<Answer> ask(const Request& request, Answer::Kind expected, Seconds patience = Seconds(10));
  // Does it in two steps. `finish` returns nothing where no answer has come in time; the connection is not lost then,
  // and `finish` is to be called again before the next request.
  Result<actuate::Done> begin(const Request& request, Seconds patience);
  std::optional<Result<Answer>> finish(Answer::Kind expected, Seconds patience);
  // Returns why the connection is lost; "" as long as it is there. It costs one call of the kernel.
  const std::string& lost();
  const fs::path& socket() const { return path_; }

 private:
  Client(int fd, fs::path path) : socket_(fd), path_(std::move(path)) {}
  Result<Answer> lose(const std::string& why);
  Result<Answer> receive(Seconds until);
  std::optional<Result<Answer>> receive_in_time(Seconds until);
  bool read_more(Seconds until, std::string& why);

  Descriptor socket_;
  fs::path path_;
  collect::LineBuffer lines_{kMostAnswerBytes};
  std::string lost_;
};

// Opens the meters of the daemon at `socket`, but for those of GPUs, which a job reads itself. Where it cannot be
// asked, the reason is among the unavailable ones. A daemon that goes away makes a gap; it is asked again after a
// second, and then after twice the time at each try, up to a minute. A read waits for it for 0.25 s at most.
energy::Meters open_meters(const fs::path& socket);
// Does it for the socket of this process; nothing where it has none. For energy::OpenOptions::daemon.
energy::Meters open_meters_here();

// Adds the settings that the daemon makes for this process and that it cannot make itself; those of NVIDIA GPUs as far
// as they are visible to it, in the order in which it sees them. Where the daemon cannot be asked, or withholds one,
// the reason is among the unavailable ones.
void add_settings(actuate::Actuators& here, const fs::path& socket, const energy::NvmlOptions& nvml);
// Returns the settings of this process, those of the daemon included.
actuate::Actuators open_actuators_here();

// Takes the settings in `ids`, as Session::open; those of the daemon are leased from it.
Result<std::unique_ptr<actuate::HeldSettings>> hold(actuate::Actuators here, const std::vector<std::string>& ids,
                                                    actuate::SessionOptions options);

}  // namespace molen::daemon
