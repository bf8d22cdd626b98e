#include "program/ir/repeats.h"

#include <algorithm>

#include "base/error.h"

namespace molen::program {
namespace {

bool follows(const Instance& later, const Instance& earlier, std::int64_t micro_batches) {
  return later.body == earlier.body && earlier.micro_batch >= 0 &&
         later.micro_batch == earlier.micro_batch + micro_batches;
}

// Returns how far behind instance `at` the same body runs for a micro-batch that is so much later; 0: it does not.
std::size_t length_at(const std::vector<Instance>& schedule, std::size_t at, std::int64_t micro_batches) {
  for (std::size_t i = at + 1; i < schedule.size(); ++i)
    if (follows(schedule[i], schedule[at], micro_batches)) return i - at;
  return 0;
}

// Whether a schedule with fewer blocks, whatever their number, is one of fewer micro-batches. It is one if no instance
// before the blocks has a later micro-batch than the first block, and no instance behind the blocks has an earlier one
// than a further block would have.
bool shortens(const std::vector<Instance>& schedule, const Repeats& r) {
  const auto begin = schedule.begin() + static_cast<std::ptrdiff_t>(r.first);
  const auto [first, last] =
      std::minmax_element(begin, begin + static_cast<std::ptrdiff_t>(r.length),
                          [](const Instance& a, const Instance& b) { return a.micro_batch < b.micro_batch; });
  const std::int64_t latest = last->micro_batch;
  const std::int64_t earliest = first->micro_batch + static_cast<std::int64_t>(r.blocks) * r.micro_batches;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const std::int64_t micro_batch = schedule[i].micro_batch;
    if (micro_batch < 0) continue;
    if (i < r.first ? micro_batch > latest : i >= r.end() && micro_batch < earliest) return false;
  }
  return true;
}

}  // namespace

std::optional<Repeats> repeats_in(const std::vector<Instance>& schedule, std::int64_t micro_batches) {
  const std::size_t middle = schedule.size() / 2;
  if (middle == 0 || micro_batches < 1) return std::nullopt;
  Repeats r;
  r.micro_batches = micro_batches;
  r.length = length_at(schedule, middle, micro_batches);
  if (r.length == 0) return std::nullopt;
  const auto repeated = [&](std::size_t i) {
    return i + r.length < schedule.size() && follows(schedule[i + r.length], schedule[i], micro_batches);
  };
  std::size_t begin = middle, end = middle;  // of the instances that are repeated
  while (begin > 0 && repeated(begin - 1)) --begin;
  while (repeated(end)) ++end;
  if (end - begin < r.length) return std::nullopt;  // no whole block has another one behind it
  // Blocks of all stages begin with the same micro-batch of a group.
  r.earliest = -1;
  for (std::size_t i = begin; i < begin + r.length; ++i) {
    const std::int64_t micro_batch = schedule[i].micro_batch;
    if (micro_batch % micro_batches != 0 || (r.earliest >= 0 && micro_batch >= r.earliest)) continue;
    r.first = i, r.earliest = micro_batch;
  }
  if (r.earliest < 0) return std::nullopt;
  r.blocks = (end + r.length - r.first) / r.length;
  if (r.blocks < 2 || !shortens(schedule, r)) return std::nullopt;
  return r;
}

std::vector<Instance> with_blocks(const std::vector<Instance>& schedule, const Repeats& r, std::size_t kept) {
  MOLEN_CHECK(kept >= 1 && kept <= r.blocks, "{} of {} blocks", kept, r.blocks);
  const std::size_t left_out = r.blocks - kept;
  std::vector<Instance> shorter(schedule.begin(),
                                schedule.begin() + static_cast<std::ptrdiff_t>(r.first + kept * r.length));
  shorter.reserve(schedule.size() - left_out * r.length);
  for (std::size_t i = r.end(); i < schedule.size(); ++i) {
    shorter.push_back(schedule[i]);
    if (std::int64_t& m = shorter.back().micro_batch; m >= 0)
      m -= static_cast<std::int64_t>(left_out) * r.micro_batches;
  }
  return shorter;
}

std::int64_t micro_batches_of_block(const Setting& s) {
  return s.pipelined() && s.pipeline.chunks > 1 && s.pipeline.schedule == ScheduleKind::kInterleaved ? s.stages() : 1;
}

}  // namespace molen::program
