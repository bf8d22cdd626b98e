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

std::int64_t scratch_of(const PartDeclaration& d, arch::Kernels kernels, const parts::Sizes& s, arch::Pass pass) {
  const auto bytes = [&](BytesOf of) { return of ? of(s, pass) : 0; };
  const Implementation* of = d.find_kernels(kernels);
  if (!of) throw Error("{}", *kernels_refused(kernels, d.part, {}));
  return (of->aten ? arch::kAtenScalars : 0) + bytes(of->scratch) + (s.ranks > 1 ? bytes(d.shared_scratch) : 0);
}

std::optional<std::string> reference_refuses(const KernelRequest& r) {
  if (r.cuda) return "the reference kernels compute in the host's memory, not on cuda";
  if (size_of(r.compute) >= 4) return std::nullopt;
  return fmt::format("the reference kernels compute in fp64 or fp32, not in {}", name_of(r.compute));
}

std::optional<std::string> fused_refuses(const KernelRequest& r) {
  if (r.cuda) return "the fused kernels compute in the host's memory, not on cuda";
  if (r.compute == DType::kF32) return std::nullopt;
  return fmt::format("the fused kernels compute in fp32, not in {}", name_of(r.compute));
}

}  // namespace

namespace parts {

Implementation reference(BytesOf scratch, Refusal in_this_part) {
  return {.name = arch::Kernels::kReference,
          .scratch = scratch,
          .in_any_part = reference_refuses,
          .in_this_part = in_this_part};
}

Implementation fused(BytesOf scratch, Refusal in_this_part) {
  return {
      .name = arch::Kernels::kFused, .scratch = scratch, .in_any_part = fused_refuses, .in_this_part = in_this_part};
}

Implementation aten(BytesOf scratch, Refusal in_this_part) {
  return {.name = arch::Kernels::kAten, .scratch = scratch, .in_this_part = in_this_part, .aten = true};
}

}  // namespace parts

std::optional<std::string> Implementation::refuses(const KernelRequest& request) const {
  for (const Refusal why : {in_any_part, in_this_part})
    if (auto refused = why ? why(request) : std::nullopt) return refused;
  return std::nullopt;
}

Flops PartDeclaration::flops(const parts::Sizes& sizes, arch::Pass pass) const {
  if (own_flops) return own_flops(sizes, pass);
  return Flops(product ? products(pass) * product(sizes).flops() : 0.0);
}

const Implementation* PartDeclaration::find_kernels(arch::Kernels name) const {
  const auto found = std::find_if(kernels.begin(), kernels.end(), [&](const auto& k) { return k.name == name; });
  return found == kernels.end() ? nullptr : &*found;
}

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

bool PartDeclaration::computes_experts() const {
  return std::ranges::any_of(forward, [](const PartOperand& o) { return writes(o.access) && of_experts(o.value); });
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

namespace {

// A part without halves runs entirely in the first half of a backward, and not at all in the second.
std::optional<arch::Pass> pass_that_runs(const PartDeclaration& d, arch::Pass pass) {
  if (d.halves) return pass;
  if (pass == arch::Pass::kBackwardWeights) return std::nullopt;
  return pass == arch::Pass::kBackwardInput ? arch::Pass::kBackward : pass;
}

}  // namespace

arch::PartCost part_cost(const arch::Architecture& arch, arch::Part part, arch::Pass pass,
                         const arch::PartShape& shape) {
  const PartDeclaration& d = declaration_of(part);
  const auto runs = pass_that_runs(d, pass);
  if (!runs) return {Flops(0), Bytes(0), Bytes(0)};
  const parts::Sizes s(arch, shape);
  return {d.flops(s, *runs), Bytes(d.moved(s, *runs)), Bytes(scratch_of(d, shape.kernels, s, *runs))};
}

Bytes part_scratch(const arch::Architecture& arch, arch::Part part, arch::Pass pass, const arch::PartShape& shape) {
  const PartDeclaration& d = declaration_of(part);
  const auto runs = pass_that_runs(d, pass);
  return Bytes(runs ? scratch_of(d, shape.kernels, parts::Sizes(arch, shape), *runs) : 0);
}

std::optional<std::string> kernels_refused(arch::Kernels kernels, arch::Part part, const KernelRequest& request) {
  const PartDeclaration& d = declaration_of(part);
  if (const Implementation* of = d.find_kernels(kernels)) return of->refuses(request);
  std::string names;
  for (const Implementation& k : d.kernels) names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(k.name));
  return fmt::format("{} has the kernels {}, and none named {}", arch::name_of(part), names, name_of(kernels));
}

bool calls_aten(const Step& step) {
  const auto* compute = std::get_if<Compute>(&step.op);
  if (!compute || !step.attributes.kernel) return false;
  const Implementation* of = declaration_of(compute->part).find_kernels(*step.attributes.kernel);
  return of && of->aten;
}

Result<std::map<arch::Part, arch::Kernels>> without_flash(arch::Kernels kernels, const KernelRequest& request) {
  std::map<arch::Part, arch::Kernels> others;
  for (const arch::Part part : arch::kAllParts) {
    const PartDeclaration& d = declaration_of(part);
    const Implementation* of = d.find_kernels(kernels);
    if (!of || !of->flash) continue;
    std::string reasons;
    for (const Implementation& k : d.kernels) {
      if (k.flash || k.name == arch::Kernels::kReference || others.count(part) > 0) continue;
      const auto why = k.refuses(request);
      if (why)
        reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", *why);
      else
        others.emplace(part, k.name);
    }
    if (others.count(part) == 0) return Failure{reasons};
  }
  return others;
}

const std::vector<arch::Kernels>& all_kernels() {
  static const std::vector<arch::Kernels> all = [] {
    std::vector<arch::Kernels> names;
    for (const arch::Part part : arch::kAllParts)
      for (const Implementation& k : declaration_of(part).kernels)
        if (std::find(names.begin(), names.end(), k.name) == names.end()) names.push_back(k.name);
    return names;
  }();
  return all;
}

}  // namespace molen::program
