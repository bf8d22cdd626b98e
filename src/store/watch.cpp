#include "store/watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace molen::store {
namespace {

using std::chrono::milliseconds;

// Creates the file with this text, as far as the disk has room; returns false when it exists already or cannot be
// created.
bool create(const fs::path& path, std::string_view text) {
  try {
    File file = File::create_new(path);
    try {
      file.write(text);
      file.sync();
    } catch (const IoError&) {  // a partial text says more than none
    }
    return true;
  } catch (const IoError&) {
    return false;
  }
}

std::uint64_t progress_of(const FlightState& f) {
  std::uint64_t written = 0;
  for (const FlightStream& stream : f.streams) written += stream.written;
  return written + static_cast<std::uint64_t>(f.step) * 8 + static_cast<std::uint64_t>(f.phase);
}

bool lives(RankState s) {
  return s == RankState::kBusy || s == RankState::kWaiting || s == RankState::kBetween || s == RankState::kHung ||
         s == RankState::kRunning;
}

}  // namespace

struct Watch::Peer {
  int rank = 0;
  std::uint64_t beat = 0;
  double last_beat_s = 0.0;  // on the clock of the thread that looks at other ranks
};

double hang_limit_s(std::optional<Seconds> hang_timeout, std::int64_t median_step_ns) {
  const double median = static_cast<double>(median_step_ns) * 1e-9;
  const double limit = hang_timeout ? hang_timeout->value : std::max(3.0 * median, 30.0);
  return median_step_ns > 0 ? limit : 10.0 * limit;
}

double suspect_after_s(double limit_s, milliseconds beat) {
  return limit_s - std::min(0.1 * limit_s, 6e-3 * static_cast<double>(beat.count()));
}

bool several_hosts(const std::vector<std::uint64_t>& hosts) {
  return std::any_of(hosts.begin(), hosts.end(), [&](std::uint64_t h) { return h != hosts[0]; });
}

std::vector<int> peers_of(int rank, const std::vector<std::uint64_t>& hosts) {
  constexpr int kAll = 16, kNext = 2;
  const int ranks = static_cast<int>(hosts.size());
  std::set<int> peers;
  for (int i = 1; i < ranks && (ranks <= kAll || i <= kNext); ++i) peers.insert((rank + i) % ranks);
  for (int i = 1, found = 0; i < ranks && found < kNext; ++i) {
    const int other = (rank + i) % ranks;
    if (hosts[static_cast<std::size_t>(other)] != hosts[static_cast<std::size_t>(rank)]) continue;
    peers.insert(other);
    ++found;
  }
  return {peers.begin(), peers.end()};
}

std::vector<Sighting> sight(const fs::path& directory, const FlightIdentity& of, milliseconds apart) {
  const FlightIdentity here = identify_process({});
  const auto look = [&](int rank) -> std::optional<FlightState> {
    auto head = read_flight_head(flight_file(directory, rank));
    if (!head || head.value().identity.job != of.job) return std::nullopt;
    return std::move(head).value();
  };
  std::vector<Sighting> all;
  std::vector<std::optional<FlightState>> before;
  before.reserve(static_cast<std::size_t>(of.ranks));
  for (int r = 0; r < of.ranks; ++r) before.push_back(look(r));
  std::this_thread::sleep_for(apart);
  for (int r = 0; r < of.ranks; ++r) {
    Sighting s;
    s.rank = r;
    s.flight = look(r);
    const auto& first = before[static_cast<std::size_t>(r)];
    if (s.flight && first) {
      s.process = process_of(s.flight->identity, here);
      s.beats = s.flight->beat != first->beat;
      s.advances = progress_of(*s.flight) != progress_of(*first);
    }
    all.push_back(std::move(s));
  }
  return all;
}

Watch::Watch(fs::path directory, FlightWriter& writer, FlightIdentity identity, WatchOptions options, OpTexts ops,
             std::function<void(const Alarm&)> on_alarm)
    : directory_(std::move(directory)),
      writer_(writer),
      identity_(std::move(identity)),
      options_(std::move(options)),
      ops_(std::move(ops)),
      on_alarm_(std::move(on_alarm)),
      beats_([this] { beat_loop(); }),
      looks_([this] { look_loop(); }) {}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  beats_.join();
  looks_.join();
}

bool Watch::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return ended_; });
}

// Between two heartbeats the `idle` clock advances by at most two beat periods. So the time in which this process was
// stopped does not count as idle.
void Watch::beat_loop() {
  const std::int64_t most = 2'000'000 * options_.beat.count();
  std::uint64_t progress = writer_.progress();
  std::int64_t last = now_ns(), idle = 0;
  do {
    const std::int64_t now = now_ns();
    const std::uint64_t is = writer_.progress();
    idle = is == progress ? idle + std::min(now - last, most) : 0;
    progress = is;
    last = now;
    idle_ns_.store(idle);
    writer_.beat(idle, now, static_cast<std::int64_t>(wall_time() * 1e9));
    if (options_.several_hosts) writer_.sync();
  } while (pause(options_.beat));
}

double Watch::limit_s() const {
  return suspect_after_s(hang_limit_s(options_.hang_timeout, writer_.median_step()), options_.beat);
}

void Watch::look_loop() {
  std::vector<Peer> peers;
  peers.reserve(options_.peers.size());
  for (const int rank : options_.peers) peers.push_back({rank, 0, 0.0});
  double awake_s = 0.0;
  std::int64_t last = now_ns();
  while (pause(options_.beat)) {
    const std::int64_t now = now_ns();
    awake_s += std::min(static_cast<double>(now - last) * 1e-9, 2e-3 * static_cast<double>(options_.beat.count()));
    last = now;
    try {
      if (!suspect(peers, awake_s)) continue;
      if (const auto judgement = confirm()) return raise(*judgement);
    } catch (const std::exception&) {
      // Out of memory or of file descriptors: look again later. The watch must not end the run for a trouble of its
      // own.
    }
  }
}

// Returns whether to look at all ranks: this rank or a peer does not advance, or another rank reports an alarm.
bool Watch::suspect(std::vector<Peer>& peers, double awake_s) {
  bool found = false;
  std::set<int> silent;
  const double limit = limit_s();
  for (Peer& peer : peers) {
    const auto head = read_flight_head(flight_file(directory_, peer.rank));
    if (!head || head.value().identity.job != identity_.job) continue;
    const FlightState& f = head.value();
    if (f.beat != peer.beat || f.end != FlightEnd::kRunning) {
      peer.beat = f.beat;
      peer.last_beat_s = awake_s;
    }
    if (f.end != FlightEnd::kRunning) continue;
    if (process_of(f.identity, identity_) == ProcessState::kDead) {
      writer_.saw_dead(peer.rank);
      found = true;
    }
    if (awake_s - peer.last_beat_s > limit) {
      silent.insert(peer.rank);
      found = true;
    }
  }
  silent_ = std::move(silent);
  const bool hangs = writer_.phase() == FlightPhase::kTrain && static_cast<double>(idle_ns_.load()) * 1e-9 > limit;
  return found || hangs || fs::exists(directory_ / fmt::format("alarm-{}", identity_.job));
}

// Looks twice at all ranks. Returns nullopt when the suspicion does not hold: the others wait rightly for a rank that
// advances, validates or writes a checkpoint.
std::optional<Judgement> Watch::confirm() {
  Judgement j = judge(sight(directory_, identity_, options_.beat * 5 / 2), ops_);
  bool dead = false, silent = false, all_idle = true,
       marked = fs::exists(directory_ / fmt::format("alarm-{}", identity_.job));
  const double limit = limit_s();
  for (const auto& r : j.ranks) {
    dead = dead || r.state == RankState::kDead;
    silent =
        silent || ((r.state == RankState::kSilent || r.state == RankState::kStopped) && silent_.contains(r.seen.rank));
    if (!lives(r.state)) continue;
    const bool idles =
        r.seen.flight->phase == FlightPhase::kTrain && static_cast<double>(r.seen.flight->idle_ns) * 1e-9 > limit;
    all_idle = all_idle && idles;
  }
  if (!dead && !silent && !all_idle && !marked) return std::nullopt;
  return j;
}

void Watch::raise(const Judgement& j) {
  Alarm alarm;
  alarm.summary = j.summary;
  alarm.file = directory_ / fmt::format("report-{}.txt", identity_.attempt);
  alarm.report = to_text(j, ops_);
  int lowest = identity_.rank;
  for (const auto& r : j.ranks)
    if (lives(r.state)) {
      lowest = r.seen.rank;
      break;
    }
  if (lowest != identity_.rank) {
    // The lowest living rank writes the report; this file tells it to. If it does not within 12 beats, this rank writes
    // it.
    create(directory_ / fmt::format("alarm-{}", identity_.job), "");
    for (int i = 0; i < 12 && !fs::exists(alarm.file); ++i)
      if (!pause(options_.beat)) return;
  }
  alarm.writer = create(alarm.file, fmt::format("{}\nattempt {}, written by rank {}\n\n{}", utc_timestamp(wall_time()),
                                                identity_.attempt, identity_.rank, alarm.report)) ||
                 !fs::exists(alarm.file);  // no room for it: the summary must still be reported
  writer_.saw_dead(j.culprits.empty() ? -1 : j.culprits.front());
  writer_.leave(FlightEnd::kAlarmed);
  on_alarm_(alarm);
}

}  // namespace molen::store
