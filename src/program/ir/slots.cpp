#include "program/ir/slots.h"

#include <algorithm>

namespace molen::program {
namespace {

// The buffers of Lifetime::kMicroBatch that each body uses.
std::vector<std::vector<int>> kept_in(const Program& p) {
  std::vector<std::vector<int>> kept(p.bodies.size());
  for (std::size_t b = 0; b < p.bodies.size(); ++b) {
    for (const Step& step : p.bodies[b].steps)
      for (const Use& use : step.operands)
        if (p.buffers[static_cast<std::size_t>(use.buffer)].lifetime == Lifetime::kMicroBatch)
          kept[b].push_back(use.buffer);
    std::sort(kept[b].begin(), kept[b].end());
    kept[b].erase(std::unique(kept[b].begin(), kept[b].end()), kept[b].end());
  }
  return kept;
}

}  // namespace

Slots::Slots(const Program& p) : counts_(p.buffers.size(), 1), slots_(p.buffers.size()) {
  const auto kept = kept_in(p);
  std::int64_t micro_batches = 0;
  for (const Instance& i : p.schedule) micro_batches = std::max(micro_batches, i.micro_batch + 1);
  const auto m = static_cast<std::size_t>(micro_batches);

  std::vector<std::vector<int>> last(p.buffers.size());  // the last instance that uses the buffer, by micro-batch
  for (const auto& buffers : kept)
    for (const int b : buffers) last[static_cast<std::size_t>(b)].assign(m, -1);
  for (std::size_t i = 0; i < p.schedule.size(); ++i)
    if (p.schedule[i].micro_batch >= 0)
      for (const int b : kept[static_cast<std::size_t>(p.schedule[i].body)])
        last[static_cast<std::size_t>(b)][static_cast<std::size_t>(p.schedule[i].micro_batch)] = static_cast<int>(i);

  std::vector<std::vector<int>> freed(p.buffers.size());      // slots in the order in which they become free
  std::vector<std::size_t> taken_again(p.buffers.size(), 0);  // how many of them are in use again
  for (std::size_t b = 0; b < p.buffers.size(); ++b)
    if (!last[b].empty()) counts_[b] = 0, slots_[b].assign(m, -1);
  for (std::size_t i = 0; i < p.schedule.size(); ++i) {
    if (p.schedule[i].micro_batch < 0) continue;
    const auto micro = static_cast<std::size_t>(p.schedule[i].micro_batch);
    for (const int buffer : kept[static_cast<std::size_t>(p.schedule[i].body)]) {
      const auto b = static_cast<std::size_t>(buffer);
      if (slots_[b][micro] < 0) {
        const bool none = taken_again[b] == freed[b].size();
        slots_[b][micro] = none ? counts_[b]++ : freed[b][taken_again[b]++];
      }
      if (last[b][micro] == static_cast<int>(i)) freed[b].push_back(slots_[b][micro]);
    }
  }
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    // The verifier refuses a buffer that is used only by instances without a micro-batch, but the buffer still needs a
    // place.
    counts_[b] = std::max(counts_[b], 1);
    for (int& slot : slots_[b]) slot = std::max(slot, 0);
    first_.push_back(places_);
    places_ += static_cast<std::size_t>(counts_[b]);
  }
}

}  // namespace molen::program
