#include "plan/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "program/build.h"
#include "program/memory.h"

namespace molen::plan {
namespace {

int differences(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  int n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) n += a[i] != b[i];
  return n;
}

}  // namespace

std::vector<Fitting> nearest_that_fit(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                                      Bytes memory, std::size_t count, std::size_t tries) {
  const auto chosen = choices_of(setting);
  auto layouts = within_nodes(layouts_of(arch, setting, setting.ranks(), {}), local_ranks);
  // The least memory.
  for (std::size_t i = 0, n = layouts.size(); i < n; ++i)
    if (program::Setting one = layouts[i].setting;
        std::exchange(one.micro_batch, 1) == setting.micro_batch && setting.micro_batch > 1)
      layouts.push_back(layout_of(one));
  std::stable_sort(layouts.begin(), layouts.end(), [&](const Layout& a, const Layout& b) {
    return differences(a.choices, chosen) < differences(b.choices, chosen);
  });
  std::vector<Fitting> fitting;
  for (std::size_t i = 0; i < layouts.size() && i < tries; ++i) {
    // All that differ as little have been looked at.
    if (fitting.size() >= count &&
        differences(layouts[i].choices, chosen) > differences(fitting.back().layout.choices, chosen))
      break;
    // On a CPU the host's memory is the device's.
    Bytes needed;
    for (const auto& p : program::build_stages(arch, layouts[i].setting)) {
      const auto plan = program::plan_memory(p);
      needed = std::max(needed, plan.peak + plan.host);
    }
    if (needed <= memory) fitting.push_back({layouts[i], needed});
  }
  std::stable_sort(fitting.begin(), fitting.end(), [&](const Fitting& a, const Fitting& b) {
    const int x = differences(a.layout.choices, chosen), y = differences(b.layout.choices, chosen);
    return x != y ? x < y : a.peak < b.peak;
  });
  if (fitting.size() > count) fitting.resize(count);
  return fitting;
}

std::string nearest_text(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                         Bytes memory) {
  const auto fitting = nearest_that_fit(arch, setting, local_ranks, memory);
  if (fitting.empty())
    return fmt::format("; none of the nearest layouts of {} rank{} fits either", setting.ranks(),
                       setting.ranks() == 1 ? "" : "s");
  std::string text = "; nearest layouts that fit: ";
  for (const Fitting& f : fitting)
    text += fmt::format("{}{} in micro-batches of {} ({})", &f == fitting.data() ? "" : "; ", f.layout.name,
                        f.layout.setting.micro_batch, human(f.peak));
  return text;
}

}  // namespace molen::plan
