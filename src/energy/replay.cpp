#include "energy/replay.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/json.h"

namespace molen::energy {
namespace {

// A recording is a counter with small ticks, which changes all the time.
constexpr double kReplayTick = 1e-6;  // joules
constexpr Seconds kReplayChangesEvery{1e-6};

struct Point {
  double time_s = 0;
  std::optional<double> joules;
};

class ReplayMeter : public Meter {
 public:
  ReplayMeter(MeterInfo info, std::vector<Point> points, std::function<double()> clock, ReplayTime time)
      : Meter(std::move(info)),
        points_(std::move(points)),
        clock_(std::move(clock)),
        from_s_(time == ReplayTime::kClock ? 0.0 : points_.front().time_s),
        opened_s_(time == ReplayTime::kClock ? 0.0 : clock_()) {}

  Result<Reading> read() override {
    const double t = from_s_ + (clock_() - opened_s_);
    if (t < points_.front().time_s)
      return Failure{fmt::format("{}: the recording begins at {} s", info().detail, points_.front().time_s)};
    const auto after = std::find_if(points_.begin(), points_.end(), [&](const Point& p) { return p.time_s >= t; });
    if (after == points_.end())
      return Failure{fmt::format("{}: the recording ends at {} s", info().detail, points_.back().time_s)};
    const auto before = after == points_.begin() || after->time_s == t ? after : after - 1;
    const std::optional<double> from = before->joules, to = after->joules;
    if (!from || !to) return Failure{fmt::format("{}: nothing was recorded at {:.3f} s", info().detail, t)};
    const double span = after->time_s - before->time_s;
    const double share = span > 0 ? (t - before->time_s) / span : 0.0;
    const Joules total(*from + share * (*to - *from));
    return Reading{total, 0, std::llround(total.value / kReplayTick)};
  }

 private:
  std::vector<Point> points_;
  std::function<double()> clock_;
  double from_s_, opened_s_;  // a time of the recording, and the clock's at that time
};

using Recording = std::map<std::string, std::vector<Point>>;

void read_line(const std::string& text, const std::string& origin, Recording& recording, double& last_time) {
  const Json line = parse_json(text, origin);
  const Json &time = json_member(line, "time_s", origin), &energy = json_member(line, "energy_j", origin);
  if (!time.is_number() || !std::isfinite(time.get<double>())) throw UsageError("{}: time_s is no number", origin);
  if (!energy.is_object() || energy.empty()) throw UsageError("{}: energy_j must name at least one scope", origin);
  const double t = time.get<double>();
  if (!(t > last_time)) throw UsageError("{}: time_s {} is not after {}", origin, t, last_time);
  if (!recording.empty() && energy.size() != recording.size())
    throw UsageError("{}: energy_j has {} scopes, the lines before have {}", origin, energy.size(), recording.size());
  const bool first = recording.empty();
  last_time = t;
  for (const auto& [scope, joules] : energy.items()) {
    if (!first && !recording.contains(scope))
      throw UsageError("{}: energy_j: scope '{}' is not in the lines before", origin, scope);
    auto& points = recording[scope];
    Point p{t, std::nullopt};
    if (!joules.is_null()) {
      if (!joules.is_number() || !std::isfinite(joules.get<double>()) || joules.get<double>() < 0)
        throw UsageError("{}: energy_j: {} must be joules >= 0 or null", origin, scope);
      const double now = joules.get<double>();
      p.joules = now;
      const auto earlier =
          std::find_if(points.rbegin(), points.rend(), [](const Point& q) { return q.joules.has_value(); });
      if (const double most = earlier != points.rend() ? earlier->joules.value_or(0.0) : 0.0; most > now)
        throw UsageError("{}: energy_j: {} goes back from {} to {}", origin, scope, most, now);
    }
    points.push_back(p);
  }
}

}  // namespace

Meters open_replay(const Machine& machine, const fs::path& file, ReplayTime time) {
  return parse_replay(machine, read_file(file, std::int64_t{1} << 30), file.string(), time);
}

Meters parse_replay(const Machine& machine, const std::string& text, const std::string& origin, ReplayTime time) {
  Recording recording;
  double last_time = -std::numeric_limits<double>::infinity();
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    ++number;
    if (end > at) read_line(text.substr(at, end - at), fmt::format("{}:{}", origin, number), recording, last_time);
    at = end + 1;
  }
  if (recording.empty()) throw UsageError("{}: no readings", origin);
  Meters found;
  for (auto& [scope, points] : recording)
    found.meters.push_back(std::make_unique<ReplayMeter>(
        MeterInfo{"replay", scope, Source::kCounter, origin, Seconds(0), true, kReplayTick, kReplayChangesEvery},
        std::move(points), machine.clock, time));
  return found;
}

}  // namespace molen::energy
