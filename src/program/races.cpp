#include "program/races.h"

#include <algorithm>
#include <array>

#include "program/build.h"

namespace molen::program {
namespace {

// Per stream, the latest op that is known to have ended; -1: none.
using PerStream = std::array<int, kNumStreams>;

// Returns, for each op, what is known to have ended once the op has ended.
std::vector<PerStream> known_by(const std::vector<Expanded>& ops) {
  const auto stream_of_op = [&](int op) {
    return static_cast<std::size_t>(ops[static_cast<std::size_t>(op)].step->stream);
  };
  std::vector<PerStream> known(ops.size());
  std::array<PerStream, kNumStreams> now;
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

}  // namespace

std::vector<std::pair<int, int>> unordered(const Program& program, const std::vector<Expanded>& ops) {
  const std::vector<PerStream> known = known_by(ops);
  const Program ordered = pass::order_streams(program);
  const std::vector<Expanded> wanted = expand(ordered);
  std::vector<std::pair<int, int>> pairs;
  for (std::size_t i = 0; i < ops.size(); ++i)
    for (const int a : wanted[i].after)
      if (known[i][static_cast<std::size_t>(ops[static_cast<std::size_t>(a)].step->stream)] < a)
        pairs.emplace_back(static_cast<int>(i), a);
  return pairs;
}

}  // namespace molen::program
