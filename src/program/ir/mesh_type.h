// Types of values over the mesh, as in SPMD types (spmd_types 0.3.1, 2026). A type says, for each axis, which part of a
// value the ranks along that axis hold. program/types/ has the rules of ops and the checker.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "mesh/mesh.h"

namespace molen::program {

// How the contents of a value on the ranks along one axis relate to each other. The values are ordered, and `joined`
// keeps the later of two. Each rank holds
//   kReplicated  the same value, whose gradient is a pending sum over the axis
//   kInvariant   the same value, with no pending sum of its gradient: a complete gradient, an optimizer state, a token
//   kVarying     a value of its own
//   kSharded     a part of the whole; the parts lie side by side along a dimension
//   kPartial     a term of a sum that is pending
enum class Spread : std::uint8_t { kReplicated, kInvariant, kVarying, kSharded, kPartial };
inline constexpr std::array kAllSpreads{Spread::kReplicated, Spread::kInvariant, Spread::kVarying, Spread::kSharded,
                                        Spread::kPartial};

// The dimension along which a value is sharded.
enum class Dimension : std::uint8_t {
  kNone,
  kBatch,       // samples of the global batch
  kTokens,      // positions of each sequence
  kRows,        // rows of the residual stream (sequence parallelism)
  kHeads,       // attention heads
  kFfn,         // columns of the MLP
  kExperts,     // the experts of a layer, or rows in the order of experts
  kVocabulary,  // columns of the logits
  kOut,         // rows of a parameter (arch::ShardDim::kRows)
  kIn,          // columns of a parameter (arch::ShardDim::kColumns)
  kUnit,        // elements of a unit (ZeRO)
  kEach,        // several parameters, each sharded along its own dimension or not at all
};
inline constexpr std::array kAllDimensions{Dimension::kNone,    Dimension::kBatch,      Dimension::kTokens,
                                           Dimension::kRows,    Dimension::kHeads,      Dimension::kFfn,
                                           Dimension::kExperts, Dimension::kVocabulary, Dimension::kOut,
                                           Dimension::kIn,      Dimension::kUnit,       Dimension::kEach};

struct AxisType {
  Spread spread = Spread::kReplicated;
  Dimension along = Dimension::kNone;  // the dimension of kSharded; kNone otherwise
  bool operator==(const AxisType&) const = default;
};
constexpr AxisType sharded(Dimension along) {
  return {Spread::kSharded, along};
}
inline constexpr AxisType kReplicated{Spread::kReplicated}, kInvariant{Spread::kInvariant}, kVarying{Spread::kVarying},
    kPartial{Spread::kPartial};

// One type per mesh axis. The default is that of a value on a mesh of one rank.
struct MeshType {
  std::array<AxisType, mesh::kAxes> axes{};
  AxisType& operator[](mesh::Axis axis) { return axes[static_cast<std::size_t>(axis)]; }
  const AxisType& operator[](mesh::Axis axis) const { return axes[static_cast<std::size_t>(axis)]; }
  bool operator==(const MeshType&) const = default;
};
inline constexpr std::array kMeshAxes = mesh::kDefaultOrder;

// Returns the type that a program text need not state. It is varying over the stages of a pipeline, because each stage
// has values of its own, and replicated over all other axes.
MeshType unstated_type(const mesh::PerAxis& mesh);

// Returns the type of several parts of one operand together. Along each axis it is the later one in Spread of the two
// types.
MeshType joined(const MeshType& a, const MeshType& b);

std::string_view name_of(Spread spread);  // "replicated", "invariant", "varying", "shard", "partial"
std::string_view name_of(Dimension along);
std::string text_of(const AxisType& type);    // for example "partial" or "shard:rows"
std::string phrase_of(const AxisType& type);  // for messages, such as "partial (its sum is pending)"
// Returns the axes on which a type differs from the unstated one, such as "dp_shard=shard:batch;tp=partial". The text
// is empty when there is no such axis.
std::string text_of(const MeshType& type, const mesh::PerAxis& mesh);
// Reads that text. Throws UsageError when an axis or a type is unknown, when an axis occurs twice, or when it has one
// rank.
MeshType mesh_type_from_text(std::string_view text, const mesh::PerAxis& mesh);

}  // namespace molen::program
