#include "serve/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/json.h"

namespace molen::serve {
namespace {

constexpr double kWidth = 720, kHeight = 260, kLeft = 64, kRight = 12, kTop = 14, kBottom = 34;
constexpr const char* kDashes[] = {"", "stroke-dasharray='7 4' ", "stroke-dasharray='2 3' ",
                                   "stroke-dasharray='9 3 2 3' "};
constexpr std::size_t kColumns = 640, kScriptColumns = 1000, kStackColumns = 320, kTableRows = 20;

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void add(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
  void widen() {
    if (low == high) {
      const double pad = low == 0 ? 1 : std::abs(low) * 0.1;
      low -= pad;
      high += pad;
    }
  }
};

// Returns about five round values between low and high, which are 1, 2 or 5 times a power of ten apart.
std::vector<double> ticks(Extent e) {
  const double rough = (e.high - e.low) / 5, power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= rough) {
      step = m * power;
      break;
    }
  std::vector<double> t;
  const double first = std::ceil(e.low / step);
  for (int i = 0; i < 12 && (first + i) * step <= e.high + step * 1e-9; ++i) t.push_back((first + i) * step);
  return t;
}

std::string number(double v) {
  const double a = std::abs(v);
  if (a >= 1e9) return fmt::format("{:.4g}G", v * 1e-9);
  if (a >= 1e6) return fmt::format("{:.4g}M", v * 1e-6);
  if (a >= 1e4) return fmt::format("{:.4g}k", v * 1e-3);
  return fmt::format("{:.4g}", v);
}

struct Frame {
  Extent x, y;
  double px(double v) const { return kLeft + (v - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight); }
  double py(double v) const { return kHeight - kBottom - (v - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom); }
};

std::string axes(const Frame& f, const Chart& c) {
  std::string s;
  for (const double v : ticks(f.y))
    s += fmt::format(
        "<line class=grid x1={:.0f} x2={:.0f} y1={:.1f} y2={:.1f} /><text x={:.0f} y={:.1f} "
        "text-anchor=end>{}</text>",
        kLeft, kWidth - kRight, f.py(v), f.py(v), kLeft - 6, f.py(v) + 4, number(v));
  for (const double v : ticks(f.x))
    s +=
        fmt::format("<text x={:.1f} y={:.0f} text-anchor=middle>{}</text>", f.px(v), kHeight - kBottom + 16, number(v));
  s += fmt::format("<text x={:.0f} y={:.0f} text-anchor=end>{}</text>", kWidth - kRight, kHeight - 4, escape(c.x_name));
  for (const Mark& m : c.marks)
    if (m.x >= f.x.low && m.x <= f.x.high)
      s += fmt::format(
          "<line class=event x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} /><text x={3:.1f} y={4:.0f} "
          "text-anchor=end>{5}</text>",
          f.px(m.x), kTop, kHeight - kBottom, f.px(m.x) - 3, kTop + 9, escape(m.name));
  return s;
}

std::size_t color_of(const Chart& c, std::size_t i) {
  return static_cast<std::size_t>(c.series[i].color < 0 ? static_cast<int>(i) : c.series[i].color) % 10;
}

bool measured(const Series& s) {
  return std::any_of(s.points.begin(), s.points.end(), [](const auto& p) { return std::isfinite(p.second); });
}

// Returns the x values of the table's rows: every n-th step, the ends, and each series' least and greatest value.
std::vector<double> table_rows(const Chart& c) {
  std::vector<double> all, rows;
  for (const auto& s : c.series) {
    if (!measured(s)) continue;
    for (const auto& p : s.points) all.push_back(p.first);
    const auto less = [](const auto& a, const auto& b) {
      return std::isfinite(a.second) && (!std::isfinite(b.second) || a.second < b.second);
    };
    const auto more = [](const auto& a, const auto& b) {
      return std::isfinite(a.second) && (!std::isfinite(b.second) || a.second > b.second);
    };
    rows.push_back(std::min_element(s.points.begin(), s.points.end(), less)->first);
    rows.push_back(std::min_element(s.points.begin(), s.points.end(), more)->first);
    if (s.marks && s.points.size() <= 2 * kTableRows)
      for (const auto& p : s.points) rows.push_back(p.first);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const std::size_t n = std::min(all.size(), kTableRows);
  for (std::size_t i = 0; i < n; ++i) rows.push_back(all[n == 1 ? 0 : i * (all.size() - 1) / (n - 1)]);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

std::string table(const Chart& c) {
  std::string s = "<details><summary>Table</summary><div class=scroll><table><caption>" + escape(c.title) + ", " +
                  escape(c.y_name) + "</caption><tr><th scope=col>" + escape(c.x_name);
  for (const auto& series : c.series) s += "<th scope=col>" + escape(series.name);
  for (const double x : table_rows(c)) {
    s += fmt::format("<tr><th scope=row>{:.{}g}", x, x == std::floor(x) ? 15 : 6);
    for (const auto& series : c.series) {
      const auto at = std::lower_bound(series.points.begin(), series.points.end(), x,
                                       [](const auto& p, double v) { return p.first < v; });
      s += at == series.points.end() || at->first != x || !std::isfinite(at->second)
               ? std::string("<td>-")
               : fmt::format("<td>{:.5g}", at->second);
    }
  }
  return s + "</table></div></details>";
}

// Returns the rows that represent a stacked chart: those with the least and the greatest total of each column.
std::vector<std::size_t> stack_rows(const Chart& c) {
  const std::size_t n = c.series.empty() ? 0 : c.series.front().points.size();
  Points totals;
  for (std::size_t i = 0; i < n; ++i) {
    double total = 0;
    for (const auto& s : c.series)
      if (std::isfinite(s.points[i].second)) total += s.points[i].second;
    totals.emplace_back(static_cast<double>(i), total);
  }
  std::vector<std::size_t> rows;
  for (const auto& [i, total] : thin(totals, kStackColumns)) rows.push_back(static_cast<std::size_t>(i));
  return rows;
}

// Returns the series as they are drawn. They are thinned; those of a stacked chart share their x values and are not
// summed yet.
std::vector<Points> drawn(const Chart& c, std::size_t columns) {
  std::vector<Points> all;
  if (!c.stacked) {
    for (const auto& s : c.series) all.push_back(thin(s.points, columns));
    return all;
  }
  const auto rows = stack_rows(c);
  for (const auto& s : c.series) {
    Points& points = all.emplace_back();
    for (const std::size_t i : rows)
      points.emplace_back(s.points[i].first, std::isfinite(s.points[i].second) ? s.points[i].second : 0.0);
  }
  return all;
}

std::string line_path(const Frame& f, const Points& points) {
  std::string path;
  bool pen = false;
  for (const auto& [x, y] : points) {
    if (std::isfinite(y)) path += fmt::format("{}{:.1f} {:.1f}", pen ? "L" : "M", f.px(x), f.py(y));
    pen = std::isfinite(y);
  }
  return path;
}

std::string draw_line(const Frame& f, const Series& s, const Points& points, std::size_t color) {
  const auto finite =
      std::count_if(points.begin(), points.end(), [](const auto& p) { return std::isfinite(p.second); });
  if (!s.marks && finite > 1)
    return fmt::format("<path d='{}' fill=none stroke='var(--c{})' stroke-width=1.6 {}/>", line_path(f, points), color,
                       kDashes[std::min(s.dashed, 3)]);
  std::string out;
  for (const auto& [x, y] : points)
    if (std::isfinite(y))
      out += fmt::format("<circle cx={:.1f} cy={:.1f} r=4 fill='var(--c{})' />", f.px(x), f.py(y), color);
  return out;
}

std::string draw_area(const Frame& f, const Points& low, const Points& high, std::size_t color) {
  // A single step has no width, so it is drawn as a bar.
  if (high.size() == 1)
    return fmt::format("<rect x={:.1f} y={:.1f} width=60 height={:.1f} fill='var(--c{})' />", f.px(high[0].first) - 30,
                       f.py(high[0].second), std::max(0.0, f.py(low[0].second) - f.py(high[0].second)), color);
  std::string path;
  for (const auto& [x, y] : high) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", f.px(x), f.py(y));
  for (auto p = low.rbegin(); p != low.rend(); ++p)
    path += fmt::format("L{:.1f} {:.1f}", f.px(p->first), f.py(p->second));
  return fmt::format("<path d='{}Z' fill='var(--c{})' />", path, color);
}

std::string json_number(double v) {
  return std::isfinite(v) ? fmt::format("{:.7g}", v) : "null";
}

}  // namespace

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string quote(const std::string& text) {
  std::string out;
  for (const char c : Json(text).dump(-1, ' ', true, Json::error_handler_t::replace))
    if (c == '<' || c == '>' || c == '&')
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  return out;
}

Points thin(const Points& points, std::size_t columns) {
  if (points.size() <= 2 * columns) return points;
  Points kept;
  const auto at = [&](std::size_t column) {
    return points.begin() + static_cast<std::ptrdiff_t>(points.size() * column / columns);
  };
  for (std::size_t c = 0; c < columns; ++c) {
    std::optional<Points::const_iterator> low, high, gap;
    for (auto p = at(c); p != at(c + 1); ++p) {
      if (!std::isfinite(p->second)) {
        gap = gap.value_or(p);
        continue;
      }
      if (!low || p->second < (*low)->second) low = p;
      if (!high || p->second > (*high)->second) high = p;
    }
    std::vector<Points::const_iterator> chosen;
    if (c == 0) chosen.push_back(points.begin());
    if (c + 1 == columns) chosen.push_back(points.end() - 1);
    for (const auto& one : {low, high, gap})
      if (one && std::find(chosen.begin(), chosen.end(), *one) == chosen.end()) chosen.push_back(*one);
    std::sort(chosen.begin(), chosen.end());
    for (const auto& one : chosen) kept.push_back(*one);
  }
  return kept;
}

std::string to_html(const Chart& c, std::size_t index) {
  std::string s = fmt::format("<figure data-chart={}><figcaption>", index) + escape(c.title) + " <small>" +
                  escape(c.y_name) + "</small></figcaption>";
  if (std::none_of(c.series.begin(), c.series.end(), measured))
    return s + "<p class=none>" + escape(c.empty) + "</p></figure>";
  std::vector<Points> points = drawn(c, kColumns);
  if (c.stacked)
    for (std::size_t i = 1; i < points.size(); ++i)
      for (std::size_t k = 0; k < points[i].size(); ++k) points[i][k].second += points[i - 1][k].second;
  Frame f;
  for (const auto& one : points)
    for (const auto& [x, y] : one)
      if (std::isfinite(y)) {
        f.x.add(x);
        f.y.add(y);
      }
  if (c.from_zero || c.stacked) f.y.add(0.0);
  f.x.widen();
  f.y.widen();
  if (c.from_zero || c.stacked) f.y.high += 0.1 * (f.y.high - f.y.low);
  s += "<div class=plot></div>" + fmt::format("<svg viewBox='0 0 {:.0f} {:.0f}' role=img aria-label='{}'>{}", kWidth,
                                              kHeight, escape(c.title), axes(f, c));
  std::string legend = "<p class=legend>";
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t color = color_of(c, i);
    Points floor = points[i];
    for (auto& p : floor) p.second = 0;
    s += c.stacked ? draw_area(f, i == 0 ? floor : points[i - 1], points[i], color)
                   : draw_line(f, c.series[i], points[i], color);
    legend += fmt::format("<span><i style='background:var(--c{})'></i>{}</span>", color, escape(c.series[i].name));
  }
  return s + "</svg>" + legend + "</p>" + table(c) + "</figure>";
}

std::string to_script(const Chart& c) {
  if (std::none_of(c.series.begin(), c.series.end(), measured)) return "null";
  std::string s = fmt::format("{{\"title\":{},\"x\":{},\"y\":{},\"zero\":{},\"stack\":{},\"series\":[", quote(c.title),
                              quote(c.x_name), quote(c.y_name), c.from_zero || c.stacked, c.stacked);
  const auto points = drawn(c, kScriptColumns);
  for (std::size_t i = 0; i < points.size(); ++i) {
    std::string x, y;
    for (const auto& p : points[i]) {
      x += (x.empty() ? "" : ",") + fmt::format("{:.15g}", p.first);
      y += (y.empty() ? "" : ",") + json_number(p.second);
    }
    s += fmt::format("{}{{\"name\":{},\"color\":{},\"marks\":{},\"dash\":{},\"x\":[{}],\"y\":[{}]}}", i ? "," : "",
                     quote(c.series[i].name), color_of(c, i), c.series[i].marks, c.series[i].dashed, x, y);
  }
  s += "],\"marks\":[";
  for (std::size_t i = 0; i < c.marks.size(); ++i)
    s += fmt::format("{}{{\"x\":{:.15g},\"name\":{}}}", i ? "," : "", c.marks[i].x, quote(c.marks[i].name));
  return s + "]}";
}

}  // namespace molen::serve
