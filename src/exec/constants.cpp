#include "exec/constants.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "exec/bind_context.h"
#include "model/context.h"

namespace molen::exec {
namespace {

void fill_rope(const BindContext& c, const at::Tensor& flat) {
  const program::Program& p = c.program;
  const std::int64_t rows = flat.numel() / p.arch.head_dim * p.grid.sizes[mesh::Axis::kCp];
  const auto positions = c.positions.empty() ? positions_of(p.grid, rows, c.coordinates) : c.positions;
  const model::RopeTable table = positions.empty()
                                     ? model::make_rope_table(p.arch, rows, flat.scalar_type(), flat.device())
                                     : model::make_rope_table(p.arch, positions, flat.scalar_type(), flat.device());
  const at::Tensor halves = flat.view({2, table.cos_SD2.size(0), -1});
  halves.select(0, 0).copy_(table.cos_SD2);
  halves.select(0, 1).copy_(table.sin_SD2);
}

}  // namespace

void fill_constants(const BindContext& c) {
  const program::Program& p = c.program;
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    const program::Buffer& buffer = p.buffers[b];
    if (buffer.lifetime != program::Lifetime::kConstant) continue;
    const at::Tensor out = c.flat(static_cast<int>(b));
    if (buffer.role == program::Value::kRope)
      fill_rope(c, out);
    else if (buffer.role == program::Value::kSlopes)
      out.copy_(model::make_slopes(p.arch, c.coordinates[mesh::Axis::kTp], p.grid.sizes[mesh::Axis::kTp]));
    else
      throw Error("buffer {} is constant, and nothing says what {} holds", buffer.name, program::name_of(buffer.role));
  }
}

}  // namespace molen::exec
