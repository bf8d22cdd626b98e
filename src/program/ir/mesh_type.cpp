#include "program/ir/mesh_type.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace molen::program {

MeshType unstated_type(const mesh::PerAxis& mesh) {
  MeshType type;
  if (mesh[mesh::Axis::kPp] > 1) type[mesh::Axis::kPp] = kVarying;
  return type;
}

MeshType joined(const MeshType& a, const MeshType& b) {
  MeshType result = a;
  for (const mesh::Axis axis : kMeshAxes) {
    AxisType& mine = result[axis];
    const AxisType& other = b[axis];
    if (mine == other) continue;
    const bool shards = mine.spread == Spread::kSharded || other.spread == Spread::kSharded;
    mine.spread = std::max(mine.spread, other.spread);
    mine.along = shards && mine.spread == Spread::kSharded ? Dimension::kEach : Dimension::kNone;
  }
  return result;
}

std::string_view name_of(Spread spread) {
  switch (spread) {
    case Spread::kReplicated:
      return "replicated";
    case Spread::kInvariant:
      return "invariant";
    case Spread::kVarying:
      return "varying";
    case Spread::kSharded:
      return "shard";
    case Spread::kPartial:
      return "partial";
  }
  throw Error("unknown spread {}", static_cast<int>(spread));
}

std::string_view name_of(Dimension along) {
  switch (along) {
    case Dimension::kNone:
      return "";
    case Dimension::kBatch:
      return "batch";
    case Dimension::kTokens:
      return "tokens";
    case Dimension::kRows:
      return "rows";
    case Dimension::kHeads:
      return "heads";
    case Dimension::kFfn:
      return "ffn";
    case Dimension::kExperts:
      return "experts";
    case Dimension::kVocabulary:
      return "vocabulary";
    case Dimension::kOut:
      return "out";
    case Dimension::kIn:
      return "in";
    case Dimension::kUnit:
      return "unit";
    case Dimension::kEach:
      return "each";
  }
  throw Error("unknown dimension {}", static_cast<int>(along));
}

std::string text_of(const AxisType& type) {
  if (type.spread != Spread::kSharded) return std::string(name_of(type.spread));
  return fmt::format("{}:{}", name_of(type.spread), name_of(type.along));
}

std::string phrase_of(const AxisType& type) {
  switch (type.spread) {
    case Spread::kReplicated:
    case Spread::kInvariant:
    case Spread::kVarying:
      return std::string(name_of(type.spread));
    case Spread::kSharded:
      return fmt::format("sharded along {}", name_of(type.along));
    case Spread::kPartial:
      return "partial (a sum is pending)";
  }
  throw Error("unknown spread {}", static_cast<int>(type.spread));
}

std::string text_of(const MeshType& type, const mesh::PerAxis& mesh) {
  const MeshType plain = unstated_type(mesh);
  std::string text;
  for (const mesh::Axis axis : kMeshAxes)
    if (!(type[axis] == plain[axis]))
      text += fmt::format("{}{}={}", text.empty() ? "" : ";", mesh::name_of(axis), text_of(type[axis]));
  return text;
}

namespace {

AxisType axis_type_from_text(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view head = text.substr(0, colon);
  for (const Spread spread : kAllSpreads) {
    if (name_of(spread) != head) continue;
    if ((spread == Spread::kSharded) != (colon != std::string_view::npos)) break;
    if (spread != Spread::kSharded) return {spread, Dimension::kNone};
    for (const Dimension along : kAllDimensions)
      if (along != Dimension::kNone && name_of(along) == text.substr(colon + 1)) return sharded(along);
  }
  throw UsageError("unknown type '{}': expected replicated, invariant, varying, partial or shard:DIMENSION", text);
}

}  // namespace

MeshType mesh_type_from_text(std::string_view text, const mesh::PerAxis& mesh) {
  MeshType type = unstated_type(mesh);
  std::array<bool, mesh::kAxes> stated{};
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(';', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    at = end + 1;
    const auto equals = word.find('=');
    if (equals == std::string_view::npos) throw UsageError("expected AXIS=TYPE, got '{}'", word);
    const mesh::Axis axis = mesh::axis_from_name(word.substr(0, equals));
    if (mesh[axis] == 1) throw UsageError("there is one rank along {}, which needs no type", mesh::name_of(axis));
    bool& seen = stated.at(static_cast<std::size_t>(axis));
    if (seen) throw UsageError("the axis {} appears twice", mesh::name_of(axis));
    seen = true;
    type[axis] = axis_type_from_text(word.substr(equals + 1));
  }
  return type;
}

}  // namespace molen::program
