#include "plan/sweep_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "plan/plot.h"

namespace molen::plan {
namespace {

// A figure of a trial as plots show it.
struct PlottedFigure {
  std::string name, axis;  // of the file; of the axis
  std::function<PlotValue(const TrialRow&)> of;
};

PlotValue absent(const TrialRow& row) {
  return {std::nullopt, std::nullopt, std::nullopt, row.has_step() ? "not known" : name_of(row.outcome.kind)};
}

// A figure that falls as the step takes longer: the longest step gives the low end of its interval.
PlotValue per_step(const TrialRow& row, std::optional<double> figure) {
  if (!row.has_step() || !figure) return absent(row);
  const StepFigures& f = row.outcome.figures;
  return {*figure, *figure * f.step_s / f.high_s, *figure * f.step_s / f.low_s, ""};
}

PlotValue alone(const TrialRow& row, const std::optional<double>& figure, double factor = 1.0) {
  if (!row.has_step() || !figure) return absent(row);
  return {factor * *figure, std::nullopt, std::nullopt, ""};
}

// A measured energy may leave parts of the machine out. Returns which, where that is the same for all trials.
std::string energy_note(const std::vector<TrialRow>& rows) {
  std::set<std::string> coverages;
  for (const TrialRow& row : rows)
    if (row.has_step() && row.outcome.figures.step_j) coverages.insert(row.outcome.figures.energy_coverage);
  if (coverages.size() > 1) return " (the trials leave different parts out; sweep.jsonl: energy_coverage)";
  return coverages.empty() || coverages.begin()->empty() ? "" : fmt::format(" ({})", *coverages.begin());
}

std::vector<PlottedFigure> plotted_figures(const SweepPlan& plan, const std::vector<TrialRow>& rows) {
  const std::string interval =
      plan.measured ? "; whiskers: 10th to 90th percentile of steps" : "; whiskers: 80 % likely";
  return {{"tokens_per_s_per_device", "tokens/s per device" + interval,
           [](const TrialRow& r) {
             return per_step(r,
                             r.has_step() ? std::optional(r.outcome.figures.tokens_per_s_per_device()) : std::nullopt);
           }},
          {"mfu", "MFU, % of the peak" + interval,
           [](const TrialRow& r) {
             const auto& mfu = r.outcome.figures.mfu;
             return per_step(r, mfu ? std::optional(100.0 * *mfu) : std::nullopt);
           }},
          {"kwh_per_step", "kWh per step, of all nodes" + energy_note(rows),
           [](const TrialRow& r) { return alone(r, r.outcome.figures.kwh()); }}};
}

std::vector<PlottedFigure> scaling_figures() {
  return {{"speed_up", "speed-up in tokens/s", [](const TrialRow& r) { return alone(r, r.speed_up); }},
          {"efficiency", "efficiency (speed-up over ideal), %",
           [](const TrialRow& r) { return alone(r, r.efficiency, 100.0); }}};
}

// The rows with the most tokens a second, in their order, and those that failed if there is room.
std::vector<TrialRow> most_rows(const std::vector<TrialRow>& rows) {
  if (rows.size() <= kMostBars) return rows;
  std::vector<std::size_t> order(rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto rate = [&](std::size_t i) {
    return rows[i].has_step() ? rows[i].outcome.figures.tokens_per_s_per_device() : 0.0;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rate(a) > rate(b); });
  order.resize(kMostBars);
  std::sort(order.begin(), order.end());
  std::vector<TrialRow> kept;
  for (const std::size_t i : order) kept.push_back(rows[i]);
  return kept;
}

// Whether the last axis of the grid can be the colours of the bars, within groups of the other axes.
bool has_colours(const SweepPlan& plan, const std::vector<TrialRow>& rows) {
  return plan.grid.size() > 1 && plan.grid.back().values.size() <= kPlotColors.size() && rows.size() <= kMostBars;
}

std::string bars_of(const SweepPlan& plan, const std::vector<TrialRow>& rows, const PlottedFigure& figure) {
  BarPlot plot;
  plot.title = title_of(plan, rows);
  plot.axis = figure.axis;
  const bool colours = has_colours(plan, rows);
  const std::size_t members = colours ? plan.grid.back().values.size() : 1;
  if (colours) plot.members = plan.grid.back().texts, plot.legend = short_names(plan.grid).back();
  const std::vector<TrialRow> shown = most_rows(rows);
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (i % members == 0)
      plot.groups.push_back(
          {label_of(plan, shown[i], colours ? std::optional(plan.grid.size() - 1) : std::nullopt), {}});
    plot.groups.back().bars.push_back(figure.of(shown[i]));
  }
  if (shown.size() < rows.size())
    plot.note = fmt::format("of {} trials, these {} have the most tokens/s per device", rows.size(), shown.size());
  return to_svg(plot);
}

// Returns a note for the sizes of each point that have no figures, up to a number of notes that leaves the plot its
// room.
std::vector<std::string> notes_of(const SweepPlan& plan, const std::vector<TrialRow>& rows) {
  constexpr std::size_t kMostNotes = 8;
  std::vector<std::string> notes;
  std::string before;  // what the note is about that further sizes may join
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TrialRow& row = rows[i];
    const std::string label = label_of(plan, row);
    const std::string about = label + (label.empty() ? "" : ": ") + name_of(row.outcome.kind);
    const std::string size = std::to_string(row.size.amount());
    const bool joins = i % plan.sizes.size() != 0 && about == before;
    before = row.has_step() ? "" : about;
    if (row.has_step()) continue;
    if (joins)
      notes.back() += ", " + size;
    else
      notes.push_back(fmt::format("{}; {}: {}", about, row.size.nodes > 0 ? "nodes" : "ranks", size));
  }
  if (notes.size() > kMostNotes) {
    const std::size_t more = notes.size() - kMostNotes;
    notes.resize(kMostNotes);
    notes.push_back(fmt::format("and {} more such lines", more));
  }
  return notes;
}

// The line that perfect scaling would make: speed-up in proportion to the size, and an efficiency of 100 %.
LinePlot::Line ideal_line(const SweepPlan& plan, bool speed_up) {
  LinePlot::Line line{"ideal", {}, true};
  for (const JobSize& size : plan.sizes) {
    PlotValue value;
    value.value = speed_up ? static_cast<double>(size.amount()) / plan.sizes.front().amount() : 100.0;
    line.points.push_back(value);
  }
  return line;
}

std::string lines_of(const SweepPlan& plan, const std::vector<TrialRow>& rows, const PlottedFigure& figure) {
  LinePlot plot;
  plot.title = title_of(plan, rows);
  plot.x_axis = plan.sizes.front().nodes > 0 ? "nodes" : "ranks";
  plot.y_axis = figure.axis;
  plot.logarithmic_y = figure.name == "speed_up";
  for (const JobSize& size : plan.sizes) plot.x.push_back(size.amount());
  for (std::size_t begin = 0; begin < rows.size(); begin += plan.sizes.size()) {
    const std::string label = label_of(plan, rows[begin]);
    LinePlot::Line line{label.empty() ? rows[begin].model : label, {}};
    for (std::size_t i = 0; i < plan.sizes.size(); ++i) line.points.push_back(figure.of(rows[begin + i]));
    plot.lines.push_back(std::move(line));
  }
  if (figure.name == "speed_up" || figure.name == "efficiency")
    plot.lines.push_back(ideal_line(plan, figure.name == "speed_up"));
  plot.notes = notes_of(plan, rows);
  return to_svg(plot);
}

}  // namespace

std::vector<SweepPlot> plots_of(const SweepPlan& plan, const std::vector<TrialRow>& rows) {
  const bool scaling = plan.scaling != Scaling::kNone;
  std::vector<PlottedFigure> figures = plotted_figures(plan, rows);
  if (scaling)
    for (auto& figure : scaling_figures()) figures.push_back(std::move(figure));
  std::vector<SweepPlot> plots;
  for (const PlottedFigure& figure : figures) {
    if (std::none_of(rows.begin(), rows.end(), [&](const TrialRow& row) { return figure.of(row).value.has_value(); }))
      continue;
    plots.push_back({figure.name + ".svg", scaling ? lines_of(plan, rows, figure) : bars_of(plan, rows, figure)});
  }
  return plots;
}

}  // namespace molen::plan
