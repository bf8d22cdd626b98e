// Journals of settings: refused with a UsageError that names the file, or read. What was read is written and read again
// the same, and restoring it on a machine sets nothing beyond what the device permits, nor what is not the journal's.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "actuate/journal.h"
#include "base/error.h"

namespace {

using namespace molen;
using namespace molen::actuate;

void require(bool condition) {
  if (!condition) std::abort();
}

constexpr std::int64_t kMost = 3000000, kSetByJob = 1500000;

// Two processors that a dead job has set.
class Clocks : public Actuator {
 public:
  Clocks() : Actuator(info_of(), {kSetByJob, kSetByJob}) {}
  Result<State> read() const override { return now; }
  State now{kSetByJob, kSetByJob};

 protected:
  Result<Done> write(std::size_t part, std::int64_t value) override {
    require(value > 0 && value <= kMost);
    now.at(part) = value;
    return Done{};
  }

 private:
  static ActuatorInfo info_of() {
    ActuatorInfo info;
    info.id = "cpufreq:cpu-package0";
    info.name = "cpufreq";
    info.scope = "cpu-package0";
    info.parts = {{"policy0", 800000, kMost}, {"policy1", 800000, kMost}};
    return info;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const Journal journal = parse_journal({reinterpret_cast<const char*>(data), size}, "fuzz");
    const std::string text = journal_text(journal);
    require(journal_text(parse_journal(text, "again")) == text);
    Actuators here;
    auto clocks = std::make_unique<Clocks>();
    const Clocks& after = *clocks;
    here.actuators.push_back(std::move(clocks));
    const Restoration done = restore_journal(journal, here);
    require(done.restored >= 0 && done.restored <= 2);
    require((after.now == State{kSetByJob, kSetByJob}) || done.restored > 0);
  } catch (const UsageError& error) {
    require(std::string(error.what()).starts_with("fuzz"));
  }
  return 0;
}
