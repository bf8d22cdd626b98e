#include "tune/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/plot.h"

namespace molen::tune {
namespace {

using Kind = plan::Outcome::Kind;
constexpr double kPlotWide = 860, kPlotHigh = 520, kPlotLeft = 80, kPlotRight = 30, kPlotTop = 70, kPlotBottom = 90;
constexpr double kFailureRow = 14;  // distance of the failures from the x axis, inside of the plot

struct Mark {
  Kind kind;
  const char* name;
  const char* color;
};
// A trial with a step is a disc, and the ways to fail are crosses of two kinds, a triangle and a square.
constexpr Mark kMarks[] = {{Kind::kStep, "trial", plan::kPlotColors[0]},
                           {Kind::kOutOfMemory, "out of memory", plan::kPlotColors[1]},
                           {Kind::kRefused, "refused", plan::kPlotColors[3]},
                           {Kind::kFailed, "failed", plan::kPlotColors[6]},
                           {Kind::kNotCalibrated, "not calibrated", plan::kPlotColors[4]}};
constexpr const char* kBestColor = plan::kPlotColors[2];

std::string mark_svg(Kind kind, double x, double y) {
  const Mark& mark = *std::ranges::find(kMarks, kind, &Mark::kind);
  if (kind == Kind::kStep)
    return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", x, y, mark.color);
  const char* shape = kind == Kind::kOutOfMemory ? "M-4 -4L4 4M-4 4L4 -4"
                      : kind == Kind::kRefused   ? "M-5 0H5M0 -5V5"
                      : kind == Kind::kFailed    ? "M-4 4L0 -4L4 4Z"
                                                 : "M-4 -4H4V4H-4Z";
  return fmt::format(
      "<path d=\"{}\" transform=\"translate({:.1f} {:.1f})\" stroke=\"{}\" stroke-width=\"2\" fill=\"none\"/>\n", shape,
      x, y, mark.color);
}

std::string trajectory_legend(const std::vector<Trial>& trials) {
  std::string svg;
  double x = kPlotLeft;
  const auto text = [&](const std::string& words) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"52\">{}</text>\n", x + 12, plan::xml_text(words));
    x += 12 + plan::text_width(words) + 20;
  };
  for (const Mark& mark : kMarks) {
    const auto count = std::ranges::count(trials, mark.kind, [](const Trial& t) { return t.outcome.kind; });
    if (count == 0) continue;
    svg += mark_svg(mark.kind, x + 4, 48);
    text(fmt::format("{} ({})", mark.name, count));
  }
  svg += fmt::format("<path d=\"M{:.1f} 48h20\" stroke=\"{}\" stroke-width=\"2\"/>", x, kBestColor);
  x += 12;
  text("best so far");
  return svg;
}

}  // namespace

std::string trajectory_svg(const std::vector<Trial>& trials, Objective objective, const std::string& title,
                           double noise_scale) {
  double highest = 0.0;
  for (const Trial& t : trials)
    if (t.has_step()) highest = std::max(highest, figure_of(objective, t.outcome.figures, noise_scale));
  if (highest == 0.0) highest = 1.0;
  const double bottom = kPlotHigh - kPlotBottom, last = trials.empty() ? 1 : trials.back().number;
  plan::PlotFrame frame{.width = kPlotWide, .height = kPlotHigh, .x = {}, .y = {}};
  frame.x = {0.0, std::max(1.0, last), kPlotLeft, kPlotWide - kPlotRight};
  frame.y = {0.0, 1.05 * highest, bottom, kPlotTop};
  std::string svg = plan::axes_svg(frame, plan::round_ticks(std::max(1.0, last), 10),
                                   plan::round_ticks(1.05 * highest, 8), "trial", unit_of(objective));
  svg += trajectory_legend(trials);
  std::string line, marks;
  std::optional<double> best;
  for (const Trial& t : trials) {
    const double x = frame.x.at(t.number);
    if (t.has_step()) {
      const double figure = figure_of(objective, t.outcome.figures, noise_scale);
      marks += mark_svg(Kind::kStep, x, frame.y.at(figure));
      const bool better = !best || (more_is_better(objective) ? figure > *best : figure < *best);
      if (better) {
        line += best ? fmt::format("H{:.1f}V{:.1f}", x, frame.y.at(figure))
                     : fmt::format("M{:.1f} {:.1f}", x, frame.y.at(figure));
        best = figure;
      }
    } else {
      marks += mark_svg(t.outcome.kind, x, bottom - kFailureRow);
    }
  }
  if (best)
    svg += fmt::format("<path d=\"{}H{:.1f}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", line,
                       frame.x.at(last), kBestColor);
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#555\">Trials that failed stand at the axis: they have no "
      "figure.</text>\n",
      kPlotLeft, kPlotHigh - 12);
  return plan::svg_of(kPlotWide, kPlotHigh, kPlotLeft, title, svg + marks);
}

std::string sensitivity_svg(const Sensitivity& s, const Space& space, Objective objective, const std::string& title) {
  plan::BarPlot plot;
  plot.title = title, plot.axis = "share of the variance over the space that the key explains alone";
  plot.legend = "variance of";
  std::vector<const std::vector<double>*> shown{&s.value};
  plot.members = {fmt::format("log {}", name_of(objective))};
  if (!s.load.empty()) shown.push_back(&s.load), plot.members.push_back("log memory");
  if (!s.success.empty()) shown.push_back(&s.success), plot.members.push_back("success or failure");
  std::vector<std::size_t> order(s.value.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return s.value[a] > s.value[b]; });
  for (const std::size_t d : order) {
    plan::BarPlot::Group group{.label = space.dimensions()[d].key, .bars = {}};
    for (const auto* indices : shown)
      group.bars.push_back({.value = std::round(1000.0 * (*indices)[d]) / 1000.0, .low = {}, .high = {}, .note = ""});
    plot.groups.push_back(std::move(group));
  }
  plot.note =
      "First-order Sobol indices of the means of the fitted Gaussian processes; what is left to 1 are interactions.";
  return plan::to_svg(plot);
}

}  // namespace molen::tune
