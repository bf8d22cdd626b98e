#include "plan/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/clock.h"

namespace molen::plan {
namespace {

int differences(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  int n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) n += a[i] != b[i];
  return n;
}

struct Candidate {
  Layout layout;
  int differs;  // number of choices that differ
};

std::vector<Candidate> nearby_layouts(const arch::Architecture& arch, const program::Setting& setting,
                                      int local_ranks) {
  const auto chosen = choices_of(setting);
  std::vector<Candidate> all;
  for (Layout& l : within_nodes(layouts_of(arch, setting, setting.ranks(), {}, true), local_ranks)) {
    const int differs = differences(l.choices, chosen);
    all.push_back({std::move(l), differs});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.differs < b.differs; });
  return all;
}

void keep_least(const arch::Architecture& arch, const Layout& layout, std::optional<Layout>& least) {
  const auto order = [&](const Layout& l) {
    return std::tuple(kept_need(arch, l.setting).total(), l.setting.recompute == program::Recompute::full() ? 0 : 1,
                      l.setting.micro_batch * l.setting.local_sequence());
  };
  if (!least || order(layout) < order(*least)) least = layout;
}

// Returns the text that says how much memory the nearest layout would need, what takes most of it, and what may help
// besides another layout.
std::string least_text(const arch::Architecture& arch, const Layout& least, const MemoryRoom& room) {
  MemoryNeed need;
  for (const MemoryNeed& stage : memory_needs(arch, least.setting))
    if (stage.total() > need.total()) need = stage;
  const MemoryNeed kept = kept_need(arch, least.setting);
  const Bytes all = room.device ? need.device : need.total(), state = room.device ? kept.device : kept.total();
  const bool states = state.value * 2 > all.value;
  std::string text = fmt::format("; the nearest, {} in micro-batches of {}, needs {}, {} of it {}", least.name,
                                 least.setting.micro_batch, human(all), human(states ? state : all - state),
                                 states ? "parameters, gradients and optimizer states, which more ranks would divide"
                                        : "activations and what is gathered or computed for a time, which shorter "
                                          "sequences or context ranks would divide");
  if (room.device && !least.setting.offload.any())
    text += "; parallel.offload puts states and activations into the host's memory";
  return text;
}

}  // namespace

Nearest nearest_that_fit(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                         const MemoryRoom& room, const SearchLimits& limits) {
  const std::int64_t begun = thread_cpu_ns();
  auto all = nearby_layouts(arch, setting, local_ranks);
  Nearest nearest;
  nearest.all = all.size();
  std::vector<int> differs;  // number of choices that differ, for each fitting layout
  for (Candidate& candidate : all) {
    // Candidates are in the order of their differences: once enough layouts are found, one that differs more ends the
    // search.
    if (differs.size() >= limits.count && candidate.differs > differs.back()) break;
    if (static_cast<double>(thread_cpu_ns() - begun) * 1e-9 > limits.time.value) {
      nearest.ended = true;
      break;
    }
    ++nearest.looked;
    const auto need = need_within(arch, candidate.layout.setting, room);
    if (!need) {
      keep_least(arch, candidate.layout, nearest.least);
      continue;
    }
    // Insert after layouts with fewer differences, and after equally different layouts that need no more memory.
    std::size_t at = differs.size();
    while (at > 0 && differs[at - 1] == candidate.differs && need->total() < nearest.fitting[at - 1].need.total()) --at;
    nearest.fitting.insert(nearest.fitting.begin() + static_cast<std::ptrdiff_t>(at),
                           {std::move(candidate.layout), *need});
    differs.push_back(candidate.differs);
  }
  if (nearest.fitting.size() > limits.count) nearest.fitting.resize(limits.count);
  if (!nearest.fitting.empty()) nearest.least.reset();
  return nearest;
}

std::string nearest_text(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                         const MemoryRoom& room, const SearchLimits& limits) {
  const Nearest nearest = nearest_that_fit(arch, setting, local_ranks, room, limits);
  const std::string looked =
      nearest.ended ? fmt::format(" (in {} {} of {} were looked at)", human(limits.time), nearest.looked, nearest.all)
                    : "";
  if (nearest.fitting.empty())
    return fmt::format("; none of the nearest layouts of {} fits either{}{}", counted(setting.ranks(), "rank"), looked,
                       nearest.ended ? "" : " (every sharding, recompute and micro-batch was tried)") +
           (nearest.least ? least_text(arch, *nearest.least, room) : "");
  std::string text = "; nearest layouts that fit: ";
  for (const Fitting& f : nearest.fitting)
    text += fmt::format("{}{} in micro-batches of {} ({})", &f == nearest.fitting.data() ? "" : "; ", f.layout.name,
                        f.layout.setting.micro_batch, human(room.device ? f.need.device : f.need.total()));
  return text + looked;
}

}  // namespace molen::plan
