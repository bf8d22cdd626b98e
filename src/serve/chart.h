// Line and stacked charts: as SVG text, which prints and needs no script, and as data for the page's script, which
// draws the same chart with a cursor and zoom in its place. A table is folded away below each.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace molen::serve {

using Points = std::vector<std::pair<double, double>>;  // by ascending x; a y that is not finite is a gap

struct Series {
  std::string name;
  Points points;
  bool marks = false;  // points of their own instead of a line
  int dashed = 0;      // a plan or a baseline: 1, 2, 3 ... tell several apart
  int color = -1;      // of the palette; -1: its place in the chart
};

struct Mark {
  double x = 0;
  std::string name;  // "resume"
};

struct Chart {
  std::string title, x_name, y_name;
  std::vector<Series> series;
  std::vector<Mark> marks = {};  // vertical lines
  bool from_zero = false;
  bool stacked = false;  // all series have the same x values; what is not finite counts as 0
  std::string empty = "Nothing measured.";
};

// At most three points per column, the least, the greatest and a gap, so that spikes and holes stay visible; and the
// first and the last. All points where there are no more than two a column.
Points thin(const Points& points, std::size_t columns);

// The figure with legend and table; `index` is the chart's place among the script's. Colours are CSS variables --c0 ...
// --c9 of the page.
std::string to_html(const Chart& chart, std::size_t index);

// The same chart for the script, as JSON: {title, x, y, zero, stack, series: [{name, color, marks, dash, x: [], y:
// []}], marks: [{x, name}]}; "null" where nothing is measured.
std::string to_script(const Chart& chart);

// A JSON string that may stand inside <script>.
std::string quote(const std::string& text);

// &, <, >, quotes.
std::string escape(const std::string& text);

}  // namespace molen::serve
