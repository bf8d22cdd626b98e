#include "program/build/latest_ops.h"

#include <algorithm>

#include "program/values/value.h"

namespace molen::program {

Places::Places(const Program& p) : p_(p), slots_(p), tiles_(p.buffers.size(), 1) {
  std::size_t most = 1;
  if (std::ranges::any_of(p.buffers, [](const Buffer& b) { return in_expert_order(b.role); }))
    for (const Body& body : p.bodies)
      for (const Step& step : body.steps)
        for (const Use& use : step.operands)
          most = std::max(most, static_cast<std::size_t>(tile_of(p, step, use).number + 1));
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    if (in_expert_order(p.buffers[b].role)) tiles_[b] = most;
    first_.push_back(count_);
    count_ += tiles_[b] * static_cast<std::size_t>(slots_.count(static_cast<int>(b)));
  }
}

Places::Range Places::all(const Expanded& e, const Use& use) const {
  const auto buffer = static_cast<std::size_t>(use.buffer);
  const std::size_t first =
      first_[buffer] + tiles_[buffer] * static_cast<std::size_t>(slots_.of(use.buffer, e.micro_batch));
  return {first, first + tiles_[buffer]};
}

Places::Range Places::of(const Expanded& e, const Use& use) const {
  const Range whole = all(e, use);
  if (whole.second == whole.first + 1) return whole;
  const std::int64_t tile = tile_of(p_, *e.step, use).number;
  if (tile < 0) return whole;
  const std::size_t first = whole.first + static_cast<std::size_t>(tile);
  return {first, first + 1};
}

namespace {

// Gives each place of a range the latest ops of all its places.
void join(std::vector<OpPerStream>& ops, const Places::Range& range) {
  OpPerStream latest = kNoOps;
  for (std::size_t place = range.first; place < range.second; ++place) keep_latest(latest, ops[place]);
  for (std::size_t place = range.first; place < range.second; ++place) ops[place] = latest;
}

}  // namespace

LatestOps::LatestOps(const Program& p, const Places& places)
    : p_(p),
      places_(places),
      readers_(places_.count(), kNoOps),
      changers_(places_.count(), kNoOps),
      last_tiles_(places_.count(), {Tile{}, -1}) {}

void LatestOps::join_tiles(const Expanded& e, const Use& use, const Places::Range& all) {
  const Tile tile = tile_of(p_, *e.step, use);
  if (tile.number < 0) return;
  const auto [last, micro_batch] = std::exchange(last_tiles_[all.first], {tile, e.micro_batch});
  if (of_same_rows(last, tile) && micro_batch == e.micro_batch) return;
  join(readers_, all);
  join(changers_, all);
}

void LatestOps::keep_needed(const Expanded& e, OpPerStream& ops) {
  for (const Use& use : e.step->operands) {
    Places::Range range = places_.all(e, use);
    if (range.second > range.first + 1) {
      join_tiles(e, use, range);
      range = places_.of(e, use);
    }
    for (auto [place, end] = range; place < end; ++place) {
      keep_latest(ops, changers_[place]);
      if (use.changes()) keep_latest(ops, readers_[place]);
    }
  }
}

void LatestOps::add(const Expanded& e, int index) {
  for (const Use& use : e.step->operands)
    for (auto [place, end] = places_.of(e, use); place < end; ++place)
      (use.changes() ? changers_ : readers_)[place][static_cast<std::size_t>(e.step->stream)] = index;
}

}  // namespace molen::program
