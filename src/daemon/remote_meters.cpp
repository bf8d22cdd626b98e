#include <algorithm>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "daemon/client.h"

namespace molen::daemon {
namespace {

constexpr Seconds kOpenPatience{5.0};
// A job waits so long for a reading, and no longer for a daemon that hangs.
constexpr Seconds kReadPatience{0.25};
constexpr Seconds kFirstPause{0.5}, kLongestPause{60.0};  // between two connections
// The meters of one snapshot share an answer.
constexpr Seconds kShared{0.002};

// What all meters of one daemon read through. Thread-safe.
class RemoteBoard {
 public:
  // `period`: the daemon repeats its readings for so long.
  RemoteBoard(std::unique_ptr<Client> client, fs::path socket, Seconds period)
      : client_(std::move(client)), socket_(std::move(socket)), period_(std::max(period, kShared)) {}

  struct Look {
    ReadingEntry entry;
    std::int64_t connections = 0;  // how many there were before this one
  };
  Result<Look> read(const std::string& scope) {
    const std::lock_guard lock(mutex_);
    if (const auto asked = ask(); !asked) return Failure{asked.reason()};
    const auto at = std::find_if(readings_.begin(), readings_.end(), [&](const auto& r) { return r.scope == scope; });
    if (at == readings_.end())
      return Failure{fmt::format("the energy daemon at {} reads {} no more", socket_.string(), scope)};
    Look look{*at, connections_};
    if (look.entry.reading) look.entry.reading->age_s += (now() - asked_).value;
    return look;
  }

 private:
  Result<actuate::Done> connect() {
    if (now() - tried_ < pause_) return Failure{why_};
    auto again = Client::connect(socket_, kReadPatience);
    tried_ = now();  // an attempt may have taken all its time
    why_ = again.reason();
    pause_ = std::min(2.0 * pause_, kLongestPause);
    if (!again) return Failure{why_};
    client_ = std::move(again).value();
    ++connections_;
    return actuate::Done{};
  }

  Result<actuate::Done> ask() {
    if (client_ && now() - asked_ < period_) return actuate::Done{};
    if (!client_)
      if (auto connected = connect(); !connected) return connected;
    // An answer that was late before may be there by now. If it is not, nobody waits again.
    const bool late = waits_;
    if (!late) {
      sent_ = now();
      if (const auto begun = client_->begin({Request::Kind::kRead}, kReadPatience); !begun) return fail(begun.reason());
      waits_ = true;
    }
    auto answer = client_->finish(Answer::Kind::kReadings, late ? Seconds(0) : kReadPatience);
    if (!answer)
      return Failure{fmt::format("the energy daemon at {} has not answered for {:.3g} s", socket_.string(),
                                 (now() - sent_).value)};
    waits_ = false;
    if (!answer->ok()) return fail(answer->reason());
    readings_ = std::move(*answer).value().readings;
    // A late answer is as old as its request, at most.
    asked_ = late ? sent_ : now();
    pause_ = kFirstPause;
    return actuate::Done{};
  }

  Failure fail(const std::string& why) {
    why_ = why;
    if (!client_->lost().empty()) {
      client_.reset();
      waits_ = false;
    }
    return Failure{why_};
  }

  std::mutex mutex_;
  std::unique_ptr<Client> client_;
  const fs::path socket_;
  const Seconds period_;
  std::vector<ReadingEntry> readings_;
  Seconds asked_{-1e9}, tried_{-1e9}, sent_{-1e9};
  Seconds pause_ = kFirstPause;
  bool waits_ = false;  // for the answer to a request
  std::string why_;
  std::int64_t connections_ = 0;
};

class RemoteMeter : public energy::Meter {
 public:
  RemoteMeter(energy::MeterInfo info, std::shared_ptr<RemoteBoard> board)
      : Meter(std::move(info)), board_(std::move(board)) {}

  Result<energy::Reading> read() override {
    const auto look = board_->read(info().scope);
    if (!look) return Failure{look.reason()};
    const ReadingEntry& entry = look.value().entry;
    if (!entry.reading) return Failure{entry.reason};
    const energy::Reading& there = *entry.reading;
    // Another daemon counts from its own start: the energy in between is unknown.
    if (!start_ || look.value().connections != connections_) {
      if (start_) before_ = last_, ++lost_;
      connections_ = look.value().connections;
      start_ = there;
    }
    if (there.total < start_->total || there.ticks < start_->ticks)
      return Failure{fmt::format("the counter of the energy daemon went back from {} J to {} J", start_->total.value,
                                 there.total.value)};
    energy::Reading reading = there;
    reading.total = before_.total + (there.total - start_->total);
    reading.ticks = before_.ticks + (there.ticks - start_->ticks);
    reading.gaps = there.gaps + lost_;
    last_ = reading;
    return reading;
  }

 private:
  std::shared_ptr<RemoteBoard> board_;
  std::optional<energy::Reading> start_;  // of this connection
  energy::Reading before_, last_;         // what this meter has read up to this connection, and up to now
  std::int64_t connections_ = 0, lost_ = 0;
};

bool of_gpu(const std::string& scope) {
  return scope.starts_with("gpu") || scope.starts_with("superchip");
}

}  // namespace

energy::Meters open_meters(const fs::path& socket) {
  energy::Meters found;
  const auto refuse = [&](const std::string& why) { found.unavailable.push_back({"daemon", "node", why}); };
  auto client = Client::connect(socket, kOpenPatience);
  if (!client) return refuse(client.reason()), std::move(found);
  const auto answer = client.value()->ask({Request::Kind::kList}, Answer::Kind::kListing, Seconds(30));
  if (!answer) return refuse(answer.reason()), std::move(found);
  Seconds period{1e9};
  for (const MeterEntry& m : answer.value().listing.meters)
    if (!of_gpu(m.scope)) period = std::min(period, Seconds(m.changes_every_s));
  const auto board = std::make_shared<RemoteBoard>(std::move(client).value(), socket, period);
  for (const MeterEntry& m : answer.value().listing.meters) {
    if (of_gpu(m.scope)) continue;
    energy::MeterInfo info;
    info.name = "daemon";
    info.scope = m.scope;
    info.source = m.source;
    info.detail = fmt::format("{} at {}: {}", m.meter, socket.string(), m.detail);
    info.joules_per_tick = m.joules_per_tick;
    info.changes_every = Seconds(m.changes_every_s);
    found.meters.push_back(std::make_unique<RemoteMeter>(std::move(info), board));
  }
  if (found.meters.empty())
    refuse(fmt::format("the energy daemon at {} has no meters but those of GPUs", socket.string()));
  return found;
}

energy::Meters open_meters_here() {
  const auto socket = socket_here();
  return socket ? open_meters(*socket) : energy::Meters{};
}

}  // namespace molen::daemon
