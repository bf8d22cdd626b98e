// Attention of context ranks, each of which has part of the positions of every sequence (arch/context_parallel.h): what
// an op of the step program calls between the collectives. Context::positions are the positions of the rank's R rows of
// each sequence (shape.sequence = R), Context::document_start, where there is one, where the documents of those rows
// begin. Conventions as in parts.h.
//
//   gathered   keys and values of all ranks are brought together, and a call is made for those of each; the gradients
//   of
//              all keys are summed over ranks, of which each takes its own (Llama 3, arXiv 2407.21783, section 3.3.2)
//   ring       a call for each rank's keys as they pass, its own first; o and lse go on from call to call, and d_k|d_v
//              travels with its keys (Liu et al. 2023, arXiv 2310.01889). Both need the final o and lse backwards
#pragma once

#include <vector>

#include "model/parts.h"

namespace molen::model {

// RoPE's cos and sin for the positions of the runs, in order: what norm_qkv_* of a context rank takes.
RopeTable make_rope_table(const arch::Architecture& arch, std::span<const PositionRun> positions, at::ScalarType dtype,
                          at::Device device);

// The k|v columns of packed rows (or of their gradient), as a view [N, 2*k*D].
at::Tensor key_value_columns(const Context&, const at::Tensor& qkv_NQ);

// Attention of the rank's queries over the keys at `keys`, M = B * (their number) rows of k|v. kv_MW may be a view of
// packed rows. first: overwrites o and lse, with 0 and -infinity where a query sees none of the keys; else o and lse
// hold the output of the keys before, and such a query keeps it. o may be fp32 where the compute dtype is narrower: a
// ring then does not round at each step (but for flash attention of a device, which rounds what it makes).
void context_attention_forward(const Context&, const at::Tensor& qkv_NQ, const at::Tensor& kv_MW,
                               std::span<const PositionRun> keys, bool first, at::Tensor& o_NhD, at::Tensor& lse_BhR);
// The same, backward: d_qkv's query columns, of which no other is touched, are overwritten or added to (add_q), and so
// is the gradient of the keys (add_kv). d_qkv and d_kv may be fp32 as o may; d_kv_MW may be d_qkv's own columns.
void context_attention_backward(const Context&, const at::Tensor& d_o_NhD, const at::Tensor& qkv_NQ,
                                const at::Tensor& kv_MW, std::span<const PositionRun> keys, const at::Tensor& o_NhD,
                                const at::Tensor& lse_BhR, bool add_q, bool add_kv, at::Tensor& d_qkv_NQ,
                                at::Tensor& d_kv_MW);

// Attention of whole sequences, or of the rank's own rows alone, with Context::document_start or on a device: what
// attention_forward and attention_backward of parts.h are then.
void document_attention_forward(const Context&, const at::Tensor& qkv_NQ, at::Tensor& o_NhD, at::Tensor& lse_BhS);
void document_attention_backward(const Context&, const at::Tensor& d_o_NhD, const at::Tensor& qkv_NQ,
                                 const at::Tensor& o_NhD, const at::Tensor& lse_BhS, at::Tensor& d_qkv_NQ);

// Of rows [B * S, ...] of whole sequences, the rows [B * R, ...] at `runs`: ids, labels, document starts, RoPE's table.
// Any dtype; copies, allocating nothing.
void take_rows(std::int64_t batch, std::span<const PositionRun> runs, const at::Tensor& all, at::Tensor& rows);

}  // namespace molen::model
