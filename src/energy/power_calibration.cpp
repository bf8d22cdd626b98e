#include "energy/power_calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/clock.h"
#include "energy/accountant.h"
#include "energy/cpu_busy.h"
#include "energy/json_members.h"
#include "energy/scope.h"

namespace molen::energy {
namespace {

constexpr int kFormat = 1;

// One measurement: watts by scope while processors were busy for this share of the time.
struct Measured {
  double utilisation = 0;
  std::map<std::string, double> watts;
  std::map<std::string, std::string> reasons;  // of scopes without a reading
};

template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw Error("{}", result.reason());
  return std::move(result).value();
}

class Measuring {
 public:
  Measuring(Meters meters, const Machine& machine, std::vector<int> cpus)
      : machine_(machine), accountant_(std::move(meters)), cpus_(std::move(cpus)) {}

  Measured measure(double seconds) {
    accountant_.begin_step();
    const CpuTimes before = value_or_throw(read_cpu_times(machine_, cpus_));
    const double begin_s = machine_.clock();
    machine_.sleep(seconds);
    const StepEnergy energy = accountant_.end_step();
    const CpuTimes after = value_or_throw(read_cpu_times(machine_, cpus_));
    const double took_s = machine_.clock() - begin_s;
    Measured m;
    if (!(after.all > before.all && took_s > 0)) throw Error("the kernel counted no time of the processors");
    m.utilisation = std::clamp((after.busy - before.busy) / (after.all - before.all), 0.0, 1.0);
    for (const auto& [scope, e] : energy.scopes) {
      if (e.joules)
        m.watts[scope] = *e.joules / took_s;
      else
        m.reasons[scope] = e.reason;
    }
    return m;
  }
  const Meters& meters() const { return accountant_.meters(); }

 private:
  Machine machine_;
  Accountant accountant_;
  std::vector<int> cpus_;
};

// Returns a point of each load in which all measurements have the scope; `lacking` gets the reason where they do not.
std::vector<PowerPoint> points_of(const std::map<int, std::vector<Measured>>& loads, const std::string& scope,
                                  std::string& lacking) {
  std::vector<PowerPoint> points;
  for (const auto& [busy, measured] : loads) {
    PowerPoint p{0, {0, 1e300, 0}};
    for (const Measured& m : measured) {
      const auto watts = m.watts.find(scope);
      if (watts == m.watts.end()) {
        const auto why = m.reasons.find(scope);
        lacking = why == m.reasons.end() ? "no reading" : why->second;
        return {};
      }
      const double share = 1.0 / static_cast<double>(measured.size());
      p.utilisation += share * m.utilisation, p.watts.value += share * watts->second;
      p.watts.least = std::min(p.watts.least, watts->second), p.watts.most = std::max(p.watts.most, watts->second);
    }
    p.watts.value = std::clamp(p.watts.value, p.watts.least, p.watts.most);  // rounding of the mean
    points.push_back(p);
  }
  // Other work on the machine may make one load as busy as the next one.
  std::ranges::sort(points, {}, &PowerPoint::utilisation);
  for (std::size_t i = 1; i < points.size();) {
    if (points[i].utilisation > points[i - 1].utilisation) {
      ++i;
      continue;
    }
    Estimate& w = points[i - 1].watts;
    const Estimate& same = points[i].watts;
    w = {0.5 * (w.value + same.value), std::min(w.least, same.least), std::max(w.most, same.most)};
    points.erase(points.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return points;
}

double mean_utilisation(const std::vector<Measured>& measured) {
  double sum = 0;
  for (const Measured& m : measured) sum += m.utilisation;
  return sum / static_cast<double>(measured.size());
}

// Figures of an idle and of a busy machine need both.
void require_alone(const std::map<int, std::vector<Measured>>& loads) {
  constexpr double kMostIdle = 0.2, kLeastBusy = 0.8;
  const double idle = mean_utilisation(loads.begin()->second), busy = mean_utilisation(loads.rbegin()->second);
  if (idle > kMostIdle || busy < kLeastBusy)
    throw Error(
        "the processors were busy for {:.3g} of the time without a load and {:.3g} with all of them loaded; a "
        "calibration needs {} at most and {} at least, so end other work on this machine",
        idle, busy, kMostIdle, kLeastBusy);
}

// Returns whether the power of a scope follows from the processors alone.
bool is_of_host(const std::string& scope, bool gpus) {
  const auto parts = parts_of(scope);
  return scope == "node" ? !gpus : !parts.empty() && !parts.contains("gpu");
}

std::set<int> loads_of(int cpus) {
  std::set<int> loads;
  for (int quarters = 0; quarters <= 4; ++quarters) loads.insert(quarters * cpus / 4);
  return loads;
}

}  // namespace

PowerCalibration calibrate_power(Meters meters, const Machine& machine, const CalibrationLoads& loads, bool gpus) {
  PowerCalibration c;
  c.cpus = value_or_throw(count_cpus(machine));
  const auto allowed = value_or_throw(parse_cpu_list(value_or_throw(allowed_cpus(machine))));
  if (static_cast<int>(allowed.size()) < c.cpus)
    throw Error("this process may use {} of {} processors, and a calibration loads all of them", allowed.size(),
                c.cpus);
  c.processor = processor_of(machine);
  c.created = utc_timestamp(wall_time());
  Measuring measuring(std::move(meters), machine, allowed);
  std::map<int, std::vector<Measured>> measured;
  for (int round = 0; round < loads.rounds; ++round)
    for (const int busy : loads_of(c.cpus)) {
      loads.load(busy);
      machine.sleep(loads.settle_s);
      measured[busy].push_back(measuring.measure(loads.seconds));
      if (loads.tell)
        loads.tell(fmt::format("round {} of {}: {} of {} processors loaded, utilisation {:.3f}", round + 1,
                               loads.rounds, busy, c.cpus, measured[busy].back().utilisation));
    }
  loads.load(0);
  require_alone(measured);
  for (const auto& m : measuring.meters().meters) {
    const MeterInfo& info = m->info();
    if (info.source == Source::kNone || !is_of_host(info.scope, gpus)) continue;
    std::string lacking;
    auto points = points_of(measured, info.scope, lacking);
    if (points.empty())
      c.left_out.push_back(fmt::format("{}: {}", info.scope, lacking));
    else
      c.parts.push_back({info.scope, fmt::format("{}: {}", info.name, info.detail), name_of(info.source), points});
  }
  if (c.parts.empty())
    throw Error("no meter of processors could be read at each load{}{}", c.left_out.empty() ? "" : ": ",
                fmt::join(c.left_out, "; "));
  return c;
}

Json to_json(const PowerCalibration& c) {
  Json parts = Json::object();
  for (const auto& part : c.parts) {
    Json points = Json::array();
    for (const PowerPoint& p : part.points)
      points.push_back({{"utilisation", p.utilisation},
                        {"watts", p.watts.value},
                        {"least_w", p.watts.least},
                        {"most_w", p.watts.most}});
    parts[part.scope] = {{"meter", part.meter}, {"source", part.source}, {"points", points}};
  }
  return {{"power_format", kFormat},  {"host", c.host}, {"created", c.created},
          {"processor", c.processor}, {"cpus", c.cpus}, {"scopes", parts}};
}

namespace {

std::string text_member(const Json& json, const char* key, const std::string& origin) {
  const Json& value = json_member(json, key, origin);
  if (!value.is_string()) throw UsageError("{}: {} is no text", origin, key);
  return value.get<std::string>();
}

std::vector<PowerPoint> points_from_json(const Json& json, const std::string& origin) {
  if (!json.is_array() || json.empty()) throw UsageError("{}: points is no list of points", origin);
  std::vector<PowerPoint> points;
  for (const Json& one : json) {
    const PowerPoint p{amount_member(one, "utilisation", origin),
                       {amount_member(one, "watts", origin), amount_member(one, "least_w", origin),
                        amount_member(one, "most_w", origin)}};
    if (p.utilisation > 1 || (!points.empty() && !(p.utilisation > points.back().utilisation)))
      throw UsageError("{}: utilisation {} is not between that of the point before and 1", origin, p.utilisation);
    if (!(p.watts.least <= p.watts.value && p.watts.value <= p.watts.most))
      throw UsageError("{}: {} W is not between least_w {} and most_w {}", origin, p.watts.value, p.watts.least,
                       p.watts.most);
    points.push_back(p);
  }
  return points;
}

}  // namespace

PowerCalibration power_calibration_from_json(const Json& json, const std::string& origin) {
  if (!json.is_object() || !json.contains("power_format"))
    throw UsageError("{}: no file of `molen energy calibrate`: it has no power_format", origin);
  if (json["power_format"] != kFormat)
    throw UsageError("{}: power_format is {}, and this program reads {}", origin, json["power_format"].dump(), kFormat);
  PowerCalibration c;
  c.host = text_member(json, "host", origin);
  c.created = text_member(json, "created", origin);
  c.processor = text_member(json, "processor", origin);
  const std::int64_t cpus = count_member(json, "cpus", origin);
  if (cpus < 1 || cpus > 65536) throw UsageError("{}: cpus: {} is no number of processors", origin, cpus);
  c.cpus = static_cast<int>(cpus);
  const Json& scopes = json_member(json, "scopes", origin);
  if (!scopes.is_object() || scopes.empty()) throw UsageError("{}: scopes has no scope", origin);
  for (const auto& [scope, part] : scopes.items()) {
    const std::string where = fmt::format("{}: scopes.{}", origin, scope);
    if (parts_of(scope).empty()) throw UsageError("{}: molen knows no such scope", where);
    c.parts.push_back({scope, text_member(part, "meter", where), text_member(part, "source", where),
                       points_from_json(json_member(part, "points", where), where)});
  }
  return c;
}

PowerCalibration read_power_calibration(const fs::path& file) {
  return power_calibration_from_json(read_json(file, 1 << 20), file.string());
}

PowerFigures figures_of(const PowerCalibration& c, const std::string& origin) {
  PowerFigures figures;
  figures.processor = c.processor;
  figures.cpus = c.cpus;
  for (const auto& part : c.parts)
    figures.by_cpus.push_back({part.scope, PowerCurve(part.points),
                               fmt::format("{}: measured on {} at {} by {}", origin, c.host, c.created, part.meter)});
  return figures;
}

}  // namespace molen::energy
