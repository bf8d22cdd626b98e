#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/plot.h"

namespace molen::plan {
namespace {

constexpr double kBarHeight = 14, kBarDistance = 17, kGroupDistance = 10, kBarsTop = 44, kLegendLine = 20;
constexpr double kBarsWidth = 560;  // of the axis
constexpr double kBarsRight = 90;   // room for the value behind the longest bar
constexpr double kSwatch = 12;      // side of a colour's square in the legend

// The places of the bars: rows are one below the other, from the top of the axis.
struct BarPlaces {
  double left, top, bottom, width, high;
  std::size_t members;
  double group_height() const { return kBarDistance * static_cast<double>(members) + kGroupDistance; }
  double y(std::size_t group, std::size_t member) const {
    return top + kGroupDistance / 2 + group_height() * static_cast<double>(group) +
           kBarDistance * static_cast<double>(member);
  }
};

std::string value_text(double value) {
  return std::abs(value) >= 1000.0 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

// The names of the colours in as many lines as they need. `height` returns how high the lines are.
std::string bar_legend(const BarPlot& plot, double left, double width, double& height) {
  height = 0.0;
  if (plot.members.size() < 2) return "";
  std::string svg;
  double x = left, y = kBarsTop;
  const auto text_at = [&](std::string_view text) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x, y + 4, xml_text(text));
    x += text_width(text) + 18;
  };
  text_at(plot.legend + ":");
  for (std::size_t i = 0; i < plot.members.size(); ++i) {
    const double needed = kSwatch + 5 + text_width(plot.members[i]);
    if (x + needed > width && x > left) x = left, y += kLegendLine;
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>", x, y - 7, kSwatch,
                       kSwatch, kPlotColors.at(i % kPlotColors.size()));
    x += kSwatch + 5;
    text_at(plot.members[i]);
  }
  height = y - kBarsTop + kLegendLine;
  return svg;
}

std::string vertical_grid(const BarPlaces& places, std::string_view axis) {
  std::string svg;
  for (const PlotTick& tick : round_ticks(places.high, 6)) {
    const double x = places.left + kBarsWidth * tick.value / places.high;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>"
        "<text x=\"{0:.1f}\" y=\"{4:.1f}\" text-anchor=\"middle\">{5}</text>\n",
        x, places.top, places.bottom, tick.value == 0.0 ? "#333" : "#ddd", places.bottom + 18, tick.label);
  }
  return svg + fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                           places.left + kBarsWidth / 2, places.bottom + 40, xml_text(axis));
}

std::string bar_svg(const BarPlaces& places, const PlotValue& bar, double y, const char* color) {
  const auto x = [&](double value) { return places.left + kBarsWidth * value / places.high; };
  const double middle = y + kBarHeight / 2;
  if (!bar.value)
    return fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"4\" height=\"{}\" fill=\"{}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#a00\">{}</text>\n",
        places.left, y, kBarHeight, color, places.left + 9, middle + 4.5, xml_text(bar.note));
  double end = x(*bar.value);
  std::string svg = fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>",
                                places.left, y, end - places.left, kBarHeight, color);
  if (bar.low && bar.high) {
    svg += fmt::format(
        "<path d=\"M{0:.1f} {2:.1f}H{1:.1f}M{0:.1f} {3:.1f}V{4:.1f}M{1:.1f} {3:.1f}V{4:.1f}\" "
        "stroke=\"#333\" fill=\"none\"/>",
        x(*bar.low), x(*bar.high), middle, middle - 4, middle + 4);
    end = std::max(end, x(*bar.high));
  }
  return svg +
         fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", end + 6, middle + 4.5, value_text(*bar.value));
}

double highest_of(const BarPlot& plot) {
  double high = 0.0;
  for (const auto& group : plot.groups)
    for (const PlotValue& bar : group.bars)
      if (bar.value) high = std::max({high, *bar.value, bar.high.value_or(0.0)});
  return high > 0.0 ? high : 1.0;
}

}  // namespace

std::string to_svg(const BarPlot& plot) {
  BarPlaces places{20, kBarsTop, 0, 0, highest_of(plot), std::max<std::size_t>(1, plot.members.size())};
  for (const auto& group : plot.groups) places.left = std::max(places.left, text_width(group.label) + 24);
  // The title is in a font of 15 pixels, and begins at the left edge.
  places.width = std::max(places.left + kBarsWidth + kBarsRight, 20 + text_width(plot.title) * 15 / 13);
  double legend_height = 0.0;
  std::string svg = bar_legend(plot, 20, places.width, legend_height);
  places.top += legend_height;
  places.bottom = places.top + places.group_height() * static_cast<double>(plot.groups.size());
  svg += vertical_grid(places, plot.axis);
  for (std::size_t g = 0; g < plot.groups.size(); ++g) {
    const auto& group = plot.groups[g];
    const double middle = (places.y(g, 0) + places.y(g, places.members - 1) + kBarHeight) / 2;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", places.left - 8, middle + 4.5,
                       xml_text(group.label));
    for (std::size_t i = 0; i < group.bars.size(); ++i)
      svg += bar_svg(places, group.bars[i], places.y(g, i), kPlotColors.at(i % kPlotColors.size()));
  }
  double height = places.bottom + 54;
  if (!plot.note.empty()) {
    svg += fmt::format("<text x=\"20\" y=\"{:.1f}\" fill=\"#555\">{}</text>\n", height + 8, xml_text(plot.note));
    height += 22;
  }
  return svg_of(places.width, height, 20, plot.title, svg);
}

}  // namespace molen::plan
