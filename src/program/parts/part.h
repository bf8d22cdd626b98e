// The declaration of a part, which is all that building, checking and costing a program need to know about the part.
// Each family of parts has a file beside this one. The code that computes a part's tensors is bound in exec/parts/.
// docs/how-to-add-a-part.md explains how to write a declaration.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "arch/parameters.h"
#include "arch/parts.h"
#include "base/result.h"
#include "program/parts/operands.h"
#include "program/parts/sizes.h"
#include "program/parts/type_rules.h"

namespace molen::program {

// The place of a part in a model: before the layers, in one of the two residual blocks of a layer, between the layers
// and the head, or in the head, which runs once for each chunk of the tokens.
enum class Standing { kBefore, kAttentionBlock, kMlpBlock, kAfter, kHead };

// Bytes or scratch as a function of the sizes of one op. A pass is kForward or kBackward for a part without halves.
using BytesOf = std::int64_t (*)(const parts::Sizes& sizes, arch::Pass pass);

// A request to compute a part, which each implementation of the part accepts or refuses.
struct KernelRequest {
  DType compute = DType::kF32;
  std::int64_t head_dim = 0;
  bool documents = false;  // attention stays within documents
  int context_ranks = 1;   // how many context ranks share each sequence
  bool cuda = false;       // on a GPU
};
// Returns why the request cannot be computed; nothing when it can.
using Refusal = std::optional<std::string> (*)(const KernelRequest& request);

// One implementation of a part.
struct Implementation {
  arch::Kernels name;
  BytesOf scratch = nullptr;      // null: none
  Refusal in_any_part = nullptr;  // refuses requests that no part's implementation of this name can compute
  Refusal in_this_part = nullptr;
  bool flash = false;  // is attention that computes softmax over tiles of keys, without the matrix of scores
  bool aten = false;   // calls operators of ATen, whose allocations come from the op's scratch
  std::optional<std::string> refuses(const KernelRequest& request) const;
};

namespace parts {
// The three implementations that every part has.
Implementation fused(BytesOf scratch = nullptr, Refusal in_this_part = nullptr);  // math/vector_kernels.h, attention.h
Implementation aten(BytesOf scratch = nullptr, Refusal in_this_part = nullptr);   // model/parts_aten.cpp
Implementation reference(BytesOf scratch = nullptr, Refusal in_this_part = nullptr);  // math/reference.h
}  // namespace parts

// An op of one of `ranks` context ranks, which share sequences of `sequence` tokens. The keys of all ranks are
// gathered, or the op is one step of a ring (-1: all steps).
struct ContextShare {
  std::int64_t sequence = 0;
  int ranks = 1;
  bool ring = false;
  std::int64_t step = -1;
};

struct PartDeclaration {
  arch::Part part{};
  Standing standing{};
  // Whether zero-bubble schedules split the part's backward into the gradient of the input and, later, the gradients of
  // the matrices.
  bool halves = false;
  // The part's parameters, whose gradients its backward makes. The part also has those in `tied` when the embedding and
  // the head share one table.
  std::vector<arch::Role> roles = {}, tied = {};
  std::vector<Scalar> sums = {};  // sums of the step to which the part's ops add
  bool again = true;              // whether a forward may run a second time for a backward (parallel.recompute)
  // Operands of each pass, in the order of the text form. `input` and `weights` are the halves of a backward. A value
  // that a forward writes and a backward reads is saved in between.
  std::vector<PartOperand> forward = {}, backward = {}, input = {}, weights = {};
  // The operands of one step where context ranks pass keys around a ring. Null: the part has no such steps.
  std::vector<Operand> (*ring_step)(const Program& program, const Traits& traits, const Compute& step) = nullptr;

  // The types over the mesh of its activations. Parameters, their gradients and the step's sums have rules of their
  // own.
  std::vector<OperandRule> forward_types = {}, backward_types = {};
  // The types of a part that mixes positions, which replace the two lists above. `keys`: the op reads keys of other
  // context ranks.
  std::vector<OperandRule> (*context_types)(const Compute& step, int context_ranks, bool keys) = nullptr;
  // Whether each tensor rank needs the part's parameters whole.
  bool whole_parameters = false;

  // The matrix product of a forward (null: none), and the number of products with as many FLOPs that a pass takes.
  parts::MatrixProduct (*product)(const parts::Sizes& sizes) = nullptr;
  int (*products)(arch::Pass pass) = parts::products_of;
  // The FLOPs of a part whose products are not matrix products of whole operands: attention.
  Flops (*own_flops)(const parts::Sizes& sizes, arch::Pass pass) = nullptr;
  BytesOf moved = nullptr;  // bytes read and written if every operand crosses memory once
  // The part's implementations, in the order in which they are preferred.
  std::vector<Implementation> kernels = {parts::fused(), parts::aten(), parts::reference()};
  BytesOf shared_scratch = nullptr;  // additional scratch if several tensor ranks share the part
  // Bytes that the epilogue `assemble` moves; 0 or null: the part has no such epilogue. `adds`: the op adds to its
  // gradient.
  std::int64_t (*assembled)(const parts::Sizes& sizes, arch::Pass pass, bool adds) = nullptr;
  // The cost if context ranks share each sequence. Null: each row of the result depends on the same row of the inputs
  // alone, so the cost is that of the rank's rows.
  arch::PartCost (*context_cost)(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                 const ContextShare& share) = nullptr;

  // Whether the part computes the experts of a rank. With several expert ranks, it may run once for each tile of them
  // (Rows::expert_tiles).
  bool computes_experts() const;
  bool has_backward() const { return !backward.empty(); }
  Flops flops(const parts::Sizes& sizes, arch::Pass pass) const;
  const Implementation* find_kernels(arch::Kernels name) const;  // null if the part has none of this name
  // Returns whether the part has parameters in a model of this architecture: norms may have none.
  bool has_parameters(const arch::Architecture& arch) const;
  bool reads_role(arch::Role role, bool is_tied) const;
  // Returns whether both halves of the part's backward make gradients of parameters. The first half makes those of a
  // norm, together with the gradient of the input.
  bool halves_share() const;
  // Returns whether a row of the result depends on other positions, so that context ranks must exchange data for it.
  bool mixes_positions() const { return context_cost != nullptr; }
  bool makes_losses() const;
  bool makes_values() const;  // returns whether the forward does more than change a value in place
  // Returns whether the forward can run a second time before the backward. It cannot if its result is the input of the
  // next layer, which is always kept. A part that only changes a value in place runs again together with the part that
  // makes the value.
  bool computed_again() const;
  // Returns whether the part only adds a router's loss to the step's sums, which evaluations do not report.
  bool only_trains() const;
  bool in_layer() const { return standing == Standing::kAttentionBlock || standing == Standing::kMlpBlock; }
};

const PartDeclaration& declaration_of(arch::Part part);

// Shorthands for fields of the declaration.
bool has_halves(arch::Part part);
bool of_head(arch::Part part);  // runs once for each chunk of the tokens

// Returns the cost of a pass of a part. For a part without halves, kBackwardInput equals kBackward and kBackwardWeights
// costs nothing.
arch::PartCost part_cost(const arch::Architecture& arch, arch::Part part, arch::Pass pass,
                         const arch::PartShape& shape);
// Returns only the scratch of that cost, for which the kernel's query is asked.
Bytes part_scratch(const arch::Architecture& arch, arch::Part part, arch::Pass pass, const arch::PartShape& shape);

// Returns why the kernels cannot compute a part; nothing when they can.
std::optional<std::string> kernels_refused(arch::Kernels kernels, arch::Part part, const KernelRequest& request);
// Returns whether the kernels of an op of a part call operators of ATen.
bool calls_aten(const Step& step);
// Returns, for each part that `kernels` compute in tiles, the first other kernels that work without tiles and can
// compute the request; on failure, the reason. The reference kernels are never chosen, because they are slow: they run
// only if math.kernels asks for them.
Result<std::map<arch::Part, arch::Kernels>> without_flash(arch::Kernels kernels, const KernelRequest& request);
// Returns the names of the implementations of all parts, each name once.
const std::vector<arch::Kernels>& all_kernels();

// The families of parts.
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
// Returns the implementations of a part of a sparse layer.
std::vector<Implementation> kernels_of_experts(BytesOf fused_scratch = nullptr, BytesOf aten_scratch = nullptr,
                                               BytesOf reference_scratch = nullptr);
}  // namespace parts

}  // namespace molen::program
