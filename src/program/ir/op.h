// Ops: everything that a rank does in one optimizer step, as plain data in a closed variant. A consumer visits an op
// with one lambda for each type (base/match.h), so a consumer that lacks a type does not compile.
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

// Named groups of ranks along the mesh's axes. kDp joins kReplicate and kShard: it is the group of all ranks that hold
// the same parameters. Context ranks and expert ranks belong to kDp, and kShard consists of dp_shard, ep and cp.
// kExpertDp and kExpertShard are the same two groups for the experts of a layer. They leave out ep, because expert
// ranks hold different experts. kEmbedding are the first and the last stage of a pipeline, which share a tied
// embedding.
enum class Axis { kDp, kShard, kReplicate, kTp, kWorld, kPp, kEmbedding, kCp, kEp, kExpertDp, kExpertShard };
inline constexpr std::array kAllAxes{Axis::kDp,    Axis::kShard,    Axis::kReplicate,  Axis::kTp,
                                     Axis::kWorld, Axis::kPp,       Axis::kEmbedding,  Axis::kCp,
                                     Axis::kEp,    Axis::kExpertDp, Axis::kExpertShard};
// Returns the group that includes the expert ranks for a group of the ranks of a layer's experts (kDp for kExpertDp,
// kShard for kExpertShard), and any other axis unchanged.
constexpr Axis without_experts(Axis axis) {
  return axis == Axis::kExpertDp ? Axis::kDp : axis == Axis::kExpertShard ? Axis::kShard : axis;
}

// The queue that an op runs on. Ops of one stream run in list order; streams run concurrently. Communication has a
// stream for each kind of axis, so that an exchange that compute waits for does not queue after a reduction over
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
  for (const Stream comm : kCommStreams)
    if (stream == comm) return true;
  return false;
}
// Returns the stream of the communication over an axis, unless a program text puts the op on another stream.
constexpr Stream stream_of(Axis axis) {
  switch (axis) {
    case Axis::kTp:
      return Stream::kTpComm;
    case Axis::kCp:
      return Stream::kCpComm;
    case Axis::kEp:
      return Stream::kEpComm;
    case Axis::kPp:
    case Axis::kEmbedding:
      return Stream::kPpComm;
    default:
      return Stream::kDpComm;
  }
}
// For each stream, the index of an op of that stream, or -1 for no op.
using OpPerStream = std::array<int, kNumStreams>;
inline constexpr OpPerStream kNoOps = [] {
  OpPerStream none{};
  none.fill(-1);
  return none;
}();
// Keeps, for each stream, the later op of the two lists.
constexpr void keep_latest(OpPerStream& ops, const OpPerStream& others) {
  for (std::size_t s = 0; s < ops.size(); ++s)
    if (ops[s] < others[s]) ops[s] = others[s];
}

// The category under which an op's seconds are counted. The pipeline bubble is not a phase of any op: a
// Timeline shows it as time in which a stage is idle because it waits for other stages.
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

// The part of a buffer that an op uses (program/ir/layout.h: unit_range). kAll is the whole buffer. kShard is this
// rank's shard of the unit's sharded gradients and parameters. kOwn is the part whose optimizer state this rank owns.
// kReplicated is the elements that all tensor ranks hold in full.
enum class Range { kAll, kShard, kOwn, kReplicated };

// The access of an op to one of its operands. kRead: the op reads the operand and leaves it unchanged. kConsume: the op
// reads the operand and may leave anything in it. kUpdate: the op computes the operand's new contents from its old
// ones. kWrite: the op overwrites the operand without reading it.
enum class Access { kRead, kConsume, kUpdate, kWrite };
inline constexpr std::array kAllAccesses{Access::kRead, Access::kConsume, Access::kUpdate, Access::kWrite};
constexpr bool reads(Access access) {
  return access != Access::kWrite;
}
// Whether the op leaves a value in the operand for a later reader.
constexpr bool writes(Access access) {
  return access == Access::kUpdate || access == Access::kWrite;
}
// Whether the contents of the operand may differ afterwards.
constexpr bool changes(Access access) {
  return access != Access::kRead;
}

struct Use {
  Arg arg{};
  int buffer = -1;
  Range range = Range::kAll;
  Access access = Access::kRead;
  // The type over the mesh. For an operand that the op only reads or consumes, it is the type before the op; for an
  // operand that the op updates or writes, it is the type after the op.
  MeshType type = {};
  bool reads() const { return program::reads(access); }
  bool writes() const { return program::writes(access); }
  bool changes() const { return program::changes(access); }
  bool operator==(const Use&) const = default;
};

using arch::Pass;

// One part of the model (arch/parts.h) for one micro-batch.
struct Compute {
  arch::Part part{};
  Pass pass{};
  std::int64_t layer = -1;  // -1 for a part outside the layers
  // The number of the op among several that share the work of one part, or -1. A text has a word for each
  // (portion_word): the chunk of the head (Setting::head_chunk), the step of attention in a ring, the piece of the rows
  // (Setting::tensor_chunks), or the tile of the experts (Setting::expert_tiles).
  std::int64_t portion = -1;
  bool operator==(const Compute&) const = default;
};
// Loads the next micro-batch of this rank from the data loader. Without `counts_tokens`, this op does not count the
// valid tokens, because the stage that has the head counts them.
struct LoadBatch {
  bool counts_tokens = true;
  bool operator==(const LoadBatch&) const = default;
};
struct ZeroFill {
  bool padding = false;  // for a gradient: clears only the elements between its parameters, which no op writes
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
// Updates a unit's parameters. `kind` names the optimizer, which says what states it has (values/optimizer.h). When
// tensor ranks share parameters that the optimizer updates as a whole, the update has two ops. kDirection makes what
// the other ranks need (Muon: the direction; Adafactor: the gradient and a sum of squares). kApply updates the
// parameters after an all-gather over these ranks.
enum class UpdateStage { kWhole, kDirection, kApply };
inline constexpr std::array kAllUpdateStages{UpdateStage::kWhole, UpdateStage::kDirection, UpdateStage::kApply};
struct OptimizerStep {
  std::string kind = "adamw";
  UpdateStage stage = UpdateStage::kWhole;
  bool operator==(const OptimizerStep&) const = default;
};
// The values that a collective, message or copy moves. kUnit is the parameters, the gradients or the directions
// of a unit. Every other member is a value of one layer or of a chunk of the head (values/value.h). Tensor ranks
// exchange the input of a layer, its middle, their gradients, and the sums of a chunk of the head. Context ranks
// exchange the keys and values of a layer, their gradients, the sums that the router of a layer makes for each
// sequence, and the numbers of its choices. Expert ranks exchange the offset at which the rows of each expert begin in
// expert order, the rows on their way to the experts and back, and the gradients of these rows. Copies move the values
// that a layer keeps for backward: its input, its middle, and the results of its parts (kQkv to kActivation).
enum class Payload {
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
  kCounts,
  kOffsets,
  kExpertRows,
  kExpertOut,
  kDExpertOut,
  kDExpertRows
};
inline constexpr std::array kAllPayloads{
    Payload::kUnit,       Payload::kResidual,   Payload::kMid,        Payload::kDResidual,  Payload::kDMid,
    Payload::kHead,       Payload::kKeys,       Payload::kDKeys,      Payload::kQkv,        Payload::kAttention,
    Payload::kUp,         Payload::kActivation, Payload::kLoad,       Payload::kCounts,     Payload::kOffsets,
    Payload::kExpertRows, Payload::kExpertOut,  Payload::kDExpertOut, Payload::kDExpertRows};
// Values that only models with sparse layers have.
inline constexpr std::array kPayloadsOfExperts{Payload::kLoad,       Payload::kCounts,    Payload::kOffsets,
                                               Payload::kExpertRows, Payload::kExpertOut, Payload::kDExpertOut,
                                               Payload::kDExpertRows};
// Values that a layer keeps for backward and that may be offloaded to the host until then
// (Setting::offload.activations).
inline constexpr std::array kKeptForBackward{Payload::kResidual,  Payload::kMid, Payload::kQkv,
                                             Payload::kAttention, Payload::kUp,  Payload::kActivation};

struct AllReduce {
  Axis axis{};
  Payload payload = Payload::kUnit;
  std::int64_t layer = -1;  // layer of the moved value; for kHead, the chunk
  bool operator==(const AllReduce&) const = default;
};
// Leaves this rank's part of the sum of `from` in `to`. The contents of `from` are arbitrary afterwards.
struct ReduceScatter {
  Axis axis{};
  Payload payload = Payload::kUnit;
  std::int64_t layer = -1;
  std::int64_t portion = -1;  // rows between tensor ranks: the piece of Setting::tensor_chunks, or -1 for all rows
  bool operator==(const ReduceScatter&) const = default;
};
struct AllGather {
  Axis axis{};
  Payload payload = Payload::kUnit;
  std::int64_t layer = -1;
  std::int64_t portion = -1;  // as in ReduceScatter
  bool operator==(const AllGather&) const = default;
};
// Sends rows between expert ranks. kExpertRows and kDExpertOut go to the experts: the rows leave this rank in expert
// order, and the ranks that hold the experts receive the rows of each expert together, rank after rank. kExpertOut and
// kDExpertRows go the same way back. The number of rows is data: the offsets of all ranks determine it.
struct AllToAll {
  Axis axis{};
  Payload payload = Payload::kExpertRows;
  std::int64_t layer = -1;
  std::int64_t portion = -1;  // the tile of Setting::expert_tiles whose rows are sent, or -1 for all rows
  bool home() const { return payload == Payload::kExpertOut || payload == Payload::kDExpertRows; }
  bool operator==(const AllToAll&) const = default;
};
// Send and Receive pass one value to and from the pipeline stage `peer`, at the same place along all other axes. The
// value is a layer's input (kResidual) for one micro-batch, or its gradient (kDResidual).
struct Send {
  Payload payload = Payload::kResidual;
  std::int64_t layer = -1;
  int peer = -1;
  bool operator==(const Send&) const = default;
};
struct Receive {
  Payload payload = Payload::kResidual;
  std::int64_t layer = -1;
  int peer = -1;
  bool operator==(const Receive&) const = default;
};
// Sends to the next rank along the axis and receives from the previous one. kKeys moves the keys and values of a layer
// around a ring; kDKeys moves the gradients that travel with them. `step`, from 1 to the number of ranks of the axis,
// counts the hops so far. After the last step each gradient is on the rank of its keys.
struct RingExchange {
  Axis axis{};
  Payload payload = Payload::kKeys;
  std::int64_t layer = -1;
  std::int64_t step = 1;
  bool operator==(const RingExchange&) const = default;
};
// Copies between device and host memory (Setting::offload). A copy to the host moves the part of a unit's gradient
// (kUnit) that this rank updates, or a value that a layer keeps for backward. A copy to the device moves a unit's
// parameters, or a kept value.
struct CopyToHost {
  Payload payload = Payload::kUnit;
  std::int64_t layer = -1;
  bool operator==(const CopyToHost&) const = default;
};
struct CopyToDevice {
  Payload payload = Payload::kUnit;
  std::int64_t layer = -1;
  bool operator==(const CopyToDevice&) const = default;
};
// Converts a gradient for a reduction over data-parallel ranks whose messages have a narrower type than the kept
// gradients (Setting::reduce). The op casts the gradient of a unit, or this rank's part of it, into the message that is
// reduced over the axis `over`. With `back`, it casts this rank's part of the sums into the gradient.
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
struct SetFlag {
  Flag flag{};
  bool operator==(const SetFlag&) const = default;
};

// Sets the highest clock of this rank's device, from here until the next op of this kind, also beyond the end of the
// step. It touches no buffer and changes no value. Whoever runs the program says how the clock is set, and the device
// may have a lower clock than the one that is asked for.
inline constexpr std::int64_t kMostKhz = 100'000'000;
struct SetClock {
  std::int64_t khz = 0;
  bool operator==(const SetClock&) const = default;
};

using Op = std::variant<Compute, LoadBatch, ZeroFill, SumSquares, ClipScale, OptimizerStep, AllReduce, ReduceScatter,
                        AllGather, AllToAll, Send, Receive, RingExchange, CopyToHost, CopyToDevice, Cast, ReduceScalars,
                        SetFlag, SetClock>;

// Places in the `scalars` buffer (fp64). The first three are sums over ranks after ReduceScalars has run. The last
// three are also such sums, over valid tokens and sparse layers; only models with sparse layers have them. kDropped
// counts the choices that a capacity drops, and only models with a capacity have it.
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

// Another op that must end before this one starts. With body -1 it is an op of the same instance. Otherwise it is the
// op of the latest earlier instance of `body`, if there is one.
struct OpRef {
  int body = -1;
  int op = -1;
  bool operator==(const OpRef&) const = default;
  auto operator<=>(const OpRef&) const = default;
};

// The rows of a micro-batch on a rank, one for each token: `sequences` x `length`. Tensor ranks exchange the rows in
// `pieces`. With `sharded`, each tensor rank keeps a part of the residual stream's rows. Expert ranks exchange the rows
// of their experts in `expert_tiles`: each tile has the rows of some experts of every rank.
struct Rows {
  std::int64_t sequences = 0, length = 0;
  std::int64_t pieces = 1;
  bool sharded = false;
  std::int64_t expert_tiles = 1;
  std::int64_t count() const { return sequences * length; }
  bool in_pieces() const { return sharded && pieces > 1; }
  bool operator==(const Rows&) const = default;
};

// The sizes and choices that a kernel needs besides the operands of its op. values/attributes.h says which of them an
// op has; the others keep the values here, which mean "none".
struct Attributes {
  Rows rows;                            // of the micro-batch; for LoadBatch, of whole sequences
  std::int64_t tile = 0;                // for the head: rows of a chunk; the last chunk may have fewer
  std::int64_t positions = 0;           // number of positions of the global batch, over which the loss is the mean
  bool scaled = false;                  // the loss is scaled, so a gradient that is not finite may be an overflow
  std::optional<DType> compute;         // element type of a part
  std::optional<arch::Kernels> kernel;  // implementation of a part
  int threads = 0;                      // of a kernel on the host's cores
  bool operator==(const Attributes&) const = default;
};

// Work on memory that an op does in addition to what its kind names, such as adding the sum of a collective to an
// earlier sum. It moves bytes and computes no product. Predictions and measurements have a separate row for each kind
// of epilogue ("epilogue add"). values/epilogues.h says which ops have which epilogues.
enum class Epilogue {
  kAdd,       // adds a sum to an earlier one
  kCopy,      // copies a value whose old buffer is still to be read
  kPack,      // copies data to be sent so that it lies side by side
  kUnpack,    // copies received data to its places
  kAssemble,  // copies weights of the key and value heads that the rank needs into a matrix, or gradients out of one
};
inline constexpr std::array kAllEpilogues{Epilogue::kAdd, Epilogue::kCopy, Epilogue::kPack, Epilogue::kUnpack,
                                          Epilogue::kAssemble};
inline constexpr std::size_t kNumEpilogues = kAllEpilogues.size();
struct EpilogueCost {
  Epilogue kind{};
  Bytes moved;  // memory traffic: bytes read and bytes written
  bool operator==(const EpilogueCost&) const = default;
};

// The line of the text that an op was read from, for messages; 0 for an op that was built. Lines do not tell programs
// apart.
struct TextLine {
  std::size_t number = 0;
  constexpr bool operator==(const TextLine&) const { return true; }
};

struct Step {
  Op op;
  Phase phase{};
  Stream stream{};
  std::vector<OpRef> after;
  std::vector<Use> operands;   // at most one for each argument
  std::optional<Flag> unless;  // the op is skipped when the flag is set
  Attributes attributes;
  Bytes scratch;  // workspace of the kernel
  Flops model_flops, hardware_flops;
  Bytes moved;  // memory traffic of a compute op, or payload of a collective; without the epilogues
  std::vector<EpilogueCost> epilogues;  // in the order of Epilogue, at most one of each kind
  TextLine line = {};
  bool operator==(const Step&) const = default;
  // Throw Error when the op has no such operand.
  const Use& operand(Arg arg) const;
  Use& operand(Arg arg);
  const Use* find(Arg arg) const;  // null when there is none
  // Whether the op has the operand and updates it. An op that updates a gradient or a sum adds to it instead of
  // overwriting it.
  bool updates(Arg arg) const;
};

std::string_view name_of(Phase phase);
std::string_view name_of(Stream stream);
std::string_view name_of(Axis axis);
std::string_view name_of(Access access);    // "reads", "consumes", "updates", "writes"
std::string_view name_of(Range range);      // "all", "shard", "own", "replicated"
std::string_view name_of(Payload payload);  // "unit"; "head" for kHeadSums; else the value's name: "x", "mid", ...
std::string_view name_of(Pass pass);
std::string_view name_of(Flag flag);
std::string_view name_of(Epilogue epilogue);  // "add", "copy", "pack", "unpack", "assemble"
std::string_view name_of(UpdateStage stage);  // "whole", "direction", "apply"
// Returns "forward attention", "all_reduce", ...: the key of cost tables and comparisons.
std::string kind_of(const Op& op);
std::string kind_of(Epilogue epilogue);                           // "epilogue add", ...
std::string text_of(const std::vector<EpilogueCost>& epilogues);  // "add:4096,pack:512" or, if there are none, "none"
bool is_communication(const Op& op);
bool is_copy(const Op& op);  // between device and host
// Returns the group of ranks that an op communicates with, or nothing for an op that does not communicate.
std::optional<Axis> axis_of(const Op& op);

}  // namespace molen::program
