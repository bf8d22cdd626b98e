#include "energy/cray.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "energy/counter.h"

namespace molen::energy {
namespace {

// The controller scans the counters at raw_scan_hz, which is 10. One that has stood still for so long has stopped.
constexpr double kStoppedAfterS = 2.0;
// Meters that are read so closely one after the other get one scan, so that a node and its parts agree.
constexpr double kSameScanS = 0.05;
// A reading of all files takes well under a scan, so that few of them meet the next scan.
constexpr int kTries = 5;

// Returns the joules of a line such as "7351238 J 1699000000123456 us".
Result<std::uint64_t> read_joules(const fs::path& path) {
  const auto text = read_small(path);
  if (!text) return Failure{text.reason()};
  const std::string& line = text.value();
  std::uint64_t joules = 0;
  const auto parsed = std::from_chars(line.data(), line.data() + line.size(), joules);
  const std::string_view unit = std::string_view(line).substr(static_cast<std::size_t>(parsed.ptr - line.data()));
  if (parsed.ec != std::errc() || !(unit == " J" || unit.starts_with(" J ")))
    return Failure{fmt::format("{}: '{}' is no number of joules", path.string(), line)};
  return joules;
}

struct Counter {
  std::string scope;
  fs::path file;
};

// Returns the scope of a file; "" for another file.
std::string scope_of_counter(const std::string& file) {
  if (file == "energy") return "node";
  if (file == "cpu_energy") return "cpu";
  if (file == "memory_energy") return "dram";
  for (const auto& [prefix, scope] : {std::pair{"cpu", "cpu-package"}, {"accel", "accel"}}) {
    const std::string_view before = prefix, after = "_energy";
    if (file.size() != before.size() + 1 + after.size() || file.rfind(before, 0) != 0 || !file.ends_with(after))
      continue;
    const char digit = file[before.size()];
    if (digit >= '0' && digit <= '9') return std::string(scope) + digit;
  }
  return "";
}

// All counters of one scan, shared by the meters of a node.
class Scan {
 public:
  Scan(fs::path root, std::vector<Counter> counters, std::function<double()> clock)
      : root_(std::move(root)), counters_(std::move(counters)), clock_(std::move(clock)) {
    for (const Counter& c : counters_) totals_.emplace(c.scope, Unwrapper(0, 0));
  }

  Result<Reading> read(const std::string& scope) {
    if (const auto refreshed = refresh(); !refreshed) return Failure{refreshed.reason()};
    return readings_.at(scope);
  }

 private:
  Result<bool> refresh() {
    if (freshness_ && clock_() - read_s_ < kSameScanS) return true;
    for (int i = 0; i < kTries; ++i) {
      const auto before = read_count(root_ / "freshness"), startup = read_count(root_ / "startup");
      if (!before) return Failure{before.reason()};
      if (!startup) return Failure{startup.reason()};
      const double time = clock_();
      if (freshness_ == before.value() && startup_ == startup.value()) {
        read_s_ = time;
        if (time - changed_s_ <= kStoppedAfterS) return true;
        freshness_.reset();
        return Failure{fmt::format("{} has not been updated for {:.1f} s", root_.string(), time - changed_s_)};
      }
      std::map<std::string, Result<std::uint64_t>> joules;
      for (const Counter& c : counters_) joules.emplace(c.scope, read_joules(c.file));
      const auto after = read_count(root_ / "freshness");
      if (!after) return Failure{after.reason()};
      if (after.value() != before.value()) continue;
      take(joules, startup.value(), time);
      freshness_ = before.value();
      startup_ = startup.value();
      changed_s_ = read_s_ = time;
      return true;
    }
    return Failure{fmt::format("{} changed while it was read, {} times", root_.string(), kTries)};
  }

  void take(const std::map<std::string, Result<std::uint64_t>>& joules, std::uint64_t startup, double time) {
    const bool restarted = startup_ && *startup_ != startup;
    for (const auto& [scope, value] : joules) {
      Unwrapper& total = totals_.at(scope);
      if (!value) {
        readings_.insert_or_assign(scope, Failure{value.reason()});
      } else if (restarted) {
        total.restart(value.value(), time);
        readings_.insert_or_assign(scope,
                                   Failure{fmt::format("the counters of {} have started again", root_.string())});
      } else {
        readings_.insert_or_assign(scope, total.add(value.value(), time, 1.0));
      }
    }
  }

  fs::path root_;
  std::vector<Counter> counters_;
  std::function<double()> clock_;
  std::map<std::string, Unwrapper> totals_;
  std::map<std::string, Result<Reading>> readings_;
  std::optional<std::uint64_t> freshness_, startup_;
  double changed_s_ = 0.0, read_s_ = 0.0;  // when the counters changed, and when they were last looked at
};

class CrayMeter : public Meter {
 public:
  CrayMeter(MeterInfo info, std::shared_ptr<Scan> scan) : Meter(std::move(info)), scan_(std::move(scan)) {}
  Result<Reading> read() override { return scan_->read(info().scope); }

 private:
  std::shared_ptr<Scan> scan_;
};

}  // namespace

Meters open_cray(const Machine& machine) {
  Meters found;
  const fs::path root = machine.sys / "cray/pm_counters";
  std::vector<Counter> counters;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error))
    if (std::string scope = scope_of_counter(it->path().filename().string()); !scope.empty())
      counters.push_back({std::move(scope), it->path()});
  if (counters.empty()) {
    found.unavailable.push_back(
        {"cray", "node", fmt::format("no counters in {}; this is no Cray node", root.string())});
    return found;
  }
  std::sort(counters.begin(), counters.end(), [](const auto& a, const auto& b) { return a.scope < b.scope; });
  const auto scan = std::make_shared<Scan>(root, counters, machine.clock);
  for (const Counter& c : counters) {
    auto meter = std::make_unique<CrayMeter>(
        MeterInfo{"cray", c.scope, Source::kCounter, c.file.string(), Seconds(0), true}, scan);
    if (const auto first = meter->read(); !first)
      found.unavailable.push_back({"cray", c.scope, first.reason()});
    else
      found.meters.push_back(std::move(meter));
  }
  return found;
}

}  // namespace molen::energy
