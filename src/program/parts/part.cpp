#include "program/parts/part.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace molen::program {
namespace {

using Declarations = std::array<PartDeclaration, arch::kAllParts.size()>;

Declarations all_declarations() {
  using Family = std::vector<PartDeclaration> (*)();
  constexpr Family kFamilies[] = {parts::embedding, parts::norm_products, parts::qk_norms,    parts::rotations,
                                  parts::attention, parts::projections,   parts::activations, parts::routing,
                                  parts::experts,   parts::norms,         parts::heads};
  Declarations all;
  std::size_t declared = 0;
  for (const Family family : kFamilies)
    for (PartDeclaration& d : family()) {
      MOLEN_CHECK(d.moved, "part {} does not say what it moves", arch::name_of(d.part));
      all.at(static_cast<std::size_t>(d.part)) = std::move(d);
      ++declared;
    }
  MOLEN_CHECK(declared == all.size(), "{} parts are declared of {}", declared, all.size());
  return all;
}

std::int64_t scratch_of(const PartScratch& scratch, arch::Kernels kernels, const parts::Sizes& s, arch::Pass pass) {
  const auto bytes = [&](BytesOf of) { return of ? of(s, pass) : 0; };
  const std::int64_t shared = s.ranks > 1 ? bytes(scratch.shared) : 0;
  switch (kernels) {
    case arch::Kernels::kReference:
      return bytes(scratch.reference) + shared;
    case arch::Kernels::kFused:
      return bytes(scratch.fused) + shared;
    case arch::Kernels::kAten:
      return arch::kAtenScalars + bytes(scratch.aten) + shared;
  }
  throw Error("no such kernels");
}

}  // namespace

bool PartDeclaration::has_parameters(const arch::Architecture& arch) const {
  const auto there = [&](arch::Role role) { return !arch::of_norm(role) || arch.norm != arch::Norm::kLayerPlain; };
  return std::any_of(roles.begin(), roles.end(), there);
}

bool PartDeclaration::halves_share() const {
  return halves && std::any_of(roles.begin(), roles.end(), arch::of_norm);
}

bool PartDeclaration::makes_losses() const {
  return std::any_of(forward.begin(), forward.end(), [](const PartOperand& o) { return o.arg == Arg::kLosses; });
}

bool PartDeclaration::makes_values() const {
  return std::any_of(forward.begin(), forward.end(),
                     [](const PartOperand& o) { return writes(o.access) && !o.turned; });
}

bool PartDeclaration::only_trains() const {
  return in_layer() && !sums.empty() && std::none_of(forward.begin(), forward.end(), [](const PartOperand& o) {
           return writes(o.access) && o.value != Value::kScalars;
         });
}

bool PartDeclaration::computed_again() const {
  return in_layer() && again && sums.empty() && makes_values() &&
         std::none_of(forward.begin(), forward.end(),
                      [](const PartOperand& o) { return writes(o.access) && o.after > 0; });
}

bool PartDeclaration::reads_role(arch::Role role, bool is_tied) const {
  const auto among = [&](const std::vector<arch::Role>& list) {
    return std::find(list.begin(), list.end(), role) != list.end();
  };
  return among(roles) || (is_tied && among(tied));
}

const PartDeclaration& declaration_of(arch::Part part) {
  static const Declarations all = all_declarations();
  return all.at(static_cast<std::size_t>(part));
}

bool has_halves(arch::Part part) {
  return declaration_of(part).halves;
}

bool of_head(arch::Part part) {
  return declaration_of(part).standing == Standing::kHead;
}

arch::PartCost part_cost(const arch::Architecture& arch, arch::Part part, arch::Pass pass,
                         const arch::PartShape& shape) {
  const PartDeclaration& d = declaration_of(part);
  if (!d.halves) {
    if (pass == arch::Pass::kBackwardWeights) return {Flops(0), Bytes(0), Bytes(0)};
    if (pass == arch::Pass::kBackwardInput) pass = arch::Pass::kBackward;
  }
  const parts::Sizes s(arch, shape);
  return {d.flops ? d.flops(s, pass) : Flops(0), Bytes(d.moved(s, pass)),
          Bytes(scratch_of(d.scratch, shape.kernels, s, pass))};
}

std::optional<std::string> kernels_refused(arch::Kernels kernels, arch::Part part, DType compute, std::int64_t head_dim,
                                           bool documents) {
  if (kernels == arch::Kernels::kReference && size_of(compute) < 4)
    return fmt::format("the reference kernels compute in fp64 or fp32, not in {}", name_of(compute));
  if (kernels == arch::Kernels::kFused && compute != DType::kF32)
    return fmt::format("the fused kernels compute in fp32, not in {}", name_of(compute));
  const auto refused = declaration_of(part).refused;
  return refused ? refused(kernels, compute, head_dim, documents) : std::nullopt;
}

}  // namespace molen::program
