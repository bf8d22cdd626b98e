// Attention of context ranks, each of which has some positions of every sequence (arch/context_parallel.h): the
// functions that ops of the step program call between the collectives. Context::positions are the positions of the
// rank's R rows of each sequence (shape.sequence = R); Context::document_start, if set, is where the documents of those
// rows begin. The conventions are those of parts.h.
//
//   gathered   All ranks' keys and values are gathered, and one call is made for the keys of each rank. The gradients
//              of all keys are summed over ranks, and each rank takes its own (Llama 3, arXiv 2407.21783, section
//              3.3.2).
//   ring       One call is made for each rank's keys as they pass, beginning with this rank's own. o and lse accumulate
//              from call to call, and d_k|d_v travels with its keys (Liu et al. 2023, arXiv 2310.01889).
//   Both need the final o and lse in the backward.
#pragma once

#include <vector>

#include "model/parts.h"

namespace molen::model {

// Returns RoPE's cos and sin for the positions of the runs, in order, for norm_qkv_* of a context rank.
RopeTable make_rope_table(const arch::Architecture& arch, std::span<const PositionRun> positions, at::ScalarType dtype,
                          at::Device device);

// Returns the k|v columns of packed rows (or of their gradient), as a view [N, 2*k*D].
at::Tensor key_value_columns(const Context&, const at::Tensor& qkv_NQ);

// Computes attention of the rank's queries over the keys at positions `keys`. kv_MW has M = B * (number of positions)
// rows of k|v, and may be a view of packed rows. With `first`, overwrites o and lse; a query that sees none of the keys
// gets 0 and -infinity. Otherwise o and lse hold the output over the earlier keys, and a query that sees none of the
// new keys keeps it. o may be fp32 when the compute dtype is narrower. A ring then does not round at each step, except
// for flash attention on a device, which rounds its results.
void context_attention_forward(const Context&, const at::Tensor& qkv_NQ, const at::Tensor& kv_MW,
                               std::span<const PositionRun> keys, bool first, at::Tensor& o_NhD, at::Tensor& lse_BhR);
// The backward of context_attention_forward. Overwrites or adds to (add_q) the query columns of d_qkv and touches no
// other of its columns; overwrites or adds to (add_kv) the gradient of the keys. d_qkv and d_kv may be fp32 under the
// same condition as o; d_kv_MW may be d_qkv's own columns.
void context_attention_backward(const Context&, const at::Tensor& d_o_NhD, const at::Tensor& qkv_NQ,
                                const at::Tensor& kv_MW, std::span<const PositionRun> keys, const at::Tensor& o_NhD,
                                const at::Tensor& lse_BhR, bool add_q, bool add_kv, at::Tensor& d_qkv_NQ,
                                at::Tensor& d_kv_MW);

// Attention of whole sequences or of only the rank's own rows. attention_forward and attention_backward of parts.h call
// these functions when Context::document_start is set or the operands are on a device.
void document_attention_forward(const Context&, const at::Tensor& qkv_NQ, at::Tensor& o_NhD, at::Tensor& lse_BhS);
void document_attention_backward(const Context&, const at::Tensor& d_o_NhD, const at::Tensor& qkv_NQ,
                                 const at::Tensor& o_NhD, const at::Tensor& lse_BhS, at::Tensor& d_qkv_NQ);

// Copies the rows [B * R, ...] at `runs` out of rows [B * S, ...] of whole sequences, such as ids, labels, document
// starts and RoPE's table. Takes any dtype and allocates nothing.
void take_rows(std::int64_t batch, std::span<const PositionRun> runs, const at::Tensor& all, at::Tensor& rows);

}  // namespace molen::model
