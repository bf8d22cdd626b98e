#include <fmt/format.h>

#include <algorithm>

#include "plan/calculus_table.h"
#include "plan/plot.h"

namespace molen::plan {
namespace {

constexpr double kPlotWidth = 860, kPlotHeight = 520, kPlotLeft = 70, kPlotRight = 110, kPlotTop = 50, kPlotBottom = 60;
constexpr double kLabelHeight = 15;  // least distance between the names of two lines

double days_of(const Estimate& seconds) {
  return seconds.value / 86400.0;
}

// Tokens along x, days along y; both axes begin at 0.
PlotFrame frame_of(const DaysTable& days) {
  PlotFrame frame{kPlotWidth, kPlotHeight, {}, {}};
  frame.x = {0.0, days.tokens.back(), kPlotLeft, kPlotWidth - kPlotRight};
  frame.y = {0.0, 0.0, kPlotHeight - kPlotBottom, kPlotTop};
  for (const auto& row : days.seconds) frame.y.high = std::max(frame.y.high, days_of(row.back()));
  return frame;
}

std::string lines_of_models(const PlotFrame& frame, const DaysTable& days) {
  std::string svg;
  std::vector<double> ends;
  for (const auto& row : days.seconds) ends.push_back(frame.y.at(days_of(row.back())));
  const std::vector<double> heights = heights_apart(ends, kLabelHeight, kPlotHeight - kLabelHeight);
  for (std::size_t i = 0; i < days.models.size(); ++i) {
    const char* color = kPlotColors.at(i % kPlotColors.size());
    const double x = frame.x.at(days.tokens.back());
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{:.1f},{:.1f}", color,
                       frame.x.at(0.0), frame.y.at(0.0));
    for (std::size_t k = 0; k < days.tokens.size(); ++k)
      svg += fmt::format(" {:.1f},{:.1f}", frame.x.at(days.tokens[k]), frame.y.at(days_of(days.seconds[i][k])));
    svg += fmt::format(
        "\"/><path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"{}\" stroke-width=\"0.7\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n",
        x, ends[i], x + 14, heights[i], color, x + 17, heights[i] + 4, color, xml_text(days.models[i].name));
  }
  return svg;
}

// A dashed line at the tokens that the plan trains on.
std::string wanted_tokens(const PlotFrame& frame, double tokens) {
  const double wanted = frame.x.at(tokens);
  return fmt::format(
      "<path d=\"M{0:.1f} {1:.0f}V{2:.0f}\" stroke=\"#777\" stroke-dasharray=\"4 4\"/>"
      "<text x=\"{0:.1f}\" y=\"{3:.0f}\" text-anchor=\"{5}\" fill=\"#555\">{4:g} B tokens</text>\n",
      wanted, kPlotTop, kPlotHeight - kPlotBottom, kPlotTop - 6, tokens / 1e9,
      // Right of the middle, the text ends at the line, so that it leaves room for the names of the lines.
      wanted > kPlotWidth / 2 ? "end" : "start");
}

}  // namespace

std::string to_svg(const CalculusReport& report) {
  const DaysTable& days = report.days;
  const PlotFrame frame = frame_of(days);
  const TrainingPlan& plan = report.plan;
  const std::string title = fmt::format("Days of training on {} x {}, {:g} % of {:g} TFLOP/s, {} N FLOPs per token",
                                        plan.devices, plan.cluster.device.name, 100.0 * plan.mfu.value,
                                        plan.cluster.device.peak_16bit.value / 1e12, plan.recompute ? 8 : 6);
  return svg_of(
      kPlotWidth, kPlotHeight, kPlotLeft, title,
      axes_svg(frame, round_ticks(frame.x.high, 8, 1e9), round_ticks(frame.y.high, 8), "tokens, billions", "days") +
          wanted_tokens(frame, plan.tokens) + lines_of_models(frame, days));
}

}  // namespace molen::plan
