#include "sim/attended.h"

#include "program/parts/part.h"

namespace molen::sim {

bool leaves_out_documents(const program::Step& step) {
  const auto* part = std::get_if<program::Compute>(&step.op);
  if (!part || !step.attributes.kernel || !step.find(program::Arg::kDocuments)) return false;
  const program::Implementation* kernels = program::declaration_of(part->part).find_kernels(*step.attributes.kernel);
  return kernels && kernels->flash;
}

void attend_within_documents(std::vector<program::Program>& programs, double share) {
  for (program::Program& p : programs)
    for (program::Body& body : p.bodies)
      for (program::Step& step : body.steps)
        if (leaves_out_documents(step)) step.hardware_flops = Flops(step.hardware_flops.value * share);
}

}  // namespace molen::sim
