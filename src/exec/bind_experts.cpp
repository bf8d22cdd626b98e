#include "exec/bind_experts.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/values/tiles.h"

namespace molen::exec {
namespace {

using program::Arg;

// The numbers of rows that this rank exchanges with the others for a tile of the experts. Row numbers are int32, as in
// math/expert_order.h.
class RowCounts {
 public:
  // `offsets` holds the offsets of one rank after another. Each rank has one offset per expert, and then the end of its
  // last expert's rows. The tile has the experts [first, second) of each rank, counted from the rank's first one.
  RowCounts(const std::int32_t* offsets, int ranks, int rank, std::int64_t experts,
            std::pair<std::int64_t, std::int64_t> tile)
      : offsets_(offsets), ranks_(ranks), rank_(rank), experts_(experts), each_(experts / ranks), tile_(tile) {}

  // `to` returns how many rows this rank sends to the experts of `other`, and `first_to` the first of them in the order
  // of experts. `from` returns how many rows `other` sends to the experts of this rank.
  std::int64_t to(int other) const { return rows(rank_, first_of(other), end_of(other)); }
  std::int64_t first_to(int other) const { return rows(rank_, 0, first_of(other)); }
  std::int64_t from(int other) const { return rows(other, first_of(rank_), end_of(rank_)); }
  // Returns how many rows this rank gets for all its experts, in all tiles.
  std::int64_t from_all() const { return rows_of_all(first_expert(), first_expert() + each_); }

  // Calls visit(row by rank, row by expert, count) for each run of rows that have one sender and one expert of this
  // rank. "Row by rank" counts the rows of the tile in order of sender, then expert; "row by expert" counts the rows of
  // all tiles in order of expert, then sender.
  template <class Visit>
  void runs(Visit visit) const {
    std::int64_t by_expert = rows_of_all(first_expert(), first_of(rank_));
    for (std::int64_t e = first_of(rank_); e < end_of(rank_); ++e) {
      std::int64_t sender = 0;
      for (int other = 0; other < ranks_; ++other) {
        const std::int64_t count = rows(other, e, e + 1);
        if (count > 0) visit(sender + rows(other, first_of(rank_), e), by_expert, count);
        by_expert += count;
        sender += from(other);
      }
    }
  }

  // Writes the first row of each expert of this rank, and then the end of the last expert's rows.
  void write_offsets(std::int32_t* begin) const {
    begin[0] = 0;
    for (std::int64_t j = 0; j < each_; ++j)
      begin[j + 1] = begin[j] + static_cast<std::int32_t>(rows_of_all(first_expert() + j, first_expert() + j + 1));
  }

 private:
  std::int64_t first_expert() const { return rank_ * each_; }
  std::int64_t first_of(int rank) const { return rank * each_ + tile_.first; }
  std::int64_t end_of(int rank) const { return rank * each_ + tile_.second; }
  std::int64_t rows(int rank, std::int64_t first, std::int64_t end) const {
    const std::int32_t* of = offsets_ + rank * (experts_ + 1);
    return of[end] - of[first];
  }
  std::int64_t rows_of_all(std::int64_t first, std::int64_t end) const {
    std::int64_t all = 0;
    for (int rank = 0; rank < ranks_; ++rank) all += rows(rank, first, end);
    return all;
  }

  const std::int32_t* offsets_;
  int ranks_, rank_;
  std::int64_t experts_, each_;
  std::pair<std::int64_t, std::int64_t> tile_;
};

}  // namespace

Kernel bind_all_to_all(const BindContext& c, const program::Step& step, comm::Communicator* group) {
  const auto& op = std::get<program::AllToAll>(step.op);
  const bool home = op.home();
  const auto from = c.flat(step.operand(Arg::kFrom).buffer);
  auto to = c.flat(step.operand(Arg::kTo).buffer);
  const auto offsets = c.flat(step.operand(Arg::kOffsets).buffer);
  at::Tensor begin;
  if (const program::Use* use = step.find(Arg::kExpertOffsets)) begin = c.flat(use->buffer);
  MOLEN_CHECK(from.device().is_cpu(), "expert ranks exchange rows in the memory of the host alone");
  const std::int64_t width = c.program.arch.hidden, bytes = width * from.element_size(),
                     most = (home ? from : to).numel() / width, experts = c.program.arch.sparse_experts().count,
                     space = step.scratch.value;
  const auto tile = program::experts_of_tile(c.program, step.attributes.rows, op.portion);
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  return [=](RunState& run, math::Scratch& scratch) mutable {
    const int ranks = group->size();
    const RowCounts rows(offsets.data_ptr<std::int32_t>(), ranks, group->rank(), experts, tile);
    MOLEN_CHECK(rows.from_all() <= most, "{} rows for the experts of a rank that has room for {}", rows.from_all(),
                most);
    if (begin.defined()) rows.write_offsets(begin.data_ptr<std::int32_t>());
    // On the rank of the tokens, the rows for another rank's experts lie among the rows for all experts.
    std::vector<std::int64_t> here, there, place_here;
    for (int other = 0; other < ranks; ++other) {
      here.push_back(rows.to(other) * width);
      place_here.push_back(rows.first_to(other) * width);
      there.push_back(rows.from(other) * width);
    }
    const comm::Blocks of_tokens(here, place_here), of_experts(there);
    auto* by_rank = static_cast<std::byte*>(scratch.take_bytes(space));
    auto *source = static_cast<std::byte*>(from.data_ptr()), *target = static_cast<std::byte*>(to.data_ptr());
    std::int64_t moved = 0;
    const auto copy = [&](std::byte* out, std::int64_t at_out, const std::byte* in, std::int64_t at_in,
                          std::int64_t count) {
      std::memcpy(out + at_out * bytes, in + at_in * bytes, static_cast<std::size_t>(count * bytes));
      moved += 2 * count * bytes;
    };
    if (home)
      run.epilogue(program::Epilogue::kPack, [&] {
        rows.runs([&](std::int64_t at_rank, std::int64_t at_expert, std::int64_t count) {
          copy(by_rank, at_rank, source, at_expert, count);
        });
        return moved;
      });
    if (home)
      group->all_to_all(by_rank, of_experts, target, of_tokens, dtype);
    else
      group->all_to_all(source, of_tokens, by_rank, of_experts, dtype);
    if (!home)
      run.epilogue(program::Epilogue::kUnpack, [&] {
        rows.runs([&](std::int64_t at_rank, std::int64_t at_expert, std::int64_t count) {
          copy(target, at_expert, by_rank, at_rank, count);
        });
        return moved;
      });
  };
}

}  // namespace molen::exec
