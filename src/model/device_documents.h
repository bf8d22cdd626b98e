// Flash attention within documents on devices: one call for all documents of a micro-batch, as sequences of their own
// lengths (Dao 2023, arXiv 2307.08691; the variable-length form of its library). For whole sequences only, without
// context ranks. The host waits for the device once a call, because only the device knows how many documents there are.
// On the host, the same contract is met by one call for each document, so that all but the device's kernel is tested.
#pragma once

#include "model/parts.h"

namespace molen::model::aten {

// The arguments are those of device_attention_forward and device_attention_backward (model/device_attention.h) for
// queries and keys of whole sequences.
void document_flash_forward(const Context&, const at::Tensor& qkv_NQ, const at::Tensor& kv_NW, at::Tensor& o_NhD,
                            at::Tensor& lse_BhS);
void document_flash_backward(const Context&, const at::Tensor& d_o_NhD, const at::Tensor& qkv_NQ,
                             const at::Tensor& kv_NW, const at::Tensor& o_NhD, const at::Tensor& lse_BhS, bool add_q,
                             bool add_kv, at::Tensor& d_qkv_NQ, at::Tensor& d_kv_NW);

}  // namespace molen::model::aten
