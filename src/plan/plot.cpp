#include "plan/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace molen::plan {
namespace {

constexpr double kFont = 13.0;

double tick_distance(double high, double most) {
  const double least = high / most, power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10.0 * power;
}

}  // namespace

std::string xml_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else
      escaped += c;
  }
  return escaped;
}

double text_width(std::string_view text) {
  double width = 0.0;
  for (const char c : text) width += kFont * ((c >= 'A' && c <= 'Z') || c == '_' || c == '%' ? 0.75 : 0.6);
  return width;
}

double PlotScale::at(double value) const {
  const double share = logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return from + share * (to - from);
}

std::vector<PlotTick> round_ticks(double high, double most, double unit) {
  std::vector<PlotTick> ticks;
  const double distance = tick_distance(high, most);
  // A tick at the very end of the axis must not fall to rounding.
  for (int i = 0; i * distance <= high * (1 + 1e-9); ++i)
    ticks.push_back({i * distance, fmt::format("{:g}", i * distance / unit)});
  return ticks;
}

std::string svg_of(double width, double height, double left, std::string_view title, std::string_view drawn) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2:.0f}\" y=\"26\" font-size=\"15\">{3}</text>\n{4}</svg>\n",
      width, height, left, xml_text(title), drawn);
}

std::string axes_svg(const PlotFrame& frame, const std::vector<PlotTick>& x_ticks, const std::vector<PlotTick>& y_ticks,
                     std::string_view x_name, std::string_view y_name) {
  const double left = frame.x.from, right = frame.x.to, bottom = frame.y.from, top = frame.y.to;
  std::string svg;
  for (const PlotTick& tick : y_ticks)
    svg += fmt::format(
        "<line x1=\"{:.0f}\" y1=\"{:.1f}\" x2=\"{:.0f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        left, frame.y.at(tick.value), right, frame.y.at(tick.value), left - 8, frame.y.at(tick.value) + 4,
        xml_text(tick.label));
  double taken = -1e9;  // the right end of the last label
  for (const PlotTick& tick : x_ticks) {
    const double at = frame.x.at(tick.value), half = text_width(tick.label) / 2;
    const bool room = at - half > taken + 4;
    if (room) taken = at + half;
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.0f}\" x2=\"{:.1f}\" y2=\"{:.0f}\" stroke=\"#333\"/>"
        "<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n",
        at, bottom, at, bottom + 5, at, bottom + 20, room ? xml_text(tick.label) : "");
  }
  return svg + fmt::format(
                   "<path d=\"M{0:.0f} {1:.0f}V{2:.0f}H{3:.0f}\" fill=\"none\" stroke=\"#333\"/>\n"
                   "<text x=\"{4:.0f}\" y=\"{5:.0f}\" text-anchor=\"middle\">{6}</text>\n"
                   "<text transform=\"translate(20 {7:.0f}) rotate(-90)\" text-anchor=\"middle\">{8}</text>\n",
                   left, top, bottom, right, (left + right) / 2, bottom + 44, xml_text(x_name), (top + bottom) / 2,
                   xml_text(y_name));
}

std::vector<double> heights_apart(const std::vector<double>& heights, double distance, double lowest) {
  std::vector<std::size_t> order(heights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return heights[a] > heights[b]; });
  std::vector<double> apart(heights.size());
  double below = lowest + distance;
  for (const std::size_t i : order) apart[i] = below = std::min(heights[i], below - distance);
  return apart;
}

}  // namespace molen::plan
