#include "policy/options.h"

#include <algorithm>
#include <utility>

namespace molen::policy {

std::vector<Option> undominated(const TaskGraph& graph, const Task& task) {
  std::vector<Option> all;
  for (std::size_t c = 0; c < task.choices.size(); ++c)
    all.push_back({static_cast<int>(c), task.choices[c].seconds, effective_joules(graph, task, task.choices[c])});
  std::stable_sort(all.begin(), all.end(), [](const Option& a, const Option& b) {
    return std::pair(a.seconds, a.joules) < std::pair(b.seconds, b.joules);
  });
  std::vector<Option> kept;
  for (const Option& o : all)
    if (kept.empty() || o.joules < kept.back().joules) kept.push_back(o);
  return kept;
}

std::vector<Option> lower_hull(const std::vector<Option>& options) {
  std::vector<Option> hull;
  const auto above = [](const Option& a, const Option& b,
                        const Option& c) {  // whether b is not below the line from a to c
    return (b.joules - a.joules) * (c.seconds - a.seconds) >= (c.joules - a.joules) * (b.seconds - a.seconds);
  };
  for (const Option& o : options) {
    while (hull.size() >= 2 && above(hull[hull.size() - 2], hull.back(), o)) hull.pop_back();
    hull.push_back(o);
  }
  return hull;
}

}  // namespace molen::policy
