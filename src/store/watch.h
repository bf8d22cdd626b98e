// A rank's heartbeat, and its look at the others' (docs/formats/flight.md). Two threads: one beats into this rank's own
// flight record, one reads the records of some other ranks and, where a rank is dead, stopped or hung, has a report
// written: runs/NAME/flight/report-ATTEMPT.txt. Nothing but files passes between ranks, so this works where
// communication does not.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "store/flight.h"
#include "store/flight_report.h"

namespace molen::store {

struct WatchOptions {
  std::optional<Seconds> hang_timeout;  // nothing: max(3 x the median step, 30 s)
  std::chrono::milliseconds beat{250};  // and between looks
  // Ranks whose records this one reads as long as all is well; all of them where that is short.
  std::vector<int> peers;
  bool several_hosts = false;  // records must reach a shared file system
};

struct Alarm {
  std::string summary;  // one sentence
  std::string report;   // the text of the file
  fs::path file;
  bool writer = false;  // this rank wrote it; others leave the word to it
};

class Watch {
 public:
  // `writer` is this rank's record, `identity` what is in it. `on_alarm` is called once, from the looking thread; it
  // may end the process.
  Watch(fs::path directory, FlightWriter& writer, FlightIdentity identity, WatchOptions options, OpTexts ops,
        std::function<void(const Alarm&)> on_alarm);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  struct Peer;
  void beat_loop();
  void look_loop();
  bool pause(std::chrono::milliseconds time);  // false: the end has come
  bool suspect(std::vector<Peer>& peers, double awake_s);
  double limit_s() const;
  std::optional<Judgement> confirm();
  void raise(const Judgement& judgement);

  fs::path directory_;
  FlightWriter& writer_;
  FlightIdentity identity_;
  WatchOptions options_;
  OpTexts ops_;
  std::function<void(const Alarm&)> on_alarm_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::atomic<std::int64_t> idle_ns_{0};
  std::set<int> silent_;  // peers that were silent for too long, as this rank saw it
  std::thread beats_, looks_;
};

// The limit in force: `hang_timeout`, or max(3 x median step, 30 s); ten times as long before the first step's end.
double hang_limit_s(std::optional<Seconds> hang_timeout, std::int64_t median_step_ns);

// As much of that limit as may pass before one suspects: noticing and confirming take the rest, so that the report is
// there within the limit.
double suspect_after_s(double limit_s, std::chrono::milliseconds beat);

// Peers to look at: all of a small job; else the next ranks, and the next ones of the same host (`hosts`: a key per
// rank), so that every dead rank, host or row of hosts is seen by somebody.
std::vector<int> peers_of(int rank, const std::vector<std::uint64_t>& hosts);

// Two looks at all ranks of an attempt, `apart` from each other, with their processes where they are of this host.
std::vector<Sighting> sight(const fs::path& directory, const FlightIdentity& of, std::chrono::milliseconds apart);

}  // namespace molen::store
