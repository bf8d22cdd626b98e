#include "plan/plot.h"

#include <gtest/gtest.h>

namespace molen::plan {
namespace {

bool svg_has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The picture of one bar is 560 pixels of axis, right of a label and left of a value.
TEST(BarPlots, HaveTheirBarsAndValuesInPlace) {
  BarPlot plot;
  plot.axis = "tokens/s";
  plot.groups = {{"a", {{100.0, {}, {}, ""}}}};
  const std::string svg = to_svg(plot);
  // The label takes 13 x 0.6 pixels and 24 beside it, and the value has 90: 7.8 + 24 + 560 + 90.
  EXPECT_TRUE(svg_has(svg, "viewBox=\"0 0 682 125\"")) << svg;
  EXPECT_TRUE(svg_has(svg, "<rect x=\"31.8\" y=\"49.0\" width=\"560.0\"")) << svg;
  EXPECT_TRUE(svg_has(svg, "<text x=\"597.8\" y=\"60.5\">100</text>")) << "6 pixels behind the bar\n" << svg;
}

// Both axes are logarithmic and the line ends in their corners, but for a factor of 1.15 on each side: on the x axis,
// ln 1.15 / ln(1.15 x 8 x 1.15) = 0.0592 of its 620 pixels; on the y axis, whose end is 16, ln 1.15 / ln(1.15 x 16)
// = 0.0480 of its 390.
TEST(LinePlots, HaveTheirPointsAndTicksInPlace) {
  LinePlot plot;
  plot.x = {1.0, 8.0}, plot.x_axis = "ranks", plot.y_axis = "speed-up", plot.logarithmic_y = true;
  plot.lines = {{"a", {{1.0, {}, {}, ""}, {16.0 / 1.15, {}, {}, ""}}}};
  const std::string svg = to_svg(plot);
  EXPECT_TRUE(svg_has(svg, "<path d=\"M116.7 421.3L663.3 68.7\"")) << svg;
  // The axes are from (80, 440) to (700, 50), and the name of the y axis is in the middle of it.
  EXPECT_TRUE(svg_has(svg, "<path d=\"M80 50V440H700\"")) << svg;
  EXPECT_TRUE(svg_has(svg, "translate(20 245) rotate(-90)\" text-anchor=\"middle\">speed-up<")) << svg;
  // The last doubling is the very end of the axis, up to rounding.
  for (const char* tick : {">1</text>", ">2</text>", ">4</text>", ">8</text>", ">16</text>"})
    EXPECT_TRUE(svg_has(svg, tick)) << tick << svg;
}

}  // namespace
}  // namespace molen::plan
