// What the meters of a host read last: one memory-mapped file for each attempt and host,
// runs/NAME/energy/attempt-%06d-host-%05d.bin (docs/formats/energy.md). The readings survive SIGKILL, so the next
// attempt knows what this one consumed after its last checkpoint.
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

struct EnergyRingHead {
  std::int64_t attempt = 1, history = 1;
  // The scopes of the job, and what all attempts of this history before this one consumed of each, in J.
  std::vector<std::string> scopes;
  std::vector<double> spent_before_j;
};

class EnergyRing {
 public:
  static constexpr std::uint32_t kReadings = 64;  // that the file keeps
  static constexpr std::size_t kMostScopes = 64;

  // Creates a new file. Throws Error when it cannot, and for more than kMostScopes scopes.
  EnergyRing(const fs::path& file, const EnergyRingHead& head);

  // `joules`: by scope, what this host consumed since the attempt opened its meters; NaN for a scope that this host
  // lacks. `ns`: steady clock. One thread calls it at a time.
  void record(std::int64_t ns, std::span<const double> joules) noexcept;

 private:
  std::size_t scopes_, stride_;
  MappedFile file_;
  std::uint64_t sequence_ = 0;
};

struct HostReadings {
  EnergyRingHead head;
  std::vector<double> last_j;  // by scope, of the newest whole reading; NaN for a scope without one
  bool any = false;            // whether there is a whole reading
};
// Throws UsageError naming `origin` for bytes that are no such file.
HostReadings parse_energy_ring(std::string_view bytes, std::string_view origin);

inline constexpr const char* kEnergyRings = "energy";  // the folder in a run directory
// `rank`: the rank that reads the host's meters.
fs::path energy_ring_file(const fs::path& directory, std::int64_t attempt, int rank);
// Removes the files of earlier attempts, whose sums the files of `attempt` have.
void remove_earlier_rings(const fs::path& directory, std::int64_t attempt);

// What the newest attempt of a directory consumed, and those before it.
struct Consumed {
  std::int64_t attempt = 0, history = 0;
  std::map<std::string, double> attempt_j, spent_j;  // by scope: of that attempt, and of all until its last reading
};
// Returns nullopt when there are no files. Files that cannot be read or that are damaged are named in `problems`, and
// their hosts' readings are missing from the sum.
std::optional<Consumed> read_consumed(const fs::path& directory, std::vector<std::string>& problems);

}  // namespace molen::store
