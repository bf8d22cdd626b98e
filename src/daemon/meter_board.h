// The meters of the node, read once for all peers. A meter is read no more often than `read_every`, whoever asks: fine
// readings of RAPL tell other programs' secrets (PLATYPUS, CVE-2020-8694), and a peer must not load the node.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "daemon/wire.h"
#include "energy/meter.h"

namespace molen::daemon {

// Thread-safe.
class MeterBoard {
 public:
  // `clock`: seconds of a clock that nobody sets.
  MeterBoard(energy::Meters meters, Seconds read_every, std::function<double()> clock);

  std::vector<MeterEntry> meters() const;
  // Returns the last readings, after new ones if those are `read_every` old.
  std::vector<ReadingEntry> read();
  // Reads the meters that would have a gap otherwise, and tells no peer. To be called every `keep_every_s`.
  void keep();
  double keep_every_s() const { return keep_every_s_; }

 private:
  void read_all(double now_s);

  const energy::Meters meters_;
  const double read_every_s_;
  const std::function<double()> clock_;
  double keep_every_s_;
  std::mutex mutex_;
  std::vector<ReadingEntry> last_;
  double read_s_;
  double kept_s_;  // when the meters that would have a gap were read last
};

}  // namespace molen::daemon
