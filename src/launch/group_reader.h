// Reads a checkpoint with a group of ranks: each block is read and hashed by one rank, which sends the others what they
// need of it.
//
// A block (16 MiB of one tensor) may hold elements that several ranks need: tensor ranks need some columns of each row,
// and a shard may end within a block. The group reads the tensors of one unit at a time. Each rank learns which boxes
// every other rank needs, so that all ranks compute the same plan: for each block its reader, and the rounds in which
// blocks are read. In a round each rank reads one block, or several small ones, and all ranks exchange the parts in one
// all_to_all. A round in which no rank needs a part of another rank's block has no exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"
#include "program/ir/layout.h"

namespace molen::launch {

class GroupReader {
 public:
  // Elements that a rank needs: those of the box `part`, which is a part of needed[i], for the tensor with
  // prefixes[prefix]. `data` holds the elements of the box `held`, in which `part` lies.
  struct Piece {
    std::size_t prefix = 0, i = 0;
    const Box &part, &held;
    DType dtype;
    const void* data = nullptr;
  };
  using Take = std::function<void(const Piece&)>;

  // `parameters` are those of the model, with the shapes that their tensors have. For each parameter `name`, the
  // tensors prefix + name are read for all `prefixes`. A rank reads at most `round_bytes` in a round, unless one block
  // is larger. At a time it holds one block, the parts that it receives in a round (at most `round_bytes`, unless one
  // block has more), and the parts that it sends, with a copy for each rank that needs them.
  GroupReader(const checkpoint::Checkpoint& from, std::vector<arch::Parameter> parameters,
              std::vector<std::string> prefixes, comm::Communicator& group,
              std::int64_t round_bytes = checkpoint::kBlockBytes);

  // Reads the boxes that this rank needs; `take` receives each of their elements once per prefix. Collective over the
  // group. Throws the errors of Checkpoint on the rank that met them; the other ranks then return false, and some boxes
  // are not read. Throws UsageError on all ranks when a tensor is missing or has another shape than in the model.
  bool read(std::span<const program::GlobalBox> needed, const Take& take);

 private:
  // The boxes of one parameter that all ranks need.
  struct Needs {
    std::vector<Box> boxes;
    std::vector<int> ranks;            // boxes[i] is needed by ranks[i],
    std::vector<std::size_t> numbers;  // as its needed[numbers[i]]
  };
  // A block, and the rank that reads it.
  struct Assigned {
    std::size_t prefix = 0;
    std::string tensor;
    const Needs* needs = nullptr;
    checkpoint::Checkpoint::Block block;
    DType dtype{};
    int reader = 0;
    int rank_of(const checkpoint::Checkpoint::Part& part) const { return needs->ranks[part.wanted]; }
    std::int64_t bytes() const { return block.count * size_of(dtype); }
    std::int64_t bytes_of(const checkpoint::Checkpoint::Part& part) const {
      return part.part.elements() * size_of(dtype);
    }
  };
  using Round = std::vector<const Assigned*>;  // in the order of readers

  std::vector<Needs> gather(std::span<const program::GlobalBox> needed);
  std::vector<Assigned> assign(const std::vector<Needs>& needs);
  int choose_reader(const Assigned& candidate) const;
  std::vector<Round> rounds(const std::vector<Assigned>& blocks) const;
  bool run(const Round& round, const Take& take);
  void read_own(const Round& round, std::vector<std::int64_t> places, const Take& take);

  const checkpoint::Checkpoint& from_;
  std::vector<arch::Parameter> parameters_;
  std::vector<std::string> prefixes_;
  comm::Communicator& group_;
  std::int64_t round_bytes_;
  std::vector<std::int64_t> bytes_read_;  // by each rank so far, to balance the ranks
  std::vector<char> sent_, received_;     // messages of a round, to and from all ranks
};

}  // namespace molen::launch
