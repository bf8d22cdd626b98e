// Attention within documents (data.document_mask), whose work depends on the data, and the attention of devices.
#pragma once

#include <vector>

#include "program/ir/program.h"
#include "sim/costs.h"
#include "sim/intervals.h"

namespace molen::sim {

// Whether a device has kernels in tiles for the heads of a model: of at most 256 elements and a multiple of 8, without
// ALiBi.
bool heads_in_tiles(const arch::Architecture& arch);
bool heads_in_tiles(std::int64_t head_dim);  // of a model without ALiBi

// Whether a device computes the attention of a step without writing scores out, as model::aten::attention_backend
// decides: in 16 bits, with heads for which heads_in_tiles holds, by kernels in tiles; within documents, only where
// ranks have whole sequences.
bool flash_on_device(const program::Program& program, const program::Step& step);

// Returns whether the step is attention within documents by kernels that leave out what lies beyond them, on the host
// or on a device. Kernels that write scores out compute as much with a mask as without one.
bool leaves_out_documents(const program::Program& program, const program::Step& step, bool device);

// Leaves `share` of their FLOPs to all such ops, which data::attended_share says of the data. The costs of ops then
// follow from it. Programs state the FLOPs of whole sequences, because the data is not part of them.
void attend_within_documents(std::vector<program::Program>& programs, double share, bool device);

// The errors of other sources, and those of the documents in the data: the source "documents".
class DocumentErrors : public OpErrors {
 public:
  // `more`: the share of attention's work at the upper end of its interval (data::interval_of) over the one that
  // attend_within_documents has left, at least 1. `others` and `costs` must outlive this object.
  DocumentErrors(const OpErrors& others, const Costs& costs, double more, bool device)
      : others_(others), costs_(costs), more_(more), device_(device) {}
  std::vector<Errors> of(const program::Program& program, const program::Step& step) const override;

 private:
  const OpErrors& others_;
  const Costs& costs_;
  double more_;
  bool device_;
};

}  // namespace molen::sim
