// Line and stacked charts, in two forms: SVG text, which prints and needs no script; and data for the page's script,
// which replaces the SVG with the same chart plus cursor and zoom. Each chart has a folded table below it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace molen::serve {

using Points = std::vector<std::pair<double, double>>;  // by ascending x; a y that is not finite is a gap

struct Series {
  std::string name;
  Points points;
  bool marks = false;  // separate points instead of a line
  int dashed = 0;      // for a plan or a baseline: the number of the dash pattern, from 1; 0: a full line
  int color = -1;      // index in the palette; -1: the series' place in the chart
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
  bool stacked = false;  // all series have the same x values; a value that is not finite counts as 0
  std::string empty = "Nothing measured.";
};

// Returns the first point, the last point and at most three points per column (the least, the greatest and a gap), so
// that spikes and holes stay visible. Keeps all points when there are at most two per column.
Points thin(const Points& points, std::size_t columns);

// Returns the figure with legend and table. `index` is the chart's place among the script's charts. Colours are the CSS
// variables --c0 ... --c9 of the page.
std::string to_html(const Chart& chart, std::size_t index);

// Returns the chart for the script, as JSON: {title, x, y, zero, stack, series: [{name, color, marks, dash, x: [], y:
// []}], marks: [{x, name}]}, or "null" when nothing is measured.
std::string to_script(const Chart& chart);

// Returns a JSON string that is safe inside <script>.
std::string quote(const std::string& text);

// Escapes &, <, > and quotes for HTML.
std::string escape(const std::string& text);

}  // namespace molen::serve
