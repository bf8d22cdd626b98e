// Line and stacked charts as SVG text.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace molen::serve {

using Points = std::vector<std::pair<double, double>>;

struct Series {
  std::string name;
  Points points;
  bool marks = false;   // points of their own instead of a line
};

struct Chart {
  std::string title, x_name, y_name;
  std::vector<Series> series;
  std::vector<double> events;   // x positions of vertical lines (resumes)
  bool from_zero = false;
  bool stacked = false;
};

// At most two points (least and greatest) per pixel column, so that a spike stays visible. Non-finite values are left out.
Points thin(const Points& points, std::size_t columns);

// The chart with its legend, and its table folded away. Colours are CSS variables --c0 ... --c7 of the page.
std::string to_html(const Chart& chart);

// &, <, >, quotes.
std::string escape(const std::string& text);

}  // namespace molen::serve
