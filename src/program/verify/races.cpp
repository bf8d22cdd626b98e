#include "program/verify/races.h"

#include <algorithm>
#include <array>
#include <map>

#include "program/ir/slots.h"
#include "program/values/tiles.h"

namespace molen::program {
namespace {

// Returns, for each op, the latest op of each stream that must have ended when the op has ended.
std::vector<OpPerStream> known_by(const std::vector<Expanded>& ops) {
  const auto stream_of_op = [&](int op) {
    return static_cast<std::size_t>(ops[static_cast<std::size_t>(op)].step->stream);
  };
  std::vector<OpPerStream> known(ops.size());
  std::array<OpPerStream, kNumStreams> now;
  for (auto& k : now) k.fill(-1);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const std::size_t own = stream_of_op(static_cast<int>(i));
    auto& mine = now[own];
    for (const int a : ops[i].after) {
      mine[stream_of_op(a)] = std::max(mine[stream_of_op(a)], a);
      for (std::size_t s = 0; s < kNumStreams; ++s) mine[s] = std::max(mine[s], known[static_cast<std::size_t>(a)][s]);
    }
    mine[own] = static_cast<int>(i);
    known[i] = mine;
  }
  return known;
}

// Returns whether the op works in the space that instances use in turn: the plan may give the bytes of one instance to
// another.
bool in_shared_space(const Program& p, const Step& step) {
  const auto transient = [&](const Use& use) {
    const Buffer& b = p.buffers[static_cast<std::size_t>(use.buffer)];
    return b.lifetime == Lifetime::kTransient && b.place == Place::kDevice;
  };
  return step.scratch.value > 0 || std::any_of(step.operands.begin(), step.operands.end(), transient);
}

bool has_tiles(const Program& p) {
  for (const Body& body : p.bodies)
    for (const Step& step : body.steps)
      if (step.attributes.rows.expert_tiles > 1) return true;
  return false;
}

// The history of the ops so far, in list order. For each stream it has the latest op that read or changed each place,
// that communicated over each axis, that decided a flag, and that worked in the shared space for an earlier instance.
class History {
 public:
  explicit History(const Program& p)
      : p_(p),
        slots_(p),
        readers_(slots_.places(), kNoOps),
        changers_(slots_.places(), kNoOps),
        in_tiles_(has_tiles(p)) {
    if (in_tiles_) tiles_.resize(slots_.places());
    communicated_.fill(kNoOps);
  }

  // Returns, for each stream, the latest op that must have ended before `e` begins.
  OpPerStream needed_by(const Expanded& e) {
    if (e.instance != instance_) {
      instance_ = e.instance;
      earlier_instances_ = in_space_;
    }
    OpPerStream needed = e.step->unless ? flag_ : kNoOps;
    if (in_shared_space(p_, *e.step)) keep_latest(needed, earlier_instances_);
    // The ranks of a group must communicate in the same order, on whatever streams their ops run.
    if (const auto axis = axis_of(e.step->op)) keep_latest(needed, communicated_[static_cast<std::size_t>(*axis)]);
    for (const Use& use : e.step->operands) {
      Tiles* tiles = enter_tiles(e, use);
      const std::size_t place = slots_.place(use.buffer, e.micro_batch);
      keep_latest(needed, changers_[place]);
      if (use.changes()) keep_latest(needed, readers_[place]);
      if (!tiles) continue;
      const Ops& ops = tiles->ops[tile_of(p_, *e.step, use).number];
      keep_latest(needed, ops.changers);
      if (use.changes()) keep_latest(needed, ops.readers);
    }
    return needed;
  }

  void record(const Expanded& e, int op) {
    const auto stream = static_cast<std::size_t>(e.step->stream);
    if (std::holds_alternative<SetFlag>(e.step->op)) flag_[stream] = op;
    if (const auto axis = axis_of(e.step->op)) communicated_[static_cast<std::size_t>(*axis)][stream] = op;
    if (in_shared_space(p_, *e.step)) in_space_[stream] = op;
    for (const Use& use : e.step->operands) {
      const std::size_t place = slots_.place(use.buffer, e.micro_batch);
      if (Tiles* tiles = enter_tiles(e, use)) {
        Ops& ops = tiles->ops[tile_of(p_, *e.step, use).number];
        (use.changes() ? ops.changers : ops.readers)[stream] = op;
      } else {
        (use.changes() ? changers_ : readers_)[place][stream] = op;
      }
    }
  }

 private:
  struct Ops {
    OpPerStream readers = kNoOps, changers = kNoOps;
  };
  // The latest ops on each tile of a place, for tiles of the same rows.
  struct Tiles {
    Tile last;
    std::int64_t micro_batch = -1;
    std::map<std::int64_t, Ops> ops;  // by the number of the tile
  };

  // Returns the tiles of the place if the op uses a tile of the operand, and null if it uses the whole operand. Before
  // that, makes the earlier ops on tiles ops on the whole place if this op uses the whole operand or a tile of other
  // rows.
  Tiles* enter_tiles(const Expanded& e, const Use& use) {
    if (!in_tiles_) return nullptr;
    const std::size_t place = slots_.place(use.buffer, e.micro_batch);
    const Tile tile = tile_of(p_, *e.step, use);
    Tiles& tiles = tiles_[place];
    if (tile.number < 0 || !of_same_rows(tiles.last, tile) || tiles.micro_batch != e.micro_batch) {
      for (const auto& [number, ops] : tiles.ops) {
        keep_latest(readers_[place], ops.readers);
        keep_latest(changers_[place], ops.changers);
      }
      tiles = {tile, e.micro_batch, {}};
    }
    return tile.number < 0 ? nullptr : &tiles;
  }

  const Program& p_;
  Slots slots_;
  std::vector<OpPerStream> readers_, changers_;              // by place
  bool in_tiles_;                                            // whether any op works on a tile
  std::vector<Tiles> tiles_;                                 // by place
  std::array<OpPerStream, kAllAxes.size()> communicated_{};  // by axis
  OpPerStream flag_ = kNoOps, in_space_ = kNoOps, earlier_instances_ = kNoOps;
  int instance_ = -1;
};

}  // namespace

std::vector<std::pair<int, int>> unordered(const Program& program, const std::vector<Expanded>& ops) {
  const std::vector<OpPerStream> known = known_by(ops);
  History history(program);
  std::vector<std::pair<int, int>> pairs;
  for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
    const Expanded& e = ops[static_cast<std::size_t>(i)];
    const OpPerStream needed = history.needed_by(e), &ended = known[static_cast<std::size_t>(i)];
    for (std::size_t s = 0; s < kNumStreams; ++s)  // ops of its own stream run in list order
      if (s != static_cast<std::size_t>(e.step->stream) && ended[s] < needed[s]) pairs.emplace_back(i, needed[s]);
    history.record(e, i);
  }
  return pairs;
}

}  // namespace molen::program
