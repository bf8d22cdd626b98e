// Helpers of both sets of kernels for ranks that share a part (model/parts.h: Share, Context::positions).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "math/qk_norm.h"
#include "model/parts.h"

namespace molen::model {

// Returns how the columns of q|k|v are normalised.
inline math::QkNormSizes qk_norm_sizes(const Context& c) {
  const arch::Architecture& a = c.arch;
  const std::int64_t query = a.query_norm_size(), key = a.key_norm_size();
  return {a.qkv_size(), {a.query_size() / query, query}, {a.kv_size() / key, key}};
}
inline bool is_alibi(const Context& c) {
  return c.arch.position == arch::Position::kAlibi;
}
inline const at::Tensor& checked_slopes(const Context& c) {
  MOLEN_CHECK(c.slopes && c.slopes->numel() == c.arch.heads && c.slopes->scalar_type() == at::kDouble,
              "attention with ALiBi needs a slope for each of its {} heads", c.arch.heads);
  return *c.slopes;
}
// Returns ALiBi's slopes on the host, in T; empty without ALiBi.
template <class T>
std::vector<T> slopes_of(const Context& c) {
  if (!is_alibi(c)) return {};
  const at::Tensor& slopes = checked_slopes(c);
  return {slopes.data_ptr<double>(), slopes.data_ptr<double>() + slopes.numel()};
}

// Checks that ids are in [low, vocabulary): a wrong index would read or write anywhere.
inline const std::int32_t* checked_ids(const at::Tensor& t, std::int64_t low, std::int64_t vocabulary) {
  const auto* p = t.data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < t.numel(); ++i)
    MOLEN_CHECK(p[i] >= low && p[i] < vocabulary, "token id {} at place {} is not in the vocabulary of {}", p[i], i,
                vocabulary);
  return p;
}

// Returns ids as rows of this rank's table, with -1 when another rank has the row. The result is in scratch when it
// differs from the ids.
inline const std::int32_t* rows_of(const Context& c, const at::Tensor& ids, std::int64_t table_rows) {
  if (c.share.ranks == 1) return checked_ids(ids, 0, table_rows);
  const std::int32_t* all = checked_ids(ids, 0, c.share.vocabulary_all);
  auto* local = c.scratch.take<std::int32_t>(ids.numel());
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    const std::int64_t row = all[i] - c.share.vocabulary_first;
    local[i] = row >= 0 && row < table_rows ? static_cast<std::int32_t>(row) : -1;
  }
  return local;
}

// Calls f(row, rows, position of the first) for each run of rows at consecutive positions of one sequence.
template <class F>
void for_each_run(const Context& c, const F& f) {
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < c.shape.batch; ++b)
    for (const PositionRun& run : c.positions) {
      f(row, run.size(), run.first);
      row += run.size();
    }
}
inline void check_positions(const Context& c, std::int64_t table_rows) {
  if (c.positions.empty()) return;
  MOLEN_CHECK(in_order(c.positions, table_rows) && count_positions(c.positions) == c.shape.sequence,
              "{} rows of a sequence at positions that are not as many, do not rise, or reach {}", c.shape.sequence,
              table_rows);
}
// Checks that RoPE's table has as many positions as the rank.
inline void check_rope_rows(const Context& c, std::int64_t table_rows) {
  MOLEN_CHECK(table_rows == c.shape.sequence, "RoPE's table has {} positions for the {} that a rank has of a sequence",
              table_rows, c.shape.sequence);
}

// Computes losses from all ranks' sums [ranks, chunk, 2], and, if asked for, the log of the whole sum of each token.
template <class T>
void combine_sums(const Context& c, const at::Tensor& all, std::int64_t rows, const std::int32_t* labels, T* losses,
                  T* lse) {
  const T* sums = all.data_ptr<T>();
  const std::int64_t stride = all.size(1);
  for (std::int64_t r = 0; r < rows; ++r) {
    double most = -INFINITY, at_label = 0.0, sum = 0.0;
    for (int k = 0; k < c.share.ranks; ++k) most = std::max(most, static_cast<double>(sums[2 * (k * stride + r)]));
    for (int k = 0; k < c.share.ranks; ++k) {
      sum += std::exp(static_cast<double>(sums[2 * (k * stride + r)]) - most);
      at_label += static_cast<double>(sums[2 * (k * stride + r) + 1]);
    }
    const double whole = std::log(sum) + most;
    losses[r] = labels[r] >= 0 ? static_cast<T>(whole - at_label) : T(0);
    if (lse) lse[r] = static_cast<T>(whole);
  }
}

// The inputs, for each row, of the gradient of a chunk's logits, in scratch: the log of the whole sum; the scale, which
// is 0 when the label does not count; and the label's column on this rank, or -1. Also writes the losses.
template <class T>
struct RowTargets {
  T *lse, *scale;
  std::int32_t* column;
};
template <class T>
RowTargets<T> row_targets(const Context& c, const at::Tensor& sums, const at::Tensor& labels, std::int64_t vocabulary,
                          double grad_scale, at::Tensor& losses) {
  const std::int64_t rows = losses.size(0);
  const std::int32_t* label = checked_ids(labels, -1, c.share.vocabulary_all);
  RowTargets<T> t{c.scratch.take<T>(rows), c.scratch.take<T>(rows), c.scratch.take<std::int32_t>(rows)};
  combine_sums<T>(c, sums, rows, label, losses.data_ptr<T>(), t.lse);
  for (std::int64_t r = 0; r < rows; ++r) {
    t.scale[r] = label[r] >= 0 ? static_cast<T>(grad_scale) : T(0);
    const std::int64_t at = label[r] - c.share.vocabulary_first;
    t.column[r] = label[r] >= 0 && at >= 0 && at < vocabulary ? static_cast<std::int32_t>(at) : -1;
  }
  return t;
}

}  // namespace molen::model
