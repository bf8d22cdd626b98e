// Ops: everything that a rank does in one optimizer step, as plain data in a closed variant. A consumer visits an op
// with one lambda per type (base/match.h), so a consumer that forgets a type does not compile.
//
// An op finds each operand by its argument name, never by its position. Retargeting an operand in the text form
// therefore changes what runs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "arch/parts.h"
#include "base/dtype.h"
#include "base/units.h"
#include "program/ir/arg.h"
#include "program/ir/mesh_type.h"

namespace molen::program {

// Named groups of ranks along the mesh's axes. kDp joins kReplicate and kShard: all ranks that hold the same
// parameters. Context ranks and expert ranks belong to that group, and kShard consists of dp_shard, ep and cp.
// kExpertDp and kExpertShard are the same two groups for the experts of a layer: expert ranks hold different experts,
// so these groups leave ep out. kEnds are the first and the last stage of a pipeline, which share a tied embedding.
enum class Axis { kDp, kShard, kReplicate, kTp, kWorld, kPp, kEnds, kCp, kEp, kExpertDp, kExpertShard };
inline constexpr std::array kAllAxes{Axis::kDp,    Axis::kShard,    Axis::kReplicate,  Axis::kTp,
                                     Axis::kWorld, Axis::kPp,       Axis::kEnds,       Axis::kCp,
                                     Axis::kEp,    Axis::kExpertDp, Axis::kExpertShard};
// Returns the group of all ranks that stands for a group of the ranks of a layer's experts, or the axis itself.
constexpr Axis without_experts(Axis axis) {
  return axis == Axis::kExpertDp ? Axis::kDp : axis == Axis::kExpertShard ? Axis::kShard : axis;
}

// The queue that an op runs on. Ops of one stream run in list order; streams run concurrently. Communication has a
// stream for each kind of axis, so that an exchange that compute waits for does not stand behind a reduction over
// data-parallel ranks. Copies from and to the device have separate streams, because each direction has its own wires.
// kHost is work of the host's cores on host memory.
enum class Stream { kCompute, kDpComm, kTpComm, kCpComm, kEpComm, kPpComm, kToHost, kToDevice, kHost };
inline constexpr std::array kAllStreams{Stream::kCompute, Stream::kDpComm,   Stream::kTpComm,
                                        Stream::kCpComm,  Stream::kEpComm,   Stream::kPpComm,
                                        Stream::kToHost,  Stream::kToDevice, Stream::kHost};
inline constexpr int kNumStreams = kAllStreams.size();
inline constexpr std::array kCommStreams{Stream::kDpComm, Stream::kTpComm, Stream::kCpComm, Stream::kEpComm,
                                         Stream::kPpComm};
constexpr bool communicates(Stream stream) {
  return Stream::kDpComm <= stream && stream <= Stream::kPpComm;
}
// Returns the stream of the communication over an axis, if a text does not put it on another.
constexpr Stream stream_of(Axis axis) {
  switch (axis) {
    case Axis::kTp:
      return Stream::kTpComm;
    case Axis::kCp:
      return Stream::kCpComm;
    case Axis::kEp:
      return Stream::kEpComm;
    case Axis::kPp:
    case Axis::kEnds:
      return Stream::kPpComm;
    default:
      return Stream::kDpComm;
  }
}
// For each stream, the index of an op of that stream; -1: none.
using OpPerStream = std::array<int, kNumStreams>;
inline constexpr OpPerStream kNoOps = [] {
  OpPerStream none{};
  none.fill(-1);
  return none;
}();

// The account for an op's seconds and joules. The pipeline bubble is not a phase of any op: a Timeline shows it as time
// idle for other stages.
enum class Phase {
  kData,
  kForward,
  kHead,
  kBackward,
  kRecompute,
  kGradientReduce,
  kClip,
  kOptimizer,
  kParameterGather
};
inline constexpr int kNumPhases = 9;

// The part of a buffer that an op uses: all of it; this rank's shard of the unit's sharded gradients and parameters;
// the part whose optimizer state this rank owns; the elements that all tensor ranks hold in full (program/ir/layout.h:
// unit_range).
enum class Range { kAll, kShard, kOwn, kReplicated };

// The access of an op to one of its operands. kRead: the op reads the operand and leaves it unchanged. kConsume: the op
// reads it and may leave anything in it. kUpdate: the op computes the new contents from the old ones. kWrite: the op
// overwrites it without reading it.
enum class Access { kRead, kConsume, kUpdate, kWrite };
inline constexpr std::array kAllAccesses{Access::kRead, Access::kConsume, Access::kUpdate, Access::kWrite};
constexpr bool reads(Access access) {
  return access != Access::kWrite;
}
// Whether the op leaves a value for a later reader.
constexpr bool writes(Access access) {
  return access == Access::kUpdate || access == Access::kWrite;
}
// Whether the operand may hold something else afterwards.
constexpr bool changes(Access access) {
  return access != Access::kRead;
}

struct Use {
  Arg arg{};
  int buffer = -1;
  Range range = Range::kAll;
  Access access = Access::kRead;
  // The type over the mesh. An operand that the op only reads or consumes has the type in which the op finds it; one
  // that the op updates or writes has the type in which the op leaves it.
  MeshType type = {};
  bool reads() const { return program::reads(access); }
  bool writes() const { return program::writes(access); }
  bool changes() const { return program::changes(access); }
  bool operator==(const Use&) const = default;
};

// kInput and kWeights are the halves of a backward: kInput makes the gradient that the part before waits for (and the
// gradients of norm weights), kWeights the gradients of matrices.
enum class ComputePass { kForward, kBackward, kRecompute, kInput, kWeights };
inline constexpr std::array kAllComputePasses{ComputePass::kForward, ComputePass::kBackward, ComputePass::kRecompute,
                                              ComputePass::kInput, ComputePass::kWeights};
// Whether the pass makes gradients.
constexpr bool is_backward(ComputePass pass) {
  return pass == ComputePass::kBackward || pass == ComputePass::kInput || pass == ComputePass::kWeights;
}

// One part of the model (arch/parts.h) for one micro-batch.
struct Compute {
  arch::Part part{};
  ComputePass pass{};
  std::int64_t layer = -1;  // -1 outside the layers
  // The head: the chunk of Setting::head_chunk tokens. Attention in a ring: the step. A product beside a
  // tensor-parallel exchange: the piece of Setting::tensor_chunks.
  std::int64_t chunk = -1;
  bool operator==(const Compute&) const = default;
};
// Loads the next micro-batch of this rank from the data loader. `uncounted`: this op does not count the valid tokens,
// because another stage, which has the head, does.
struct LoadBatch {
  bool uncounted = false;
  bool operator==(const LoadBatch&) const = default;
};
struct ZeroFill {
  bool padding = false;  // a gradient: clears only the elements between its parameters, which no op writes
  bool operator==(const ZeroFill&) const = default;
};
// scalars[kSumSquares] += sum of squares of `grad`.
struct SumSquares {
  bool operator==(const SumSquares&) const = default;
};
// Computes scalars[kGradNorm] and scalars[kGradScale] from the reduced sums. The scale combines clipping by global
// norm, the mean over valid tokens, and the inverse of the step's loss scale.
struct ClipScale {
  bool operator==(const ClipScale&) const = default;
};
// Updates a unit's parameters. `kind` names the optimizer (values/optimizer.h), which says what states it has.
// Where tensor ranks share matrices that the optimizer updates whole, one op makes the direction from gradient and
// momentum, and after an all-gather over these ranks another one applies it.
enum class UpdateStage { kWhole, kDirection, kApply };
inline constexpr std::array kAllUpdateStages{UpdateStage::kWhole, UpdateStage::kDirection, UpdateStage::kApply};
struct OptimizerStep {
  std::string kind = "adamw";
  UpdateStage stage = UpdateStage::kWhole;
  bool operator==(const OptimizerStep&) const = default;
};
// The values that a collective, message or copy moves. kUnit: parameters or gradients of a unit. Otherwise a value of
// one layer (signature.h). Between tensor ranks: the input of a layer, its middle, their gradients, the sums of a chunk
// of the head. Between context ranks: the keys and values of a layer, and their gradients; the sums that the router of
// a layer makes for each sequence. Between expert ranks: where the rows of each expert begin in the order of experts;
// the rows on their way to the experts and home, and their gradients. Copies move the values that a layer keeps for
// backward: its input, its middle, and from kQkv on the results of its parts.
enum class Moves {
  kUnit,
  kResidual,
  kMid,
  kDResidual,
  kDMid,
  kHead,
  kKeys,
  kDKeys,
  kQkv,
  kAttention,
  kUp,
  kActivation,
  kLoad,
  kOffsets,
  kExpertRows,
  kExpertOut,
  kDExpertOut,
  kDExpertRows
};
inline constexpr std::array kAllMoves{
    Moves::kUnit, Moves::kResidual, Moves::kMid,        Moves::kDResidual, Moves::kDMid,       Moves::kHead,
    Moves::kKeys, Moves::kDKeys,    Moves::kQkv,        Moves::kAttention, Moves::kUp,         Moves::kActivation,
    Moves::kLoad, Moves::kOffsets,  Moves::kExpertRows, Moves::kExpertOut, Moves::kDExpertOut, Moves::kDExpertRows};
// Values that a layer keeps for backward and that may be offloaded to the host until then
// (Setting::offload.activations).
inline constexpr std::array kKeptForBackward{Moves::kResidual,  Moves::kMid, Moves::kQkv,
                                             Moves::kAttention, Moves::kUp,  Moves::kActivation};

struct AllReduce {
  Axis axis{};
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;  // layer of the moved value; for kHead, the chunk
  bool operator==(const AllReduce&) const = default;
};
// Leaves this rank's part of the sum of `from` in `to`. `from` is used up: it may hold anything afterwards.
struct ReduceScatter {
  Axis axis{};
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;
  std::int64_t chunk = -1;  // rows between tensor ranks: the piece of Setting::tensor_chunks; -1: all rows
  bool operator==(const ReduceScatter&) const = default;
};
struct AllGather {
  Axis axis{};
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;
  std::int64_t chunk = -1;  // as in ReduceScatter
  bool operator==(const AllGather&) const = default;
};
// Sends rows between expert ranks. To the experts (kExpertRows, kDExpertOut): from the order of experts on this rank,
// to the ranks that hold these experts, where the rows of each expert stand together, rank after rank. Home
// (kExpertOut, kDExpertRows): the way back. How many rows go is data, the offsets of all ranks.
struct AllToAll {
  Axis axis{};
  Moves moves = Moves::kExpertRows;
  std::int64_t layer = -1;
  bool home() const { return moves == Moves::kExpertOut || moves == Moves::kDExpertRows; }
  bool operator==(const AllToAll&) const = default;
};
// Send to and receive from the pipeline stage `peer`, at the same place along all other axes: a layer's input
// (kResidual) of one micro-batch, or its gradient (kDResidual).
struct Send {
  Moves moves = Moves::kResidual;
  std::int64_t layer = -1;
  int peer = -1;
  bool operator==(const Send&) const = default;
};
struct Receive {
  Moves moves = Moves::kResidual;
  std::int64_t layer = -1;
  int peer = -1;
  bool operator==(const Receive&) const = default;
};
// Sends to the next rank along the axis and receives from the previous one: keys and values of a layer (kKeys) on their
// way around a ring, or the gradients that travel with them. `step`, from 1 to the number of ranks of the axis, counts
// the hops so far; after the last step the gradients are home.
struct Shift {
  Axis axis{};
  Moves moves = Moves::kKeys;
  std::int64_t layer = -1;
  std::int64_t step = 1;
  bool operator==(const Shift&) const = default;
};
// Copies between device and host memory (Setting::offload). To the host: the part of a unit's gradient (kUnit) that
// this rank updates, or a value that a layer keeps for backward. To the device: a unit's parameters, or a kept value.
struct CopyToHost {
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;
  bool operator==(const CopyToHost&) const = default;
};
struct CopyToDevice {
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;
  bool operator==(const CopyToDevice&) const = default;
};
// Converts a gradient around a reduction over data-parallel ranks whose messages are narrower than the kept gradients
// (Setting::reduce). It casts the gradient of a unit, or this rank's part of it, into the message that is reduced over
// the axis `over`; with `back`, it casts this rank's part of the sums into the gradient.
struct Cast {
  Axis over{};
  bool back = false;
  bool operator==(const Cast&) const = default;
};
// Sums scalars[first .. first + count) over the axis.
struct ReduceScalars {
  Axis axis{};
  std::int64_t first = 0, count = 0;
  bool operator==(const ReduceScalars&) const = default;
};
// A flag that every rank computes from reduced scalars, so that all ranks agree on it.
enum class Flag { kNonFinite };
struct Agree {
  Flag flag{};
  bool operator==(const Agree&) const = default;
};

using Op =
    std::variant<Compute, LoadBatch, ZeroFill, SumSquares, ClipScale, OptimizerStep, AllReduce, ReduceScatter,
                 AllGather, AllToAll, Send, Receive, Shift, CopyToHost, CopyToDevice, Cast, ReduceScalars, Agree>;

// Places in the `scalars` buffer (fp64). The first three are sums over ranks once ReduceScalars has run, and so are the
// last three, which only models with sparse layers have: sums over valid tokens and sparse layers. The last one counts
// choices that a capacity drops, and only models with a capacity have it.
enum Scalar : std::int64_t {
  kLossSum,
  kValidTokens,
  kSumSquares,
  kGradNorm,
  kGradScale,
  kBalanceLoss,
  kZLoss,
  kDropped,
  kNumScalars
};
inline std::int64_t num_scalars(const arch::Architecture& arch) {
  if (!arch.sparse()) return kBalanceLoss;
  return arch.drops_tokens() ? kNumScalars : kDropped;
}
// The scalars that ranks sum.
inline std::vector<Scalar> sums_of(const arch::Architecture& arch) {
  std::vector<Scalar> sums{kLossSum, kValidTokens, kSumSquares};
  if (arch.sparse()) sums.insert(sums.end(), {kBalanceLoss, kZLoss});
  if (arch.drops_tokens()) sums.push_back(kDropped);
  return sums;
}

// Another op that must end before this one starts: in the same instance (body -1), or in the latest earlier instance of
// `body`, if there is one.
struct OpRef {
  int body = -1;
  int op = -1;
  bool operator==(const OpRef&) const = default;
  auto operator<=>(const OpRef&) const = default;
};

// The rows of a micro-batch on a rank, one for each token: `sequences` x `length`. Tensor ranks exchange rows in
// `pieces`. With `sharded`, each of them keeps a part of the residual stream's rows.
struct Rows {
  std::int64_t sequences = 0, length = 0;
  std::int64_t pieces = 1;
  bool sharded = false;
  std::int64_t count() const { return sequences * length; }
  bool in_pieces() const { return sharded && pieces > 1; }
  bool operator==(const Rows&) const = default;
};

// The sizes and choices that a kernel needs besides the operands of its op. An op has those that values/attributes.h
// gives it; the others keep the values here, which mean "none".
struct Attributes {
  Rows rows;                            // of the micro-batch; LoadBatch: of whole sequences
  std::int64_t tile = 0;                // head: rows of a chunk; the last chunk may have fewer
  std::int64_t positions = 0;           // of the global batch: the loss is their mean
  bool scaled = false;                  // the loss is scaled, so a gradient that is not finite may be an overflow
  std::optional<DType> compute;         // element type of a part
  std::optional<arch::Kernels> kernel;  // implementation of a part
  int threads = 0;                      // of a kernel on the host's cores
  bool operator==(const Attributes&) const = default;
};

// Work on memory that an op does besides what its kind names, such as a collective that adds its sum to an earlier one.
// It moves bytes and computes no product. Predictions and measurements have a row of
// their own for each kind of it ("epilogue add"). values/epilogues.h says which ops have which.
enum class Epilogue {
  kAdd,       // adds a sum to an earlier one
  kCopy,      // copies a value, because its old buffer is still to be read
  kPack,      // copies what is sent so that it lies side by side
  kUnpack,    // copies what has come to where it belongs
  kAssemble,  // copies the weights of key and value heads that the rank needs to a matrix, or gradients from one
};
inline constexpr std::array kAllEpilogues{Epilogue::kAdd, Epilogue::kCopy, Epilogue::kPack, Epilogue::kUnpack,
                                          Epilogue::kAssemble};
inline constexpr std::size_t kNumEpilogues = kAllEpilogues.size();
struct EpilogueCost {
  Epilogue kind{};
  Bytes moved;  // memory traffic: what is read and what is written
  bool operator==(const EpilogueCost&) const = default;
};

struct Step {
  Op op;
  Phase phase{};
  Stream stream{};
  std::vector<OpRef> after;
  std::vector<Use> operands;   // no two of one argument
  std::optional<Flag> unless;  // the op is skipped when the flag is set
  Attributes attributes;
  Bytes scratch;  // workspace of the kernel
  Flops model_flops, hardware_flops;
  Bytes moved;  // memory traffic of a compute op; payload of a collective; in both without the epilogues
  std::vector<EpilogueCost> epilogues;  // in the order of Epilogue, no two of a kind
  bool operator==(const Step&) const = default;
  // Throw Error when there is no such operand.
  const Use& operand(Arg arg) const;
  Use& operand(Arg arg);
  const Use* find(Arg arg) const;  // null when there is none
  // Whether it has the operand and updates it; of a gradient or a sum: adds to it instead of overwriting it.
  bool updates(Arg arg) const;
};

std::string_view name_of(Phase phase);
std::string_view name_of(Stream stream);
std::string_view name_of(Axis axis);
std::string_view name_of(Access access);  // "reads", "consumes", "updates", "writes"
std::string_view name_of(Range range);    // "all", "shard", "own", "replicated"
std::string_view name_of(Moves moves);    // "unit", "x", "mid", ...: the names of the values (signature.h)
std::string_view name_of(ComputePass pass);
std::string_view name_of(Flag flag);
std::string_view name_of(Epilogue epilogue);  // "add", "copy", "pack", "unpack", "assemble"
std::string_view name_of(UpdateStage stage);  // "whole", "direction", "apply"
// Returns "forward attention", "all_reduce", ...: the key of cost tables and comparisons.
std::string kind_of(const Op& op);
std::string kind_of(Epilogue epilogue);  // "epilogue add", ...
bool is_communication(const Op& op);
bool is_copy(const Op& op);  // between device and host
// Returns the group of ranks that an op communicates with, or nothing for an op that does not communicate.
std::optional<Axis> axis_of(const Op& op);

}  // namespace molen::program
