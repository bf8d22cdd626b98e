// The declaration of a part: everything that building, checking and costing a program needs to know about it. Each
// family of parts has a file beside this one; what a part does with tensors is bound in exec/parts/.
// docs/how-to-add-a-part.md goes through them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arch/parameters.h"
#include "arch/parts.h"
#include "program/parts/operands.h"
#include "program/parts/sizes.h"
#include "program/parts/type_rules.h"

namespace molen::program {

// Where a part stands in a model: before the layers, in one of the two residual blocks of a layer, between the layers
// and the head, or in the head, which runs once for each chunk of the tokens.
enum class Standing { kBefore, kAttentionBlock, kMlpBlock, kAfter, kHead };

// Bytes or scratch as a function of the sizes of one op. A pass is kForward or kBackward for a part without halves.
using BytesOf = std::int64_t (*)(const parts::Sizes& sizes, arch::Pass pass);

// The kernels of a part. Null: no scratch.
struct PartScratch {
  BytesOf reference = nullptr;  // math/reference.h
  BytesOf fused = nullptr;      // math/vector_kernels.h, math/attention.h
  BytesOf aten = nullptr;       // model/parts_aten.cpp, besides arch::kAtenScalars
  BytesOf shared = nullptr;     // in addition, where several tensor ranks share the part
};

// An op of one context rank, of `ranks` that share sequences of `sequence` tokens: with the keys of all ranks gathered,
// or, in a ring, one step of it (-1: all steps).
struct ContextShare {
  std::int64_t sequence = 0;
  int ranks = 1;
  bool ring = false;
  std::int64_t step = -1;
};

struct PartDeclaration {
  arch::Part part{};
  Standing standing{};
  // Whether zero-bubble schedules split its backward: the gradient of its input, then those of its matrices.
  bool halves = false;
  // Its parameters, whose gradients it makes; when the embedding and the head are one table, also those of `tied`.
  std::vector<arch::Role> roles = {}, tied = {};
  std::vector<Scalar> sums = {};  // of the step, to which its ops add
  bool again = true;              // whether a forward may run a second time for a backward (parallel.recompute)
  // Operands of each pass, in the order of the text form. `input` and `weights` are the halves of a backward. What a
  // backward reads of what a forward has left is saved for it.
  std::vector<PartOperand> forward = {}, backward = {}, input = {}, weights = {};
  // The operands of one step where context ranks pass keys around a ring. Null: the part has no such steps.
  std::vector<Operand> (*ring_step)(const Program& program, const Traits& traits, const Compute& step) = nullptr;

  // The types over the mesh of its activations. Parameters, their gradients and the step's sums have rules of their
  // own.
  std::vector<OperandRule> forward_types = {}, backward_types = {};
  // Instead of these, for a part that mixes positions. `keys`: the op reads keys of other context ranks.
  std::vector<OperandRule> (*context_types)(const Compute& step, int context_ranks, bool keys) = nullptr;
  // Whether each tensor rank needs its parameters whole.
  bool whole_parameters = false;

  Flops (*flops)(const parts::Sizes& sizes, arch::Pass pass) = nullptr;  // null: no matrix product
  BytesOf moved = nullptr;  // bytes read and written if every operand crosses memory once
  PartScratch scratch = {};
  // The cost where context ranks share each sequence. Null: each row of the part is computed from the same row of what
  // it reads, so its cost is that of the rank's rows.
  arch::PartCost (*context_cost)(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                 const ContextShare& share) = nullptr;
  // Why kernels cannot compute the part, besides the types that a kind of kernels computes in; null: they always can.
  std::optional<std::string> (*refused)(arch::Kernels kernels, DType compute, std::int64_t head_dim,
                                        bool documents) = nullptr;

  bool has_backward() const { return !backward.empty(); }
  // Whether it has parameters in a model of this architecture: norms may have none.
  bool has_parameters(const arch::Architecture& arch) const;
  bool reads_role(arch::Role role, bool is_tied) const;
  // Whether the halves of its backward share the gradients: those of a norm are made with the input's.
  bool halves_share() const;
  // Whether a row of its result depends on other positions, so that context ranks exchange for it.
  bool mixes_positions() const { return context_cost != nullptr; }
  bool makes_losses() const;
  bool makes_values() const;  // its forward does more than turn a value in place
  // Whether it can run a second time before its backward: what it leaves for the next layer is always kept. A part that
  // only turns a value in place runs again with the part that makes the value.
  bool computed_again() const;
  // Whether it does nothing but add a router's loss to the step's sums, which evaluations do not report.
  bool only_trains() const;
  bool in_layer() const { return standing == Standing::kAttentionBlock || standing == Standing::kMlpBlock; }
};

const PartDeclaration& declaration_of(arch::Part part);

// Shorthands for fields of the declaration.
bool has_halves(arch::Part part);
bool of_head(arch::Part part);  // runs once for each chunk of the tokens

// For a part without halves, kBackwardInput equals kBackward and kBackwardWeights costs nothing.
arch::PartCost part_cost(const arch::Architecture& arch, arch::Part part, arch::Pass pass,
                         const arch::PartShape& shape);

// Returns why the kernels cannot compute a part in this type; nothing when they can. `documents`: attention stays
// within documents.
std::optional<std::string> kernels_refused(arch::Kernels kernels, arch::Part part, DType compute, std::int64_t head_dim,
                                           bool documents);

// The families.
namespace parts {
std::vector<PartDeclaration> embedding();
std::vector<PartDeclaration> norm_products();
std::vector<PartDeclaration> qk_norms();
std::vector<PartDeclaration> rotations();
std::vector<PartDeclaration> attention();
std::vector<PartDeclaration> projections();
std::vector<PartDeclaration> activations();
std::vector<PartDeclaration> routing();
std::vector<PartDeclaration> experts();
std::vector<PartDeclaration> norms();
std::vector<PartDeclaration> heads();
// Why kernels cannot compute the parts of a sparse layer (PartDeclaration::refused).
std::optional<std::string> experts_refused(arch::Kernels kernels, DType compute, i64 head_dim, bool documents);
}  // namespace parts

}  // namespace molen::program
