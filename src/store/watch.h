// A rank's heartbeat, and its watch over other ranks (docs/formats/flight.md). There are two threads: one writes
// heartbeats into this rank's flight record; the other reads the records of some other ranks. When a rank is dead,
// stopped or hung, the second thread sees to it that one rank writes runs/NAME/flight/report-ATTEMPT.txt. Ranks
// exchange only files here, so this works when communication does not.
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
  std::optional<Seconds> hang_timeout;  // nullopt: max(3 x the median step, 30 s)
  std::chrono::milliseconds beat{250};  // time between heartbeats, and between looks at other ranks
  // Ranks whose records this rank reads while all is well (peers_of); all ranks of a small job.
  std::vector<int> peers;
  bool several_hosts = false;  // records must reach a shared file system
};

struct Alarm {
  std::string summary;  // one sentence
  std::string report;   // the text of the file
  fs::path file;
  bool writer = false;  // this rank wrote the report; only this rank prints the summary
};

class Watch {
 public:
  // `writer` is this rank's record, `identity` the identity in it. The thread that looks at other ranks calls
  // `on_alarm` once; `on_alarm` may end the process.
  Watch(fs::path directory, FlightWriter& writer, FlightIdentity identity, WatchOptions options, OpTexts ops,
        std::function<void(const Alarm&)> on_alarm);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  struct Peer;
  void beat_loop();
  void look_loop();
  bool pause(std::chrono::milliseconds time);  // returns false when the watch ends
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
  std::set<int> silent_;  // peers that this rank found silent for too long
  std::thread beats_, looks_;
};

// Returns the current limit in seconds: `hang_timeout`, or max(3 x median step, 30 s). Until the first step ends, the
// limit is ten times as long.
double hang_limit_s(std::optional<Seconds> hang_timeout, std::int64_t median_step_ns);

// Returns the part of that limit that may pass before a rank is suspected. The rest is for noticing and confirming, so
// that the report exists within the limit.
double suspect_after_s(double limit_s, std::chrono::milliseconds beat);

// Returns the peers to look at: all ranks of a small job; else the ranks that follow `rank`, in the job and on its
// host. Then some living rank sees every dead rank, host or row of hosts. `hosts` has a key per rank, which is equal
// for ranks of one host.
std::vector<int> peers_of(int rank, const std::vector<std::uint64_t>& hosts);
// Returns whether `hosts`, as above, are of more than one host.
bool several_hosts(const std::vector<std::uint64_t>& hosts);

// Looks twice at all ranks of an attempt, `apart` from each other, and at the processes of those on this host.
std::vector<Sighting> sight(const fs::path& directory, const FlightIdentity& of, std::chrono::milliseconds apart);

}  // namespace molen::store
