// The sizes of one op of a part, from which its costs follow, and helpers that several parts use. FLOPs count only
// matrix products (including the two of attention), so that the parts of a step add up to `arch::model_flops`.
// Element-wise work is counted in the bytes moved.
#pragma once

#include <cstdint>

#include "arch/parts.h"

namespace molen::program::parts {

using i64 = std::int64_t;
using arch::aligned;
using arch::Pass;

// Letters as in arch/parts.h: Q the columns of q|k|v, q those of the queries, U those of gate|up. Bytes of an element:
// e of activations and weights, a of statistics, losses and accumulators of the device-generic path, g of main
// gradients. If a rank shares the part with others, these are the local sizes of the rank.
struct Sizes {
  Sizes(const arch::Architecture& arch, const arch::PartShape& shape);
  i64 B, S, N, C, d, Q, q, U, f, V, h, k, D, e, a, g;
  i64 query_norm, key_norm;  // values that a norm of queries, or of keys, is taken over
  i64 E, t, W, w, M;         // sizes of a sparse layer (values/value.h); M = N t slots; 0 in models without one
  // L: experts of a rank. R: the most rows of this rank's tokens, which is M without a capacity; context ranks have
  // equal shares of it; several expert ranks get as many rows if tokens are spread evenly over all experts. An op on a
  // tile of the experts has the tile's share of L and R. G: the most rows that the experts of a rank may get. With one
  // expert rank, L is E, and without context ranks G is then R.
  i64 R, L, G;
  bool drops;        // experts have a capacity
  i64 c;             // context ranks, which share each sequence
  bool apart;        // several expert ranks have different experts
  i64 router_bias;   // elements of the router's bias
  i64 X, x;          // of the shared experts: columns of gate|up, and their summed width
  i64 norm_vectors;  // weight and bias of a norm: 0, 1 or 2
  i64 stats;         // numbers that a norm keeps for each row
  i64 biases;        // 1 when products have them
  i64 ranks;         // tensor ranks
  i64 own;           // rows of the residual stream to which the tensor rank adds what is added once
  bool sharded;      // the tensor rank keeps only these rows
  i64 threads;       // at least 1
  bool documents;    // attention stays within documents
  bool kv_copied;    // key and value weights are assembled for each use
  bool rounds;       // elements have 16 bits
  bool bf16;
  arch::Position position;
};

// Returns the FLOPs of a product [m, k] x [k, n].
double product(i64 m, i64 n, i64 k);
// A product [rows, terms] x [terms, columns]. With several groups, each of them has a matrix of its own and an equal
// share of the rows.
struct MatrixProduct {
  i64 rows = 0, columns = 0, terms = 0, groups = 1;
  double flops() const { return product(rows, columns, terms); }
};
// Returns how many products of the forward's size a pass takes. A whole backward takes two: one for the gradient of the
// input and one for the gradient of the weight.
inline int products_of(Pass pass) {
  return pass == Pass::kBackward ? 2 : 1;
}
using arch::is_backward;

// Returns the bytes that a matrix product in -> out over N tokens moves. Forward reads input and weight and writes the
// output. Backward reads d_out, input and weight, writes d_in, and reads and writes the weight gradient. Each of the
// two halves of backward reads d_out.
i64 linear_moved(const Sizes& s, i64 in, i64 out, Pass pass);
// Returns the number of columns of queries and keys in q|k|v.
inline i64 qk_columns(const Sizes& s) {
  return s.Q - (s.Q - s.q) / 2;
}
// Returns the bytes of x, which has N x d elements.
inline i64 residual_bytes(const Sizes& s) {
  return s.e * s.N * s.d;
}

// Returns the scratch of the fused kernels for the sums of a norm's gradients, one for each thread
// (math/vector_kernels.h).
i64 norm_partials(const Sizes& s, Pass pass);

// Scratch of model/parts_aten.cpp on the host: the largest sum of temporaries that exist at the same time. The
// workspace of the library's matrix products is not included (math/allocation.h).
struct AtenScratch {
  const Sizes& s;
  i64 wide(i64 elements) const { return aligned(s.a * elements); }
  i64 narrow(i64 elements) const { return aligned(s.e * elements); }
  i64 widened(i64 elements) const { return s.rounds ? wide(elements) : 0; }
  bool rms() const { return s.stats == 1; }
  // Returns the scratch of math/gemm_narrow.h for a product with n columns and k terms.
  i64 own_product(i64 n, i64 k) const;
  // Returns the scratch of a weight's gradient: that of our own product into fp32, or a rounded gradient.
  i64 weight_gradient(i64 in, i64 out, i64 terms) const;
  i64 linear_gradient(i64 in, i64 out) const;
  // LayerNorm uses ATen's own operator, which returns the rows and both statistics.
  i64 norm_output() const;
  i64 norm_output_again() const { return s.bf16 ? 0 : widened(s.N * s.d) + s.norm_vectors * widened(s.d); }
  i64 norm_backward() const;
};

}  // namespace molen::program::parts
