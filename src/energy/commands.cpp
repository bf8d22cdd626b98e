#include "energy/commands.h"

#include <algorithm>

#include "base/clock.h"
#include "energy/scope.h"

namespace molen::energy {
namespace {

// Returns the reason why a sum leaves a meter out; "" where it adds it.
std::string left_out(const Meters& meters, const MeterInfo& info) {
  if (info.counted) return "";
  for (const auto& m : meters.meters)
    if (m->info().counted && contains(m->info().scope, info.scope))
      return fmt::format(" (not summed: part of {})", m->info().scope);
  return " (not summed: its parts are)";
}

}  // namespace

std::string list_text(const Meters& meters) {
  std::string text;
  for (const auto& m : meters.meters)
    if (m->info().source != Source::kNone)
      text += fmt::format("{:<16} {:<14} {:<8} {}{}\n", m->info().scope, m->info().name, name_of(m->info().source),
                          m->info().detail, left_out(meters, m->info()));
  if (text.empty()) text = "no energy meter gives readings on this machine\n";
  if (!meters.unavailable.empty()) text += "\nnot available:\n";
  for (const auto& u : meters.unavailable) text += fmt::format("{:<16} {:<14} {}\n", u.scope, u.meter, u.reason);
  return text;
}

Json list_json(const Meters& meters) {
  Json available = Json::array(), unavailable = Json::array();
  for (const auto& m : meters.meters)
    if (m->info().source != Source::kNone)
      available.push_back({{"scope", m->info().scope},
                           {"meter", m->info().name},
                           {"source", name_of(m->info().source)},
                           {"reads", m->info().detail},
                           {"summed", m->info().counted}});
  for (const auto& u : meters.unavailable)
    unavailable.push_back({{"scope", u.scope}, {"meter", u.meter}, {"reason", u.reason}});
  return {{"available", available}, {"unavailable", unavailable}};
}

LiveReading::LiveReading(Meters meters) : accountant_(std::move(meters)), last_(now().value) {}

bool LiveReading::measures() const {
  for (const auto& m : accountant_.meters().meters)
    if (m->info().source != Source::kNone) return true;
  return false;
}

LiveReading::Line LiveReading::next() {
  Line line;
  line.energy = accountant_.end_step();
  const double time = now().value;
  line.seconds = time - last_;
  last_ = time;
  return line;
}

std::string live_text(const LiveReading::Line& line) {
  std::string text;
  for (const auto& [scope, e] : line.energy.scopes)
    text += e.joules ? fmt::format("{} {:.1f} W  ", scope, *e.joules / line.seconds) : fmt::format("{} -  ", scope);
  if (line.energy.total_j) return text + fmt::format("total {:.1f} W", *line.energy.total_j / line.seconds);
  return text + fmt::format("total - ({})", line.energy.total_reason);
}

void LiveTable::add(const LiveReading::Line& line) {
  for (const auto& [scope, e] : line.energy.scopes)
    add(scope, e.joules, line.seconds, e.joules ? name_of(e.source) : e.reason);
  add("total", line.energy.total_j, line.seconds, line.energy.total_reason);
}

void LiveTable::add(const std::string& scope, const std::optional<double>& joules, double seconds,
                    const std::string& note) {
  Row& row = rows_[scope];
  row.note = note;
  row.last_w.reset();
  if (!joules) return;
  row.last_w = *joules / seconds;
  row.joules += *joules;
  row.seconds += seconds;
  row.most_w = std::max(row.most_w, *row.last_w);
}

std::string LiveTable::text(std::size_t columns) const {
  std::string text;
  const auto line = [&](std::string whole) {
    whole.resize(std::min(whole.size(), columns));
    text += whole + "\n";
  };
  line(fmt::format("{:<18}{:>9}{:>9}{:>9}{:>12}", "scope", "W", "mean W", "most W", "J"));
  const auto show = [&](const std::string& scope, const Row& row) {
    const std::string now = row.last_w ? fmt::format("{:.1f}", *row.last_w) : "-";
    if (row.seconds > 0.0)
      line(fmt::format("{:<18}{:>9}{:>9.1f}{:>9.1f}{:>12.1f}  {}", scope, now, row.joules / row.seconds, row.most_w,
                       row.joules, row.note));
    else
      line(fmt::format("{:<18}{:>9}{:>9}{:>9}{:>12}  {}", scope, now, "-", "-", "-", row.note));
  };
  for (const auto& [scope, row] : rows_)
    if (scope != "total") show(scope, row);
  if (const auto total = rows_.find("total"); total != rows_.end()) show("total", total->second);
  return text;
}

Json live_json(const LiveReading::Line& line) {
  Json joules = Json::object(), watts = Json::object(), source = Json::object(), reason = Json::object();
  for (const auto& [scope, e] : line.energy.scopes) {
    joules[scope] = e.joules ? Json(*e.joules) : Json();
    watts[scope] = e.joules ? Json(*e.joules / line.seconds) : Json();
    source[scope] = name_of(e.source);
    if (!e.joules) reason[scope] = e.reason;
  }
  return {{"seconds", line.seconds}, {"energy_j", joules},
          {"power_w", watts},        {"energy_source", source},
          {"reason", reason},        {"total_j", line.energy.total_j ? Json(*line.energy.total_j) : Json()}};
}

}  // namespace molen::energy
