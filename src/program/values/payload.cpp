#include "program/values/payload.h"

#include "base/error.h"
#include "base/match.h"
#include "program/values/tiles.h"
#include "program/values/value_memory.h"

namespace molen::program {
namespace {

std::int64_t width_of(const Program& p, const Use& use) {
  return size_of(p.buffers[static_cast<std::size_t>(use.buffer)].dtype);
}

// Returns the bytes of `whole` or, if `chunk` is set, of this piece of the rows of `whole`.
std::int64_t exchanged_bytes(const Program& p, const Rows& rows, std::int64_t chunk, const Use& whole,
                             const mesh::PerAxis& at) {
  if (chunk < 0) return used_bytes(p, whole, at);
  const auto [first, last] = rows_of_piece(rows, chunk);
  return (last - first) * p.arch.hidden * width_of(p, whole);
}

// Returns the bytes of a message between stages. When tensor ranks share the rows, the message holds the rows that the
// rank keeps.
std::int64_t message_bytes(const Program& p, const Rows& rows, const Use& value, const mesh::PerAxis& at) {
  if (!rows.sharded || at == mesh::PerAxis{}) return used_bytes(p, value, at);
  return kept_rows(rows, p.grid, at) * p.arch.hidden * width_of(p, value);
}

// Returns the bytes of the rows that a rank sends to experts for a micro-batch, and gets back. There is one row for
// each slot; with a capacity, there are at most as many rows as all experts take, of which context ranks have equal
// shares. A tile has the share of its experts.
std::int64_t bytes_of_rows(const Program& p, const Step& step, std::int64_t tile) {
  const Use* rows = step.find(Arg::kFrom);
  if (!rows || !p.arch.sparse()) return 0;
  const Rows& sent = step.attributes.rows;
  const std::int64_t all = even_rows_of_experts(p.arch.sparse_experts(),
                                                {sent.sequences, sent.length, p.grid.sizes[mesh::Axis::kCp]}),
                     experts = p.arch.sparse_experts().count / p.grid.sizes[mesh::Axis::kEp];
  const auto [first, end] = experts_of_tile(p, sent, tile);
  return (arch::even_share(all, end, experts) - arch::even_share(all, first, experts)) * p.arch.hidden *
         width_of(p, *rows);
}

}  // namespace

std::int64_t used_elements(const Program& p, const Use& use, const mesh::PerAxis& at) {
  const Buffer& buffer = p.buffers.at(static_cast<std::size_t>(use.buffer));
  const int unit = p.unit_of_buffer(use.buffer);
  if (unit < 0) return buffer.elements;
  const Unit& of = p.units[static_cast<std::size_t>(unit)];
  // The buffer has the size that the rank at 0 needs, or another size if a text says so. If a unit has entries that
  // must not be divided, its largest part may be on another rank.
  if (use.range == Range::kAll && at == mesh::PerAxis{} && !of.has_whole()) return buffer.elements;
  const Range range = use.range == Range::kAll ? buffer.extent : use.range;
  const auto [first, last] = unit_range(p.grid, at, of, range);
  return elements_before(p, buffer.role, of, last) - elements_before(p, buffer.role, of, first);
}

std::int64_t used_bytes(const Program& p, const Use& use, const mesh::PerAxis& at) {
  return used_elements(p, use, at) * width_of(p, use);
}

Bytes payload_bytes(const Program& p, const Step& step, const mesh::PerAxis& at) {
  return Bytes(std::visit(
      [&](const auto& o) -> std::int64_t {
        using O = std::decay_t<decltype(o)>;
        // The payload is the size of this operand. An op from a text may lack the operand; the verifier reports that
        // later.
        constexpr bool sends = std::is_same_v<O, ReduceScatter> || std::is_same_v<O, Send>;
        // Routers decide how many rows a rank sends and receives. Over all ranks, one row is sent for each slot.
        if constexpr (std::is_same_v<O, AllToAll>) return bytes_of_rows(p, step, o.portion);
        const Use* use = step.find(sends ? Arg::kFrom : Arg::kTo);
        if constexpr (!std::is_same_v<O, ReduceScalars>)
          if (!use) return 0;
        if constexpr (std::is_same_v<O, AllReduce>)
          return used_bytes(p, *use, at);
        else if constexpr (std::is_same_v<O, ReduceScatter> || std::is_same_v<O, AllGather>)
          return exchanged_bytes(p, step.attributes.rows, o.portion, *use, at);
        else if constexpr (std::is_same_v<O, Send> || std::is_same_v<O, Receive>)
          return message_bytes(p, step.attributes.rows, *use, at);
        else if constexpr (std::is_same_v<O, RingExchange>)  // sent and received
          return 2 * used_bytes(p, *use, at);
        else if constexpr (std::is_same_v<O, ReduceScalars>)
          return o.count * size_of(DType::kF64);
        else
          throw Error("no payload of {}", kind_of(o));
      },
      step.op));
}

CallsByAxis calls_of(const Program& p, const std::vector<Expanded>& ops, const mesh::PerAxis& at) {
  CallsByAxis all;
  for (const Expanded& e : ops) {
    const auto axis = axis_of(e.step->op);
    if (!axis || !is_communication(e.step->op)) continue;
    const std::int64_t bytes = payload_bytes(p, *e.step, at).value;
    const auto add = [&](const std::string& call, std::int64_t payload) {
      CallBytes& of = all[{*axis, call}];
      ++of.calls;
      of.bytes += payload;
    };
    if (std::holds_alternative<RingExchange>(e.step->op)) {
      add("send", bytes / 2);
      add("recv", bytes / 2);
    } else if (std::holds_alternative<Receive>(e.step->op)) {
      add("recv", bytes);
    } else {
      add(std::holds_alternative<ReduceScalars>(e.step->op) ? "all_reduce" : kind_of(e.step->op), bytes);
    }
  }
  return all;
}

}  // namespace molen::program
