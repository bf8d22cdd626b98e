#include "serve/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace molen::serve {
namespace {

constexpr double kWidth = 720, kHeight = 260, kLeft = 64, kRight = 12, kTop = 10, kBottom = 34;
constexpr std::size_t kColumns = 640;

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

// About five round values between low and high (1, 2 or 5 times a power of ten apart).
std::vector<double> ticks(Extent e) {
  const double rough = (e.high - e.low) / 5, power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= rough) {
      step = m * power;
      break;
    }
  std::vector<double> t;
  for (double v = std::ceil(e.low / step) * step; v <= e.high + step * 1e-9; v += step) t.push_back(std::abs(v) < step * 1e-9 ? 0.0 : v);
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
    s += fmt::format("<line class=grid x1={:.0f} x2={:.0f} y1={:.1f} y2={:.1f} /><text x={:.0f} y={:.1f} text-anchor=end>{}</text>", kLeft, kWidth - kRight, f.py(v),
                     f.py(v), kLeft - 6, f.py(v) + 4, number(v));
  for (const double v : ticks(f.x))
    s += fmt::format("<text x={:.1f} y={:.0f} text-anchor=middle>{}</text>", f.px(v), kHeight - kBottom + 16, number(v));
  s += fmt::format("<text x={:.0f} y={:.0f} text-anchor=end>{}</text>", kWidth - kRight, kHeight - 4, escape(c.x_name));
  for (const double v : c.events)
    if (v >= f.x.low && v <= f.x.high) s += fmt::format("<line class=event x1={0:.1f} x2={0:.1f} y1={1:.0f} y2={2:.0f} />", f.px(v), kTop, kHeight - kBottom);
  return s;
}

std::string table(const Chart& c) {
  std::string s = "<details><summary>table</summary><table><tr><th>" + escape(c.x_name);
  std::vector<double> xs;
  for (const auto& series : c.series)
    for (const auto& [x, y] : thin(series.points, 25)) xs.push_back(x);
  std::sort(xs.begin(), xs.end());
  xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
  for (const auto& series : c.series) s += "<th>" + escape(series.name);
  for (const double x : xs) {
    s += fmt::format("<tr><td>{}", number(x));
    for (const auto& series : c.series) {
      const auto at = std::find_if(series.points.begin(), series.points.end(), [&](const auto& p) { return p.first == x; });
      s += at == series.points.end() || !std::isfinite(at->second) ? std::string("<td>-") : fmt::format("<td>{:.5g}", at->second);
    }
  }
  return s + "</table></details>";
}

// Each series on top of the ones before it; all have the same x values.
std::vector<Series> stack(const std::vector<Series>& series) {
  std::vector<Series> stacked = series;
  for (std::size_t s = 1; s < stacked.size(); ++s)
    for (std::size_t i = 0; i < std::min(stacked[s].points.size(), stacked[s - 1].points.size()); ++i) stacked[s].points[i].second += stacked[s - 1].points[i].second;
  return stacked;
}

std::string area(const Frame& f, const Points& low, const Points& high, std::size_t color) {
  std::string path;
  for (const auto& [x, y] : high) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", f.px(x), f.py(y));
  for (auto p = low.rbegin(); p != low.rend(); ++p) path += fmt::format("L{:.1f} {:.1f}", f.px(p->first), f.py(p->second));
  return fmt::format("<path d='{}Z' fill='var(--c{})' />", path, color % 8);
}

}  // namespace

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  return out;
}

Points thin(const Points& points, std::size_t columns) {
  Points finite;
  for (const auto& p : points)
    if (std::isfinite(p.first) && std::isfinite(p.second)) finite.push_back(p);
  if (finite.size() <= 2 * columns) return finite;
  Points kept;
  for (std::size_t c = 0; c < columns; ++c) {
    const auto first = finite.begin() + static_cast<std::ptrdiff_t>(finite.size() * c / columns), last = finite.begin() + static_cast<std::ptrdiff_t>(finite.size() * (c + 1) / columns);
    const auto [low, high] = std::minmax_element(first, last, [](const auto& a, const auto& b) { return a.second < b.second; });
    kept.push_back(std::min(*low, *high));
    if (low != high) kept.push_back(std::max(*low, *high));
  }
  return kept;
}

std::string to_html(const Chart& c) {
  std::string s = "<figure><figcaption>" + escape(c.title) + " <small>" + escape(c.y_name) + "</small></figcaption>";
  const std::vector<Series> series = c.stacked ? stack(c.series) : c.series;
  Frame f;
  for (const auto& one : series)
    for (const auto& [x, y] : one.points)
      if (std::isfinite(x) && std::isfinite(y)) {
        f.x.add(x);
        f.y.add(y);
      }
  if (f.x.empty()) return s + "<p class=none>nothing measured</p></figure>";
  if (c.from_zero || c.stacked) f.y.add(0.0);
  f.x.widen();
  f.y.widen();
  s += fmt::format("<svg viewBox='0 0 {:.0f} {:.0f}' role=img aria-label='{}'>{}", kWidth, kHeight, escape(c.title), axes(f, c));
  std::string legend = "<p class=legend>";
  for (std::size_t i = 0; i < series.size(); ++i) {
    const Points points = c.stacked && series[i].points.size() > kColumns ? Points() : thin(series[i].points, kColumns);
    if (c.stacked) {
      Points high, low;
      const std::size_t every = std::max<std::size_t>(1, series[i].points.size() / kColumns);
      for (std::size_t k = 0; k < series[i].points.size(); k += every) {
        high.push_back(series[i].points[k]);
        low.emplace_back(series[i].points[k].first, i == 0 ? 0.0 : series[i - 1].points[k].second);
      }
      s += area(f, low, high, i);
    } else if (series[i].marks || points.size() == 1) {
      for (const auto& [x, y] : points) s += fmt::format("<circle cx={:.1f} cy={:.1f} r=4 fill='var(--c{})' />", f.px(x), f.py(y), i % 8);
    } else {
      std::string path;
      for (const auto& [x, y] : points) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", f.px(x), f.py(y));
      s += fmt::format("<path d='{}' fill=none stroke='var(--c{})' stroke-width=1.6 />", path, i % 8);
    }
    legend += fmt::format("<span><i style='background:var(--c{})'></i>{}</span>", i % 8, escape(series[i].name));
  }
  return s + "</svg>" + legend + "</p>" + table(c) + "</figure>";
}

}  // namespace molen::serve
