#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "plan/calculus_table.h"

namespace molen::plan {
namespace {

constexpr double kPlotWidth = 860, kPlotHeight = 520, kPlotLeft = 70, kPlotRight = 110, kPlotTop = 50, kPlotBottom = 60;
constexpr double kLabelHeight = 15;  // least distance between the names of two lines
// Colours that people with any colour vision tell apart (Okabe and Ito 2008).
constexpr std::array kLineColors{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};

std::string xml(std::string_view text) {
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

// Returns a round distance between ticks, of which at most `most` fit below `high`: 1, 2 or 5 times a power of ten.
double tick_distance(double high, double most) {
  const double least = high / most, power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10.0 * power;
}

// Maps tokens and days to places in the plot. Both axes begin at 0.
struct PlotFrame {
  double most_tokens, most_days;
  double x(double tokens) const { return kPlotLeft + tokens / most_tokens * (kPlotWidth - kPlotLeft - kPlotRight); }
  double y(double days) const {
    return kPlotHeight - kPlotBottom - days / most_days * (kPlotHeight - kPlotTop - kPlotBottom);
  }
};

std::string axes_of(const PlotFrame& frame) {
  const double right = kPlotWidth - kPlotRight, bottom = kPlotHeight - kPlotBottom;
  std::string svg;
  const double days = tick_distance(frame.most_days, 8), tokens = tick_distance(frame.most_tokens, 8);
  for (int i = 0; i * days <= frame.most_days * (1 + 1e-9); ++i)
    svg += fmt::format(
        "<line x1=\"{:.0f}\" y1=\"{:.1f}\" x2=\"{:.0f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n",
        kPlotLeft, frame.y(i * days), right, frame.y(i * days), kPlotLeft - 8, frame.y(i * days) + 4, i * days);
  for (int i = 0; i * tokens <= frame.most_tokens * (1 + 1e-9); ++i)
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.0f}\" x2=\"{:.1f}\" y2=\"{:.0f}\" stroke=\"#333\"/>"
        "<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{:g}</text>\n",
        frame.x(i * tokens), bottom, frame.x(i * tokens), bottom + 5, frame.x(i * tokens), bottom + 20,
        i * tokens / 1e9);
  return svg + fmt::format(
                   "<path d=\"M{0:.0f} {1:.0f}V{2:.0f}H{3:.0f}\" fill=\"none\" stroke=\"#333\"/>\n"
                   "<text x=\"{4:.0f}\" y=\"{5:.0f}\" text-anchor=\"middle\">tokens, billions</text>\n"
                   "<text transform=\"translate(20 {6:.0f}) rotate(-90)\" text-anchor=\"middle\">days</text>\n",
                   kPlotLeft, kPlotTop, bottom, right, (kPlotLeft + right) / 2, kPlotHeight - 16,
                   (kPlotTop + bottom) / 2);
}

// Returns the heights of the lines' names beside their ends. Names are moved up until none overlaps another.
std::vector<double> label_heights(const PlotFrame& frame, const DaysTable& days) {
  std::vector<std::size_t> order(days.models.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto end = [&](std::size_t i) { return days.seconds[i].back().value / 86400.0; };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return end(a) < end(b); });
  std::vector<double> heights(order.size());
  double below = kPlotHeight;
  for (const std::size_t i : order) heights[i] = below = std::min(frame.y(end(i)), below - kLabelHeight);
  return heights;
}

std::string lines_of_models(const PlotFrame& frame, const DaysTable& days) {
  std::string svg;
  const std::vector<double> heights = label_heights(frame, days);
  for (std::size_t i = 0; i < days.models.size(); ++i) {
    const char* color = kLineColors.at(i % kLineColors.size());
    const double end = frame.y(days.seconds[i].back().value / 86400.0), x = frame.x(days.tokens.back());
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{:.1f},{:.1f}", color,
                       frame.x(0.0), frame.y(0.0));
    for (std::size_t k = 0; k < days.tokens.size(); ++k)
      svg += fmt::format(" {:.1f},{:.1f}", frame.x(days.tokens[k]), frame.y(days.seconds[i][k].value / 86400.0));
    svg += fmt::format(
        "\"/><path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"{}\" stroke-width=\"0.7\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n",
        x, end, x + 14, heights[i], color, x + 17, heights[i] + 4, color, xml(days.models[i].name));
  }
  return svg;
}

}  // namespace

std::string to_svg(const CalculusReport& report) {
  const DaysTable& days = report.days;
  PlotFrame frame{days.tokens.back(), 0.0};
  for (const auto& row : days.seconds) frame.most_days = std::max(frame.most_days, row.back().value / 86400.0);
  const TrainingPlan& plan = report.plan;
  const double wanted = frame.x(plan.tokens);
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"13\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
             "<text x=\"{2:.0f}\" y=\"26\" font-size=\"15\">{3}</text>\n",
             kPlotWidth, kPlotHeight, kPlotLeft,
             xml(fmt::format("Days of training on {} x {}, {:g} % of {:g} TFLOP/s, {} N FLOPs per token", plan.devices,
                             plan.cluster.device.name, 100.0 * plan.mfu.value,
                             plan.cluster.device.peak_16bit.value / 1e12, plan.recompute ? 8 : 6))) +
         axes_of(frame) +
         fmt::format(
             "<path d=\"M{0:.1f} {1:.0f}V{2:.0f}\" stroke=\"#777\" stroke-dasharray=\"4 4\"/>"
             "<text x=\"{0:.1f}\" y=\"{3:.0f}\" text-anchor=\"{5}\" fill=\"#555\">{4:g} B tokens</text>\n",
             wanted, kPlotTop, kPlotHeight - kPlotBottom, kPlotTop - 6, plan.tokens / 1e9,
             // Right of the middle, the text ends at the line, so that it leaves room for the names of the lines.
             wanted > kPlotWidth / 2 ? "end" : "start") +
         lines_of_models(frame, days) + "</svg>\n";
}

}  // namespace molen::plan
