// Attention of devices, in device-generic ATen operators: of whole sequences and of context ranks, whose queries and
// keys lie at positions of their own. Work is cut into pieces, of which none holds more than a part of the scores; what
// pieces leave is put together by their log-sum-exp (Liu et al. 2023, arXiv 2310.01889; Dao 2023, arXiv 2307.08691), in
// fp32 or wider. Written-out pieces are so throughout, and deterministic; what flash attention makes of a piece it has
// rounded to its 16 bits, and its backward on CUDA adds in a fixed order only where libtorch is held to it
// (train/world.h). Temporaries are the device's allocator's.
#pragma once

#include <vector>

#include "model/parts.h"

namespace molen::model::aten {

struct AttentionWay {
  bool flash = false;                           // ATen's flash attention; else scores are written out
  std::int64_t scores = std::int64_t{1} << 24;  // written out at once at most (at least those of one position)
};
// Flash attention for 16-bit types on CUDA, heads of at most 256 and a multiple of 8, no ALiBi, no documents.
AttentionWay attention_way(const Context&, bool cuda, at::ScalarType);

// Of each of `sequences`, `query_rows` rows from row `query` on over `key_rows` from row `key` on. causal: as many of
// both, at the same positions; else positions decide where scores are written out, and flash attention sees all keys.
struct AttentionPiece {
  std::int64_t sequence, sequences;  // of the batch: the first, and how many
  std::int64_t query, query_rows, key, key_rows;
  bool causal;
  bool operator==(const AttentionPiece&) const = default;
};
// Every pair of a query and a key not after it, in each sequence, is in one piece. By flash attention no other pair is;
// written out, a piece has the keys up to its last query, and of each head `scores` at most (or those of one query): of
// some whole sequences or, where one has more, of some of its queries.
std::vector<AttentionPiece> flash_pieces(std::int64_t batch, std::span<const PositionRun> queries,
                                         std::span<const PositionRun> keys);
std::vector<AttentionPiece> written_pieces(std::int64_t batch, std::span<const PositionRun> queries,
                                           std::span<const PositionRun> keys, std::int64_t scores);

// The arguments of context_attention_forward and context_attention_backward of model/context.h, with the positions of
// the queries; kv_MW may be columns of the packed rows.
void device_attention_forward(const AttentionWay&, const Context&, std::span<const PositionRun> queries,
                              const at::Tensor& qkv_NQ, const at::Tensor& kv_MW, std::span<const PositionRun> keys,
                              bool first, at::Tensor& o_NhD, at::Tensor& lse_BhR);
void device_attention_backward(const AttentionWay&, const Context&, std::span<const PositionRun> queries,
                               const at::Tensor& d_o_NhD, const at::Tensor& qkv_NQ, const at::Tensor& kv_MW,
                               std::span<const PositionRun> keys, const at::Tensor& o_NhD, const at::Tensor& lse_BhR,
                               bool add_q, bool add_kv, at::Tensor& d_qkv_NQ, at::Tensor& d_kv_MW);

}  // namespace molen::model::aten
