// Attention on devices, in device-generic ATen operators, for whole sequences and for context ranks, whose queries and
// keys have their own positions. The work is cut into pieces, so that only a part of the scores exists at once. The
// results of pieces are combined by their log-sum-exp (Liu et al. 2023, arXiv 2310.01889; Dao 2023, arXiv 2307.08691),
// in fp32 or wider. Pieces with written-out scores are computed in fp32 or wider throughout, and are deterministic.
// Flash attention rounds its result of a piece to its 16 bits, and its backward on CUDA adds in a fixed order only when
// libtorch is set to deterministic algorithms (launch/world.h). Temporaries come from the device's allocator.
#pragma once

#include <vector>

#include "model/parts.h"

namespace molen::model::aten {

struct AttentionBackend {
  bool flash = false;                           // ATen's flash attention; otherwise scores are written out
  std::int64_t scores = std::int64_t{1} << 24;  // most scores of all heads that exist at once
  bool documents = false;  // flash attention within documents (device_documents.h), where sequences are whole
};
// Chooses flash attention, or that within documents, for 16-bit types on CUDA, with heads of at most 256 elements and a
// multiple of 8, without ALiBi, unless the op's kernels are "unfused" (math.flash_attention = false).
AttentionBackend attention_backend(const Context&, bool cuda, at::ScalarType);

// One piece of the work: in each of `sequences`, `query_rows` rows from row `query` on attend to `key_rows` rows from
// row `key` on. A causal piece has as many queries as keys, at the same positions. In other pieces written-out scores
// are masked by position, and flash attention sees all keys.
struct AttentionPiece {
  std::int64_t sequence, sequences;  // the piece's first sequence in the batch, and its number of sequences
  std::int64_t query, query_rows, key, key_rows;
  bool causal;
  bool operator==(const AttentionPiece&) const = default;
};
// Both functions put every pair of a query and a key not after it, in each sequence, into exactly one piece.
// flash_pieces contains no other pairs. A written-out piece has the keys up to its last query. It has at most `scores`
// scores of each head, or those of one query when these are more. It covers some whole sequences or, when one sequence
// has more scores, some of the queries of one sequence.
std::vector<AttentionPiece> flash_pieces(std::int64_t batch, std::span<const PositionRun> queries,
                                         std::span<const PositionRun> keys);
std::vector<AttentionPiece> written_pieces(std::int64_t batch, std::span<const PositionRun> queries,
                                           std::span<const PositionRun> keys, std::int64_t scores);

// The arguments are those of context_attention_forward and context_attention_backward of model/context.h, with the
// positions of the queries. kv_MW may be columns of the packed rows.
void device_attention_forward(const AttentionBackend&, const Context&, std::span<const PositionRun> queries,
                              const at::Tensor& qkv_NQ, const at::Tensor& kv_MW, std::span<const PositionRun> keys,
                              bool first, at::Tensor& o_NhD, at::Tensor& lse_BhR);
void device_attention_backward(const AttentionBackend&, const Context&, std::span<const PositionRun> queries,
                               const at::Tensor& d_o_NhD, const at::Tensor& qkv_NQ, const at::Tensor& kv_MW,
                               std::span<const PositionRun> keys, const at::Tensor& o_NhD, const at::Tensor& lse_BhR,
                               bool add_q, bool add_kv, at::Tensor& d_qkv_NQ, at::Tensor& d_kv_MW);

}  // namespace molen::model::aten
