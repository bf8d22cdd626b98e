#include "arch/context_parallel.h"

#include <algorithm>

#include "arch/tensor_parallel.h"
#include "base/error.h"

namespace molen::arch {
namespace {

using i64 = std::int64_t;

}  // namespace

void validate_context_parallel(std::int64_t sequence, int ranks) {
  if (ranks >= 1 && (ranks == 1 || sequence >= 2 * static_cast<i64>(ranks))) return;
  throw UsageError(
      "parallel.context: {} ranks cannot share a sequence of {} tokens, because each rank needs two pieces of it; 1 to "
      "{} ranks can",
      ranks, sequence, std::max<i64>(1, sequence / 2));
}

std::vector<PositionRun> context_runs(std::int64_t sequence, int rank, int ranks) {
  validate_context_parallel(sequence, ranks);
  const auto [first, middle] = even_range(sequence, rank, 2 * ranks);
  const auto [second, last] = even_range(sequence, 2 * ranks - 1 - rank, 2 * ranks);
  if (middle == second) return {{first, last}};
  return {{first, middle}, {second, last}};
}

std::int64_t context_rows(std::int64_t sequence, int rank, int ranks) {
  return count_positions(context_runs(sequence, rank, ranks));
}

double causal_pairs(std::span<const PositionRun> queries, std::span<const PositionRun> keys) {
  double pairs = 0;
  for (const PositionRun& q : queries)
    for (const PositionRun& k : keys) {
      // Queries before the run of keys attend to none of its keys. Queries after the run attend to all of its keys. The
      // pairs of queries within the run form a triangle.
      const i64 first = std::max(q.first, k.first), last = std::min(q.last, k.last);
      if (first < last) {
        const auto before = static_cast<double>(first - k.first), n = static_cast<double>(last - first);
        pairs += n * before + n * n / 2;
      }
      pairs +=
          static_cast<double>(std::max<i64>(0, q.last - std::max(q.first, k.last))) * static_cast<double>(k.size());
    }
  return pairs;
}

}  // namespace molen::arch
