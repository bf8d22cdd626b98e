#include <algorithm>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "daemon/client.h"

namespace molen::daemon {
namespace {

constexpr Seconds kMeterPatience{5.0}, kBetweenConnections{5.0};
// The meters of one snapshot share an answer.
constexpr Seconds kShared{0.002};

// What all meters of one daemon read through. Thread-safe.
class RemoteBoard {
 public:
  RemoteBoard(std::unique_ptr<Client> client, fs::path socket)
      : client_(std::move(client)), socket_(std::move(socket)) {}

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
  Result<actuate::Done> ask() {
    if (client_ && now() - asked_ < kShared) return actuate::Done{};
    if (!client_ && now() - tried_ < kBetweenConnections) return Failure{why_};
    if (!client_) {
      tried_ = now();
      auto again = Client::connect(socket_, kMeterPatience);
      why_ = again.reason();
      if (!again) return Failure{why_};
      client_ = std::move(again).value();
      ++connections_;
    }
    auto answer = client_->ask({Request::Kind::kRead}, Answer::Kind::kReadings, kMeterPatience);
    if (!answer) {
      why_ = answer.reason();
      if (!client_->lost().empty()) client_.reset();
      return Failure{why_};
    }
    readings_ = std::move(answer).value().readings;
    asked_ = now();
    return actuate::Done{};
  }

  std::mutex mutex_;
  std::unique_ptr<Client> client_;
  const fs::path socket_;
  std::vector<ReadingEntry> readings_;
  Seconds asked_{-1e9}, tried_{-1e9};
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
  auto client = Client::connect(socket, kMeterPatience);
  if (!client) return refuse(client.reason()), std::move(found);
  const auto answer = client.value()->ask({Request::Kind::kList}, Answer::Kind::kListing, Seconds(30));
  if (!answer) return refuse(answer.reason()), std::move(found);
  const auto board = std::make_shared<RemoteBoard>(std::move(client).value(), socket);
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
