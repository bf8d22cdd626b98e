// The work of attention within documents (data.document_mask), which depends on the data.
#pragma once

#include <vector>

#include "program/ir/program.h"

namespace molen::sim {

// Returns whether the step is attention within documents by kernels that leave out what lies beyond them. Kernels that
// write all scores out (math.flash_attention = false) compute as much with a mask as without one.
bool leaves_out_documents(const program::Step& step);

// Leaves `share` of their FLOPs to all such ops: what data::attended_share says of the data. The costs of ops then
// follow from it. Programs state the FLOPs of whole sequences, because the data is not part of them.
void attend_within_documents(std::vector<program::Program>& programs, double share);

}  // namespace molen::sim
