#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/plot.h"

namespace molen::plan {
namespace {

constexpr double kLinesLeft = 80, kLinesTop = 50, kLinesHeight = 390, kLinesWidth = 620;
constexpr double kNameDistance = 18;  // between lines of the legend
constexpr double kNoteDistance = 18;  // between notes
constexpr const char* kIdealColor = "#777";

struct Limits {
  double low = 0.0, high = 0.0;
};

Limits limits_of(const LinePlot& plot) {
  Limits limits{1e300, 0.0};
  for (const auto& line : plot.lines)
    for (const PlotValue& point : line.points) {
      if (!point.value) continue;
      limits.low = std::min({limits.low, *point.value, point.low.value_or(*point.value)});
      limits.high = std::max({limits.high, *point.value, point.high.value_or(*point.value)});
    }
  if (limits.high <= 0.0) return {0.5, 1.0};
  return limits;
}

std::string number_label(double value) {
  return fmt::format("{:.4g}", value);
}

// Doublings from the lowest value to the highest.
std::vector<PlotTick> doublings(double low, double high) {
  std::vector<PlotTick> ticks;
  const int step = std::log2(high / low) > 10 ? 2 : 1;  // in powers of 2
  const auto first = static_cast<int>(std::ceil(std::log2(low) - 1e-9)),
             last = static_cast<int>(std::floor(std::log2(high * (1 + 1e-9))));
  for (int power = first; power <= last; power += step)
    ticks.push_back({std::exp2(power), number_label(std::exp2(power))});
  return ticks;
}

PlotFrame line_frame(const LinePlot& plot) {
  PlotFrame frame;
  const double first = plot.x.front(), last = plot.x.back();
  const bool spread = last >= 8.0 * first;
  frame.x = {spread ? first : 0.0, last, kLinesLeft, kLinesLeft + kLinesWidth, spread};
  // Points at the very edge of a logarithmic axis would lie on the other axis.
  if (spread)
    frame.x.low /= 1.15, frame.x.high *= 1.15;
  else
    frame.x.high *= 1.05;
  const Limits limits = limits_of(plot);
  frame.y = {0.0, 1.06 * limits.high, kLinesTop + kLinesHeight, kLinesTop, false};
  if (plot.logarithmic_y && limits.high >= 8.0 * limits.low)
    frame.y.low = limits.low / 1.15, frame.y.high = 1.15 * limits.high, frame.y.logarithmic = true;
  return frame;
}

// Every eighth line looks like an earlier one but for its dashes.
const char* dashes_of(std::size_t line) {
  constexpr std::array<const char*, 4> kDashes{"none", "6 3", "2 3", "9 3 2 3"};
  return kDashes.at(line / kPlotColors.size() % kDashes.size());
}

std::string points_svg(const PlotFrame& frame, const LinePlot& plot, const LinePlot::Line& line, const char* color,
                       const char* dashes) {
  std::string svg, path;
  for (std::size_t i = 0; i < plot.x.size(); ++i) {
    const PlotValue& point = line.points.at(i);
    if (!point.value) continue;
    const double x = frame.x.at(plot.x[i]), y = frame.y.at(*point.value);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
    if (line.ideal) continue;
    if (point.low && point.high)
      svg += fmt::format(
          "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}H{4:.1f}M{3:.1f} {2:.1f}H{4:.1f}\" stroke=\"{5}\" "
          "fill=\"none\"/>",
          x, frame.y.at(*point.low), frame.y.at(*point.high), x - 4, x + 4, color);
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", x, y, color);
  }
  if (path.empty()) return svg;
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\"/>\n", path,
                     color, dashes) +
         svg;
}

std::string name_svg(const LinePlot::Line& line, std::size_t row, double left, const char* color, const char* dashes) {
  const double y = kLinesTop + 8 + kNameDistance * static_cast<double>(row);
  return fmt::format(
      "<path d=\"M{:.1f} {:.1f}h26\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\"/>"
      "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
      left, y, color, dashes, left + 32, y + 4.5, xml_text(line.name));
}

}  // namespace

std::string to_svg(const LinePlot& plot) {
  PlotFrame frame = line_frame(plot);
  std::vector<PlotTick> x_ticks;
  for (const double x : plot.x) x_ticks.push_back({x, number_label(x)});
  const auto y_ticks = frame.y.logarithmic ? doublings(frame.y.low, frame.y.high) : round_ticks(frame.y.high, 8);
  std::string svg = axes_svg(frame, x_ticks, y_ticks, plot.x_axis, plot.y_axis);
  const double legend = frame.x.to + 20;
  double names = 0.0;
  std::size_t drawn = 0;
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    const auto& line = plot.lines[i];
    const char* color = line.ideal ? kIdealColor : kPlotColors.at(drawn % kPlotColors.size());
    const char* dashes = line.ideal ? "5 4" : dashes_of(drawn);
    if (!line.ideal) ++drawn;
    svg += points_svg(frame, plot, line, color, dashes) + name_svg(line, i, legend, color, dashes);
    names = std::max(names, text_width(line.name));
  }
  // The axis has its ticks and its name below; a long legend may reach further down.
  double height =
      std::max(kLinesTop + kLinesHeight + 64, kLinesTop + 20 + kNameDistance * static_cast<double>(plot.lines.size()));
  double width = std::max(legend + 32 + names + 16, kLinesLeft + text_width(plot.title) * 15 / 13 + 16);
  for (const std::string& note : plot.notes) {
    svg += fmt::format("<text x=\"20\" y=\"{:.1f}\" fill=\"#555\">{}</text>\n", height, xml_text(note));
    height += kNoteDistance;
    width = std::max(width, 36 + text_width(note));
  }
  return svg_of(width, height, kLinesLeft, plot.title, svg);
}

}  // namespace molen::plan
