#include "sim/interference.h"

#include <algorithm>

namespace molen::sim {
namespace {

struct Interval {
  double begin, end;
};

// The times in which a stream of a stage works, in order.
std::vector<Interval> working(const std::vector<program::Expanded>& ops, const program::Timeline& timeline,
                              program::Stream stream) {
  std::vector<Interval> times;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].step->stream == stream)
      times.push_back({timeline.ops[i].start_s + timeline.ops[i].waited_s, timeline.ops[i].end_s});
  return times;
}

// Adds to the work of a stage what its compute loses beside one stream. Both streams run their ops in list order.
void add_lost(const std::vector<program::Expanded>& ops, const program::Timeline& timeline,
              const std::vector<Interval>& beside, double share, std::vector<double>& work) {
  std::size_t first = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].step->stream != program::Stream::kCompute) continue;
    const double begin = timeline.ops[i].start_s + timeline.ops[i].waited_s, end = timeline.ops[i].end_s;
    while (first < beside.size() && beside[first].end <= begin) ++first;
    for (std::size_t k = first; k < beside.size() && beside[k].begin < end; ++k)
      work[i] += share * std::max(0.0, std::min(end, beside[k].end) - std::max(begin, beside[k].begin));
  }
}

}  // namespace

std::vector<std::vector<double>> interfered(const program::Stages& stages,
                                            const std::vector<program::Timeline>& timelines,
                                            std::vector<std::vector<double>> work, const Interference& interference) {
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (const program::Stream stream : program::kCommStreams)
      if (const double share = interference[static_cast<std::size_t>(stream)]; share > 0.0)
        add_lost(stages.ops(s), timelines[s], working(stages.ops(s), timelines[s], stream), share, work[s]);
  return work;
}

}  // namespace molen::sim
