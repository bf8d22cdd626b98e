// Plots as SVG: axes, lines and bars.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace molen::plan {

// Colours that people with any colour vision tell apart (Okabe and Ito 2008).
inline constexpr std::array kPlotColors{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};

// Escapes text for SVG.
std::string xml_text(std::string_view text);

// Returns about the pixels that a text takes in the plots' font (13 pixels, sans-serif). The widths are those of a wide
// font, DejaVu Sans: capitals take up to 0.75 of the font's height, and other letters 0.6 on average.
double text_width(std::string_view text);

// Maps values to pixels. A logarithmic scale has a `low` above 0.
struct PlotScale {
  double low = 0.0, high = 1.0;
  double from = 0.0, to = 1.0;  // the pixels of `low` and `high`
  bool logarithmic = false;
  double at(double value) const;
};

struct PlotTick {
  double value = 0.0;
  std::string label;
};

// Returns ticks from 0 to `high`, at most `most` of them besides 0, at round distances: 1, 2 or 5 times a power of ten.
// Labels are in units of `unit`.
std::vector<PlotTick> round_ticks(double high, double most, double unit = 1.0);

// The area of a plot with two axes, in pixels of its picture.
struct PlotFrame {
  double width = 860, height = 520;
  PlotScale x, y;
};

// Returns a picture: its frame, a title above, and what is drawn. Notes stand below the plot, one a line; `height` has
// room for them.
std::string svg_of(double width, double height, double left, std::string_view title, std::string_view drawn);

// Returns both axes with their ticks and names: horizontal grid lines, and a mark for each tick below. A tick label
// that would touch the one before it is left out.
std::string axes_svg(const PlotFrame& frame, const std::vector<PlotTick>& x, const std::vector<PlotTick>& y,
                     std::string_view x_name, std::string_view y_name);

// Returns heights that are at least `distance` apart and at most `lowest`: each height is moved up until it is.
std::vector<double> heights_apart(const std::vector<double>& heights, double distance, double lowest);

// A value with its interval. Absent: there is none, and `note` says why.
struct PlotValue {
  std::optional<double> value, low, high;
  std::string note;
};

// Horizontal bars in groups, one colour for each member of a group.
struct BarPlot {
  std::string title, axis;           // "tokens/s per device"
  std::string legend;                // what the members of a group are: "sharding"
  std::vector<std::string> members;  // their names; a single one has no legend
  struct Group {
    std::string label;
    std::vector<PlotValue> bars;  // one a member
  };
  std::vector<Group> groups;
  std::string note;  // below the axis
};
std::string to_svg(const BarPlot& plot);

// Lines over common places on the x axis.
struct LinePlot {
  std::string title, x_axis, y_axis;
  std::vector<double> x;  // above 0, rising
  struct Line {
    std::string name;
    std::vector<PlotValue> points;  // one for each place
    bool ideal = false;             // drawn dashed and grey
  };
  std::vector<Line> lines;
  bool logarithmic_y = false;      // the values are above 0
  std::vector<std::string> notes;  // below the axis
};
// The x axis is logarithmic where the last place is at least 8 times the first.
std::string to_svg(const LinePlot& plot);

}  // namespace molen::plan
