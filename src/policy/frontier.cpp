#include "policy/frontier.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "policy/circulation.h"
#include "policy/options.h"

namespace molen::policy {
namespace {

// Sums of doubles in another order differ by this share at most, in graphs of up to a million tasks on a path.
constexpr double kRounding = 1e-10;
// The longest step is this many whole numbers long, so that a duration is rounded by 1e-9 of it.
constexpr double kTicks = 0x1p30;
// The sum of all saved watts, in units of the flow.
constexpr double kFlowUnits = 0x1p42;

std::vector<std::vector<Option>> options_of(const TaskGraph& graph) {
  std::vector<std::vector<Option>> all;
  for (const Task& task : graph.tasks) all.push_back(undominated(graph, task));
  return all;
}

// Joules that each second saves from one option to a slower one.
double watts_between(const Option& fast, const Option& slow) {
  return (fast.joules - slow.joules) / (slow.seconds - fast.seconds);
}

// The tasks with their options, and which of them each takes.
class Choosing {
 public:
  Choosing(const Order& order, std::vector<std::vector<Option>> options)
      : order_(order), options_(std::move(options)), at_(options_.size(), 0), seconds_(options_.size(), 0.0) {
    for (std::size_t t = 0; t < at_.size(); ++t) take(t, 0);
  }

  void take(std::size_t task, std::size_t option) {
    at_[task] = option;
    seconds_[task] = options_[task][option].seconds;
  }
  // Takes the slowest option of at most so many seconds, or the fastest one if there is none.
  void take_within(std::size_t task, double seconds) {
    std::size_t option = 0;
    while (option + 1 < options_[task].size() && options_[task][option + 1].seconds <= seconds) ++option;
    take(task, option);
  }
  Choices choices() const {
    Choices choices;
    for (std::size_t t = 0; t < at_.size(); ++t) choices.push_back(options_[t][at_[t]].choice);
    return choices;
  }
  double end_s() const { return order_.earliest(seconds_).end_s; }

  // Makes tasks of the longest path faster, those first that lose the fewest joules a second, until all end in time.
  void hurry(double deadline_s) {
    for (auto times = order_.earliest(seconds_); times.end_s > deadline_s; times = order_.earliest(seconds_)) {
      std::optional<std::size_t> cheapest;
      double least = 0.0;
      for (int task = last_of(times); task >= 0; task = before(task, times)) {
        const auto t = static_cast<std::size_t>(task);
        if (at_[t] == 0) continue;
        const double watts = watts_between(options_[t][at_[t] - 1], options_[t][at_[t]]);
        if (!cheapest || watts < least) cheapest = t, least = watts;
      }
      MOLEN_CHECK(cheapest, "the longest path takes {} s with its fastest choices, and {} s are allowed", times.end_s,
                  deadline_s);
      take(*cheapest, at_[*cheapest] - 1);
    }
  }

  // Gives the time that is left to the tasks that save most with it, in rounds of smaller and smaller savings.
  void fill(double deadline_s) {
    double most = 0.0;
    for (const auto& options : options_)
      for (std::size_t i = 1; i < options.size(); ++i) most = std::max(most, watts_between(options[i - 1], options[i]));
    constexpr int kRounds = 12;
    for (int round = 1; round <= kRounds; ++round)
      fill_round(deadline_s, round == kRounds ? 0.0 : most * (1.0 - static_cast<double>(round) / kRounds));
  }

 private:
  void fill_round(double deadline_s, double least_watts) {
    const auto ends = order_.latest_ends(seconds_, deadline_s);
    std::vector<double> start(seconds_.size(), 0.0);
    for (const int task : order_.tasks()) {
      const auto t = static_cast<std::size_t>(task);
      for (const int e : order_.into(task)) {
        const Edge& edge = order_.graph().edges[static_cast<std::size_t>(e)];
        const auto from = static_cast<std::size_t>(edge.from);
        start[t] = std::max(start[t], start[from] + seconds_[from] + edge.lag_s);
      }
      const auto& options = options_[t];
      std::size_t option = at_[t];
      for (std::size_t o = option + 1; o < options.size() && options[o].seconds <= ends[t] - start[t]; ++o)
        if (watts_between(options[option], options[o]) >= least_watts) option = o;
      take(t, option);
    }
  }

  int last_of(const Order::Times& times) const {
    int last = 0;
    for (std::size_t t = 0; t < seconds_.size(); ++t) {
      const auto l = static_cast<std::size_t>(last);
      if (times.start_s[t] + seconds_[t] > times.start_s[l] + seconds_[l]) last = static_cast<int>(t);
    }
    return last;
  }
  // Returns the task that a task waits for until it starts, or -1.
  int before(int task, const Order::Times& times) const {
    const double start = times.start_s[static_cast<std::size_t>(task)];
    if (start <= 0.0) return -1;
    for (const int e : order_.into(task)) {
      const Edge& edge = order_.graph().edges[static_cast<std::size_t>(e)];
      const auto from = static_cast<std::size_t>(edge.from);
      if (times.start_s[from] + seconds_[from] + edge.lag_s >= start) return edge.from;
    }
    return -1;
  }

  const Order& order_;
  std::vector<std::vector<Option>> options_;
  std::vector<std::size_t> at_;  // option of each task
  std::vector<double> seconds_;
};

// The problem of the least energy within a deadline, in whole numbers.
class Deadlines {
 public:
  explicit Deadlines(const TaskGraph& graph) : graph_(graph), order_(graph), options_(options_of(graph)) {
    double watts = 0.0;
    std::vector<double> fastest, slowest;
    for (const auto& options : options_) {
      hulls_.push_back(lower_hull(options));
      const auto& hull = hulls_.back();
      fastest.push_back(hull.front().seconds);
      slowest.push_back(hull.back().seconds);
      if (hull.size() > 1) watts += watts_between(hull[0], hull[1]);
    }
    for (const Edge& e : graph.edges) longest_lag_s_ = std::max(longest_lag_s_, std::abs(e.lag_s));
    fastest_s_ = order_.earliest(fastest).end_s;
    slowest_s_ = order_.earliest(slowest).end_s;
    flow_of_watt_ = watts > 0.0 ? kFlowUnits / watts : 1.0;
  }

  double fastest_s() const { return fastest_s_; }
  double slowest_s() const { return slowest_s_; }

  Plan within(double deadline_s) {
    if (!(deadline_s >= fastest_s_ * (1.0 - kRounding)) || !std::isfinite(deadline_s))
      throw UsageError("no choice of clocks ends within {} s; the fastest one takes {} s", deadline_s, fastest_s_);
    Plan plan;
    if (graph_.tasks.empty()) {
      plan.slope_watts = graph_.wait_watts * graph_.devices;
      plan.joules = plan.bound_joules = plan.slope_watts * deadline_s;
      return plan;
    }
    Choosing choosing(order_, options_);
    relax(deadline_s, plan, choosing);
    const double latest = std::max(deadline_s, fastest_s_) * (1.0 + kRounding);
    choosing.hurry(latest);
    choosing.fill(deadline_s);
    plan.choices = choosing.choices();
    plan.seconds = choosing.end_s();
    plan.joules = joules_of(graph_, plan.choices, deadline_s);
    return plan;
  }

 private:
  // A task with several clocks has a node for its start and one for its end, another has one for both.
  struct Nodes {
    int start = 0, end = 0;
    double after_s = 0.0;  // from the end's node to the end
  };
  static constexpr int kBegin = 0, kDeadline = 1;
  static constexpr std::int64_t kPriceError = 2;  // ticks, of Circulation::prices_from and of a rounded duration

  std::int64_t ticks(double seconds) const { return std::llround(seconds / tick_s_); }

  // An arc of the circulation and the seconds between its nodes: those of a task whose number is given, or at least so
  // many.
  struct Span {
    std::size_t arc = 0;
    int task = -1;
    double seconds = 0.0;
  };

  void relax(double deadline_s, Plan& plan, Choosing& choosing) {
    tick_s_ = std::max({deadline_s, slowest_s_, longest_lag_s_, 1e-30}) / kTicks;
    std::vector<Nodes> nodes;
    int count = 2;
    for (const auto& hull : hulls_) {
      const bool one = hull.size() == 1;
      nodes.push_back({count, one ? count : count + 1, one ? hull[0].seconds : 0.0});
      count += one ? 1 : 2;
    }
    Circulation circulation(static_cast<std::size_t>(count));
    std::vector<Span> spans;
    for (std::size_t t = 0; t < hulls_.size(); ++t)
      if (hulls_[t].size() > 1)
        spans.push_back(
            {circulation.add_arc(nodes[t].start, nodes[t].end, pieces_of(hulls_[t]), true), static_cast<int>(t)});
    add_waits(circulation, nodes, spans);
    std::vector<std::int64_t> prices = fastest_prices(nodes, static_cast<std::size_t>(count));
    const std::int64_t deadline = std::max(ticks(deadline_s), -prices[kDeadline]);
    prices[kDeadline] = -deadline;
    spans.push_back({circulation.add_arc(kDeadline, kBegin, {{0, deadline}}, true), -1, -deadline_s});
    circulation.solve(prices);
    plan.operations = circulation.operations();
    bound(circulation, spans, deadline_s, plan);
    const auto at = circulation.prices_from(kBegin);  // minus the time of each node
    for (std::size_t t = 0; t < hulls_.size(); ++t) {
      const std::int64_t window =
          at[static_cast<std::size_t>(nodes[t].start)] - at[static_cast<std::size_t>(nodes[t].end)];
      choosing.take_within(t, static_cast<double>(window + kPriceError) * tick_s_ + nodes[t].after_s);
    }
  }

  // Any circulation bounds the energy from below: with a flow of w watts through the arc of a task, the task and the
  // worth of its time take at least min (e + w t), and the deadline is worth its flow (weak duality of the linear
  // program). So the bound holds however exact the solver is.
  void bound(const Circulation& circulation, const std::vector<Span>& spans, double deadline_s, Plan& plan) const {
    plan.slope_watts = graph_.wait_watts * graph_.devices;
    plan.bound_joules = plan.slope_watts * deadline_s;
    for (const auto& hull : hulls_)
      if (hull.size() == 1) plan.bound_joules += hull[0].joules;
    for (const Span& span : spans) {
      const double watts = static_cast<double>(circulation.flow(span.arc)) / flow_of_watt_;
      if (span.task < 0) {
        plan.bound_joules += watts * span.seconds;
        continue;
      }
      double least = std::numeric_limits<double>::infinity();
      for (const Option& o : hulls_[static_cast<std::size_t>(span.task)])
        least = std::min(least, o.joules + watts * o.seconds);
      plan.bound_joules += least;
    }
    plan.slope_watts -= static_cast<double>(circulation.flow(spans.back().arc)) / flow_of_watt_;
  }

  // The pieces of the dual of a task: the flow through it is what a second is worth, and the more that is, the shorter
  // the task. A duration of `ticks` costs minus that much for each unit of flow.
  std::vector<Circulation::Piece> pieces_of(const std::vector<Option>& hull) const {
    std::vector<Circulation::Piece> pieces;
    std::int64_t filled = 0;
    for (std::size_t i = hull.size() - 1; i > 0; --i) {
      const std::int64_t until = std::llround(watts_between(hull[i - 1], hull[i]) * flow_of_watt_);
      const std::int64_t cost = -ticks(hull[i].seconds);
      if (until <= filled || cost == -ticks(hull[i - 1].seconds)) continue;
      pieces.push_back({until - filled, cost});
      filled = until;
    }
    pieces.push_back({0, -ticks(hull[0].seconds)});
    return pieces;
  }

  // Adds what a task waits for: the begin of the step, and the ends of other tasks.
  void add_waits(Circulation& circulation, const std::vector<Nodes>& nodes, std::vector<Span>& spans) const {
    const auto add = [&](int from, int to, double seconds) {
      spans.push_back({circulation.add_arc(from, to, {{0, -ticks(seconds)}}, true), -1, seconds});
    };
    std::vector<bool> waits(nodes.size(), false), followed(nodes.size(), false);
    for (const Edge& e : graph_.edges) {
      const Nodes &from = nodes[static_cast<std::size_t>(e.from)], &to = nodes[static_cast<std::size_t>(e.to)];
      add(from.end, to.start, from.after_s + e.lag_s);
      // A lag that is not negative implies that the task starts after the begin, and ends before the deadline.
      if (e.lag_s >= 0.0) waits[static_cast<std::size_t>(e.to)] = followed[static_cast<std::size_t>(e.from)] = true;
    }
    for (std::size_t t = 0; t < nodes.size(); ++t) {
      if (!waits[t]) add(kBegin, nodes[t].start, 0.0);
      if (!followed[t]) add(nodes[t].end, kDeadline, nodes[t].after_s);
    }
  }

  // Minus the time of each node when all tasks are as fast as they can be.
  std::vector<std::int64_t> fastest_prices(const std::vector<Nodes>& nodes, std::size_t count) const {
    std::vector<std::int64_t> prices(count, 0);
    for (const int task : order_.tasks()) {
      const Nodes& node = nodes[static_cast<std::size_t>(task)];
      std::int64_t start = 0;
      for (const int e : order_.into(task)) {
        const Edge& edge = graph_.edges[static_cast<std::size_t>(e)];
        const Nodes& from = nodes[static_cast<std::size_t>(edge.from)];
        start = std::max(start, -prices[static_cast<std::size_t>(from.end)] + ticks(from.after_s + edge.lag_s));
      }
      const std::int64_t end =
          node.end == node.start ? start : start + ticks(hulls_[static_cast<std::size_t>(task)][0].seconds);
      prices[static_cast<std::size_t>(node.start)] = -start;
      prices[static_cast<std::size_t>(node.end)] = -end;
      prices[kDeadline] = std::min(prices[kDeadline], -end - ticks(node.after_s));
    }
    return prices;
  }

  const TaskGraph& graph_;
  Order order_;
  std::vector<std::vector<Option>> options_, hulls_;
  double fastest_s_ = 0.0, slowest_s_ = 0.0, longest_lag_s_ = 0.0;
  double flow_of_watt_ = 1.0, tick_s_ = 1.0;
};

// Adds the points of the frontier between two plans. `a` is faster. The frontier is convex, so it is above the tangents
// of both and below the line between them.
class Frontier {
 public:
  Frontier(Deadlines& deadlines, const FrontierLimits& limits) : deadlines_(deadlines), limits_(limits) {}

  struct Point {
    double deadline_s = 0.0;
    Plan plan;
  };
  Point at(double deadline_s) {
    ++made_;
    return {deadline_s, deadlines_.within(deadline_s)};
  }

  // Refines the widest gaps first, so that a limit on the points leaves none much wider than the others.
  std::vector<Point> between(Point fastest, Point slowest) {
    std::vector<Point> points{std::move(fastest), std::move(slowest)};
    while (made_ < limits_.points) {
      std::size_t widest = 0;
      Gap most;
      for (std::size_t i = 0; i + 1 < points.size(); ++i)
        if (const Gap gap = gap_of(points[i], points[i + 1]); gap.joules > most.joules) most = gap, widest = i;
      if (most.joules <= limits_.gap * points.back().plan.bound_joules) break;
      points.insert(points.begin() + static_cast<std::ptrdiff_t>(widest) + 1, at(most.deadline_s));
    }
    return points;
  }

 private:
  struct Gap {
    double deadline_s = 0.0, joules = 0.0;
  };
  // Where the tangents of two points meet, and how far below the line between the points.
  static Gap gap_of(const Point& a, const Point& b) {
    const double span = b.deadline_s - a.deadline_s;
    const double bend = b.plan.slope_watts - a.plan.slope_watts;
    const double line = (b.plan.bound_joules - a.plan.bound_joules) / span;
    if (!(span > 0.0) || !(bend > 0.0)) return {};
    const double after = std::clamp(span * (b.plan.slope_watts - line) / bend, 0.0, span);
    return {a.deadline_s + after, (line - a.plan.slope_watts) * after};
  }

  Deadlines& deadlines_;
  const FrontierLimits limits_;
  int made_ = 0;
};

}  // namespace

double fastest_seconds(const TaskGraph& graph) {
  return Order(graph).earliest(seconds_of(graph, fastest_choices(graph))).end_s;
}

Plan plan_within(const TaskGraph& graph, double deadline_s) {
  return Deadlines(graph).within(deadline_s);
}

std::vector<Plan> frontier(const TaskGraph& graph, const FrontierLimits& limits) {
  Deadlines deadlines(graph);
  Frontier frontier(deadlines, limits);
  auto fastest = frontier.at(deadlines.fastest_s());
  std::vector<Plan> plans;
  if (deadlines.slowest_s() <= deadlines.fastest_s()) {
    plans.push_back(std::move(fastest.plan));
    return plans;
  }
  for (auto& point : frontier.between(std::move(fastest), frontier.at(deadlines.slowest_s()))) {
    if (!plans.empty() && point.plan.bound_joules >= plans.back().bound_joules) break;
    plans.push_back(std::move(point.plan));
  }
  return plans;
}

Choices fill_slack(const TaskGraph& graph, Choices choices, double deadline_s) {
  const Order order(graph);
  Choosing choosing(order, options_of(graph));
  for (std::size_t t = 0; t < choices.size(); ++t) choosing.take_within(t, chosen(graph, choices, t).seconds);
  choosing.fill(deadline_s);
  return choosing.choices();
}

}  // namespace molen::policy
