#include "energy/commands.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/utf8.h"
#include "energy/scope.h"
#include "energy/uncertainty.h"

namespace molen::energy {
namespace {

// Returns the reason why a sum leaves a meter out; "" where it adds it.
std::string left_out(const Meters& meters, const MeterInfo& info) {
  if (info.counted) return "";
  for (const auto& m : meters.meters)
    if (m->info().counted && overlap(m->info().scope, info.scope))
      return fmt::format(" (not summed: {} {})",
                         contains(m->info().scope, info.scope) ? "part of" : "shares a part with", m->info().scope);
  return "";
}

}  // namespace

std::string list_text(const Meters& meters) {
  std::string text;
  for (const auto& m : meters.meters)
    if (m->info().source != Source::kNone)
      text += fmt::format("{:<16} {:<14} {:<8} {}{}; {}\n", m->info().scope, m->info().name, name_of(m->info().source),
                          m->info().detail, left_out(meters, m->info()), uncertainty_text(m->info()));
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
                           {"summed", m->info().counted},
                           {"uncertainty", uncertainty_json(m->info())}});
  for (const auto& u : meters.unavailable)
    unavailable.push_back({{"scope", u.scope}, {"meter", u.meter}, {"reason", u.reason}});
  return {{"available", available}, {"unavailable", unavailable}};
}

std::string model_text(const PowerModel* model) {
  std::string text = "\nestimated by a model, in no sum of measured joules:\n";
  if (model == nullptr) return text + "nothing, because meters read all parts of this machine\n";
  for (const auto& part : model->parts()) {
    const std::string share = part->share() < 1.0 ? fmt::format(", {:.3g} of it", part->share()) : "";
    text += fmt::format("{:<16} {:<14} {:<8} {}{}\n", part->figures().scope, "model", name_of(Source::kModel),
                        part->figures().source, share);
  }
  for (const auto& u : model->unavailable()) text += fmt::format("{:<16} not modelled   {}\n", u.scope, u.reason);
  return text;
}

Json model_json(const PowerModel* model) {
  Json parts = Json::array(), unavailable = Json::array();
  if (model != nullptr) {
    for (const auto& part : model->parts())
      parts.push_back({{"scope", part->figures().scope},
                       {"source", name_of(Source::kModel)},
                       {"figures", part->figures().source},
                       {"share", part->share()},
                       {"summed", part->counted}});
    for (const auto& u : model->unavailable()) unavailable.push_back({{"scope", u.scope}, {"reason", u.reason}});
  }
  return {{"modelled", parts}, {"unavailable", unavailable}};
}

std::string modelled_live_text(const Modelled& modelled, double seconds) {
  std::string text = "model:";
  for (const auto& [scope, e] : modelled.scopes) {
    if (e) {
      const Estimate watts = (1.0 / seconds) * *e;
      text += fmt::format(" {} ~{:.1f} W ({:.1f} to {:.1f})", scope, watts.value, watts.least, watts.most);
    } else {
      text += fmt::format(" {} - ({})", scope, modelled.reasons.at(scope));
    }
  }
  return text;
}

Json modelled_live_json(const Modelled& modelled, double seconds) {
  Json scopes = Json::object();
  for (const auto& [scope, e] : modelled.scopes)
    scopes[scope] = e ? Json{{"joules", e->value},
                             {"least", e->least},
                             {"most", e->most},
                             {"power_w", e->value / seconds},
                             {"source", name_of(Source::kModel)}}
                      : Json{{"reason", modelled.reasons.at(scope)}};
  return scopes;
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
  for (const auto& m : accountant_.meters().meters)
    if (std::string condition = m->condition(); !condition.empty())
      line.conditions[m->info().scope] = std::move(condition);
  return line;
}

std::string live_text(const LiveReading::Line& line) {
  std::string text;
  for (const auto& [scope, e] : line.energy.scopes) {
    text += e.joules ? fmt::format("{} {:.1f} W", scope, *e.joules / e.seconds) : fmt::format("{} -", scope);
    const auto condition = line.conditions.find(scope);
    text += (condition == line.conditions.end() ? "" : " (" + condition->second + ")") + "  ";
  }
  if (line.energy.total_j) return text + fmt::format("total {:.1f} W", *line.energy.total_j / line.seconds);
  return text + fmt::format("total - ({})", line.energy.total_reason);
}

LiveTable::LiveTable(const Meters& meters) {
  for (const auto& m : meters.meters)
    if (m->info().counted) summed_.insert(m->info().scope);
}

void LiveTable::add(const LiveReading::Line& line) {
  for (const auto& [scope, e] : line.energy.scopes) {
    Row& row = rows_[scope];
    const auto condition = line.conditions.find(scope);
    row.condition = condition == line.conditions.end() ? "" : condition->second;
    if (e.unchanged) {  // the watts of the last change stay
      row.waiting_s += e.seconds;
      continue;
    }
    const double seconds = std::exchange(row.waiting_s, 0.0) + e.seconds;
    row.note = e.joules ? name_of(e.source) : e.reason;
    row.last_w = e.joules ? std::optional(*e.joules / seconds) : std::nullopt;
    if (!e.joules) continue;
    row.joules += *e.joules;
    row.seconds += seconds;
  }
}

std::vector<std::string> LiveTable::lines_of(std::size_t columns) const {
  std::vector<std::string> lines;
  const auto line = [&](const std::string& scope, const Row& row) {
    const auto known = [](bool there, double value) { return there ? fmt::format("{:.1f}", value) : std::string("-"); };
    const bool read = row.seconds > 0.0;
    std::string text =
        fmt::format("{:<18}{:>9}{:>9}{:>12}  {}", scope, known(row.last_w.has_value(), row.last_w.value_or(0.0)),
                    known(read, row.joules / row.seconds), known(read, row.joules), printable(row.note));
    text.resize(std::min(text.size(), columns));
    lines.push_back(std::move(text));
    if (!row.condition.empty()) lines.push_back(("  " + printable(row.condition)).substr(0, columns));
  };
  lines.push_back(fmt::format("{:<18}{:>9}{:>9}{:>12}", "scope", "W", "mean W", "J").substr(0, columns));
  double watts = 0.0, mean_w = 0.0, joules = 0.0;
  std::string missing = summed_.empty() ? "no meter" : "";
  for (const auto& [scope, row] : rows_) {
    line(scope, row);
    if (!summed_.contains(scope)) continue;
    if (!row.last_w && missing.empty()) missing = scope + " has no reading";
    watts += row.last_w.value_or(0.0);
    mean_w += row.seconds > 0.0 ? row.joules / row.seconds : 0.0;
    joules += row.joules;
  }
  Row sum;
  sum.joules = joules;
  sum.seconds = mean_w > 0.0 ? joules / mean_w : 0.0;
  sum.note = missing;
  if (missing.empty()) sum.last_w = watts;
  line("sum", sum);
  return lines;
}

std::string LiveTable::text(std::size_t columns, std::size_t lines) const {
  const std::vector<std::string> all = lines_of(columns);
  const std::size_t shown = all.size() <= lines ? all.size() : std::max<std::size_t>(lines, 3) - 2;
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) text += all[i] + "\n";
  if (shown < all.size())
    text += fmt::format("({} more scopes)\n", all.size() - shown - 1).substr(0, columns + 1) + all.back() + "\n";
  return text;
}

Json live_json(const LiveReading::Line& line) {
  Json joules = Json::object(), watts = Json::object(), source = Json::object(), reason = Json::object();
  Json resolution = Json::object();
  for (const auto& [scope, e] : line.energy.scopes) {
    joules[scope] = e.joules ? Json(*e.joules) : Json();
    watts[scope] = e.joules ? Json(*e.joules / e.seconds) : Json();
    source[scope] = name_of(e.source);
    resolution[scope] = e.resolution_j ? Json(*e.resolution_j) : Json();
    if (!e.joules) reason[scope] = e.reason;
  }
  return {{"seconds", line.seconds},
          {"energy_j", joules},
          {"power_w", watts},
          {"energy_source", source},
          {"energy_resolution_j", resolution},
          {"reason", reason},
          {"condition", line.conditions},
          {"total_j", line.energy.total_j ? Json(*line.energy.total_j) : Json()}};
}

}  // namespace molen::energy
