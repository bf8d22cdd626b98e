#include "program/values/of_setting.h"

#include <fmt/format.h>

namespace molen::program {

Traits traits_of(const Setting& s) {
  Traits t;
  t.grid = grid_of(s);
  t.purpose = s.purpose;
  t.rows = s.rows();
  t.tile = s.head_chunk;
  t.positions = s.positions();
  t.micro_batches = s.micro_batches();
  t.parameters_cut = s.sharded_parameters();
  t.halves = s.pipeline.halves;
  t.in_a_ring = s.context_form == ContextForm::kRing;
  t.documents = s.document_mask;
  t.scaled = s.scales_loss();
  t.offload = s.offload;
  t.compute = s.compute;
  t.master = s.master;
  t.message = s.reduce;
  t.placement = s.pipeline.placement;
  return t;
}

std::optional<std::string> attributes_not_asked_for(const Program& p, const Step& step) {
  const Attributes& has = step.attributes;
  Attributes want = attributes_of(p.setting, step.op);
  if (has.kernel && want.kernel) want.kernel = has.kernel;
  if (!(has == want))
    return fmt::format("has the attributes [{}] where the setting asks for [{}]", text_of(has), text_of(want));
  return kernel_refused(p, step);
}

}  // namespace molen::program
