#include "energy/cray.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "base/utf8.h"
#include "energy/counter.h"

namespace molen::energy {
namespace {

// The controller scans the counters at raw_scan_hz, which is 10. One that has stood still for so long has stopped.
constexpr double kStoppedAfterS = 2.0;
constexpr Seconds kCrayChangesEvery{0.1};
constexpr double kCrayTick = 1.0;  // joules
// Meters that are read so closely one after the other get one scan, so that a node and its parts agree.
constexpr double kSameScanS = 0.05;
// A reading of all files takes well under a scan, so that few of them meet the next scan.
constexpr int kTries = 5;

// A line such as "7351238 J 1699000000123456 us": joules, and the time of their measurement by the controller's clock.
struct CounterLine {
  std::uint64_t joules = 0;
  std::optional<std::uint64_t> microseconds;  // absent where the line has none
};

Result<CounterLine> read_counter_line(const fs::path& path) {
  const auto text = read_small(path);
  if (!text) return Failure{text.reason()};
  const std::string_view line = text.value();
  const auto number = [&](std::size_t& at, std::uint64_t& value) {
    const auto parsed = std::from_chars(line.data() + at, line.data() + line.size(), value);
    at = static_cast<std::size_t>(parsed.ptr - line.data());
    return parsed.ec == std::errc();
  };
  CounterLine found;
  std::size_t at = 0;
  std::uint64_t time = 0;
  if (!number(at, found.joules) || !(line.substr(at) == " J" || line.substr(at, 3) == " J "))
    return Failure{fmt::format("{}: '{}' is no number of joules", path.string(), printable(line.substr(0, 40)))};
  at += 3;
  if (at < line.size() && number(at, time)) found.microseconds = time;
  return found;
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

  // Returns the scopes that make up a node with its rest; empty if no rest can be told.
  std::vector<std::string> parts() const {
    if (!totals_.contains("node") || totals_.size() < 2) return {};
    std::vector<std::string> parts;
    for (const auto& [scope, total] : totals_)
      if (scope != "node" && !(scope.starts_with("cpu-package") && totals_.contains("cpu"))) parts.push_back(scope);
    return parts;
  }

  Result<Reading> read(const std::string& scope) {
    const double now_s = clock_(), since = now_s - looked_s_;
    if (!state_ || since < 0 || since >= kSameScanS) state_ = look();
    if (!state_->ok()) return Failure{state_->reason()};
    const Result<Reading>& found = readings_.at(scope);
    if (!found) return found;
    Reading reading = found.value();
    reading.age_s = std::max(0.0, now_s - looked_s_);
    return reading;
  }

 private:
  // Reads all files of one scan, if there is a new one.
  Result<bool> look() {
    for (int i = 0; i < kTries; ++i) {
      const auto before = read_count(root_ / "freshness"), startup = read_count(root_ / "startup");
      const double time = looked_s_ = clock_();
      if (!before) return Failure{before.reason()};
      if (!startup) return Failure{startup.reason()};
      if (freshness_ == before.value() && startup_ == startup.value()) {
        if (time - changed_s_ <= kStoppedAfterS) return true;
        return Failure{fmt::format("{} has not been updated for {:.1f} s", root_.string(), time - changed_s_)};
      }
      std::map<std::string, Result<CounterLine>> lines;
      for (const Counter& c : counters_) lines.emplace(c.scope, read_counter_line(c.file));
      const auto after = read_count(root_ / "freshness");
      if (!after) return Failure{after.reason()};
      if (after.value() != before.value()) continue;
      if (startup_ && *startup_ != startup.value())  // the energy until then is unknown, whether a file is there or not
        for (auto& [scope, total] : totals_) total.restart();
      for (const auto& [scope, line] : lines) readings_.insert_or_assign(scope, reading_of(scope, line, time));
      if (!parts().empty()) readings_.insert_or_assign("rest", rest());
      freshness_ = before.value();
      startup_ = startup.value();
      changed_s_ = time;
      return true;
    }
    return Failure{fmt::format("{} changed while it was read, {} times", root_.string(), kTries)};
  }

  Result<Reading> reading_of(const std::string& scope, const Result<CounterLine>& line, double time) {
    if (!line) return Failure{line.reason()};
    Measured& last = measured_[scope];
    const bool measured = !line.value().microseconds || line.value().microseconds != last.microseconds;
    if (measured) last = {line.value().microseconds, time};
    // One file may stand still in scans that go on.
    if (!measured && time - last.time_s > kStoppedAfterS)
      return Failure{
          fmt::format("{} in {} has not been measured for {:.1f} s", scope, root_.string(), time - last.time_s)};
    return totals_.at(scope).add(line.value().joules, time, kCrayTick);
  }

  // The joules of the node less those of its parts, of one scan. Whole joules are subtracted, so the difference may
  // fall by a few; a total never falls.
  Result<Reading> rest() {
    const Result<Reading>& node = readings_.at("node");
    if (!node) return Failure{node.reason()};
    Reading left = node.value();
    for (const std::string& part : parts()) {
      const Result<Reading>& counted = readings_.at(part);
      if (!counted) return Failure{counted.reason()};
      left.total -= counted.value().total;
      left.ticks -= counted.value().ticks;
      left.gaps += counted.value().gaps;
    }
    if (left.ticks > rest_.ticks) rest_ = left;
    rest_.gaps = left.gaps;
    return rest_;
  }

  struct Measured {
    std::optional<std::uint64_t> microseconds;  // by the controller
    double time_s = 0.0;                        // by this machine, when it was first seen
  };
  fs::path root_;
  std::vector<Counter> counters_;
  std::function<double()> clock_;
  std::map<std::string, Unwrapper> totals_;
  std::map<std::string, Result<Reading>> readings_;
  std::optional<std::uint64_t> freshness_, startup_;
  std::map<std::string, Measured> measured_;
  Reading rest_;
  std::optional<Result<bool>> state_;        // of the last look, absent before the first
  double changed_s_ = 0.0, looked_s_ = 0.0;  // when the counters changed, and when they were last looked at
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
  if (const auto parts = scan->parts(); !parts.empty())
    counters.push_back({"rest", fmt::format("{} less {}", (root / "energy").string(), fmt::join(parts, ", "))});
  for (const Counter& c : counters) {
    auto meter = std::make_unique<CrayMeter>(
        MeterInfo{"cray", c.scope, Source::kCounter, c.file.string(), Seconds(0), true, kCrayTick, kCrayChangesEvery},
        scan);
    auto first = meter->read();
    for (int i = 1; i < kTries && !first; ++i) {  // a scan that ends now must not cost the run its meter
      machine.sleep(kSameScanS);
      first = meter->read();
    }
    if (!first)
      found.unavailable.push_back({"cray", c.scope, first.reason()});
    else
      found.meters.push_back(std::move(meter));
  }
  return found;
}

}  // namespace molen::energy
