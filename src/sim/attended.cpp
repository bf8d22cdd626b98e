#include "sim/attended.h"

#include "program/parts/part.h"

namespace molen::sim {
namespace {

bool in_tiles(const program::Step& step) {
  const auto* part = std::get_if<program::Compute>(&step.op);
  if (!part || part->part != arch::Part::kAttention || !step.attributes.kernel) return false;
  const program::Implementation* kernels = program::declaration_of(part->part).find_kernels(*step.attributes.kernel);
  return kernels && kernels->flash;
}

bool has_documents(const program::Step& step) {
  return step.find(program::Arg::kDocuments) != nullptr;
}

}  // namespace

bool heads_in_tiles(std::int64_t head_dim) {
  return head_dim <= 256 && head_dim % 8 == 0;
}

bool heads_in_tiles(const arch::Architecture& arch) {
  return arch.position != arch::Position::kAlibi && heads_in_tiles(arch.head_dim);
}

bool flash_on_device(const program::Program& p, const program::Step& step) {
  const bool narrow = size_of(step.attributes.compute.value_or(DType::kF32)) == 2;
  const bool fits = in_tiles(step) && narrow && heads_in_tiles(p.arch);
  return fits && (!has_documents(step) || p.grid.sizes[mesh::Axis::kCp] == 1);
}

bool leaves_out_documents(const program::Program& p, const program::Step& step, bool device) {
  return has_documents(step) && in_tiles(step) && (!device || flash_on_device(p, step));
}

void attend_within_documents(std::vector<program::Program>& programs, double share, bool device) {
  for (program::Program& p : programs)
    for (program::Body& body : p.bodies)
      for (program::Step& step : body.steps)
        if (leaves_out_documents(p, step, device)) step.hardware_flops = Flops(step.hardware_flops.value * share);
}

std::vector<Errors> DocumentErrors::of(const program::Program& p, const program::Step& step) const {
  std::vector<Errors> all = others_.of(p, step);
  if (!leaves_out_documents(p, step, device_)) return all;
  double own = costs_.seconds(p, step);
  for (const double epilogue : costs_.epilogue_seconds(step)) own -= epilogue;
  program::Step longer = step;
  longer.hardware_flops = Flops(step.hardware_flops.value * more_);
  if (own > 0.0) all.at(0)["documents"] = (costs_.seconds(p, longer) - costs_.seconds(p, step)) / own;
  return all;
}

}  // namespace molen::sim
