// The last readings of a host's meters are in one memory-mapped file for each attempt and host,
// runs/NAME/energy/attempt-%06d-host-%05d.bin (docs/formats/energy.md). They survive SIGKILL, so the next attempt knows
// what this one consumed after its last checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "store/mapped_file.h"

namespace molen::store {

struct Consumption {
  std::map<std::string, double> by_scope;  // J
  double total = 0.0;                      // J over the scopes that are counted: a node's, and not those of its parts
  double seconds = 0.0;                    // since meters were opened
};

struct EnergyRingHead {
  std::int64_t attempt = 1, history = 1;
  int hosts = 1;                    // that have such a file
  std::vector<std::string> scopes;  // of this attempt and of those before it
  Consumption spent_before;         // what the attempts of this history before this one consumed, on all hosts
};

class EnergyRing {
 public:
  static constexpr std::uint32_t kReadings = 64;                      // that the file keeps
  static constexpr std::size_t kMostScopes = 64, kLongestScope = 47;  // longest name in bytes

  // Creates a new file, whose head is on disk afterwards. Throws Error when it cannot, for too many scopes and for too
  // long a name.
  EnergyRing(const fs::path& file, const EnergyRingHead& head);

  // `joules`: what this host consumed of each scope since the attempt opened its meters, `seconds` ago; NaN for a scope
  // that it lacks. `total`: the sum over the scopes that this host counts. `ended_at`: the step after which the attempt
  // ended by itself; -1 while it goes on. One thread calls it at a time.
  void record(double seconds, std::span<const double> joules, double total, std::int64_t ended_at = -1) noexcept;
  void sync() noexcept { file_.sync(bytes_); }  // writes all to disk, for readers on other hosts

 private:
  std::size_t scopes_, stride_, bytes_;
  MappedFile file_;
  std::uint64_t sequence_ = 0;
};

struct HostReadings {
  EnergyRingHead head;
  bool any = false;            // whether there is a whole reading; the newest one follows
  std::vector<double> last_j;  // by scope; NaN for a scope without a reading
  double total_j = 0.0, seconds = 0.0;
  std::int64_t ended_at = -1;
};
// Throws UsageError naming `origin` for bytes that are no such file.
HostReadings parse_energy_ring(std::string_view bytes, std::string_view origin);

inline constexpr const char* kEnergyRings = "energy";  // the folder in a run directory
// `rank`: the rank that reads the host's meters.
fs::path energy_ring_file(const fs::path& directory, std::int64_t attempt, int rank);
// Removes the files of earlier attempts, whose sums the files of `attempt` have.
void remove_earlier_rings(const fs::path& directory, std::int64_t attempt);

// The consumption of the newest attempt that has files, and of all attempts until its last reading.
struct Consumed {
  std::int64_t attempt = 0, history = 0;
  Consumption of_attempt, spent;
  std::int64_t ended_at = -1;  // the step after which all its hosts ended by themselves; -1: some did not
};
// Returns nullopt when there are no files. Files that are missing, damaged or cannot be read are named in `problems`,
// and their hosts' readings are missing from the sums.
std::optional<Consumed> read_consumed(const fs::path& directory, std::vector<std::string>& problems);

}  // namespace molen::store
