// Ops: all that a rank does in one optimizer step, as plain data in a closed variant. A consumer visits with one lambda
// per op (base/match.h), so an op that one forgets does not compile.
//
// An op finds each of its operands by the argument that it is, never by its position. Retargeting an operand in the
// text form therefore changes what runs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "arch/parts.h"
#include "base/units.h"
#include "program/arg.h"

namespace molen::program {

// Named groups of ranks along the mesh's axes. kDp joins kReplicate and kShard, all ranks that hold the same
// parameters; context ranks are among them, and kShard has dp_shard and cp. kEnds are the first and the last stage of a
// pipeline, which share a tied embedding.
enum class Axis { kDp, kShard, kReplicate, kTp, kWorld, kPp, kEnds, kCp };
inline constexpr std::array kAllAxes{Axis::kDp,    Axis::kShard, Axis::kReplicate, Axis::kTp,
                                     Axis::kWorld, Axis::kPp,    Axis::kEnds,      Axis::kCp};

// Where an op runs. Ops of one stream run in list order; streams run side by side. Copies leave the device on one
// stream and come back on another, for either direction has its own wires; kHost is work of the host's cores on its
// memory.
enum class Stream { kCompute, kDpComm, kToHost, kToDevice, kHost };
inline constexpr std::array kAllStreams{Stream::kCompute, Stream::kDpComm, Stream::kToHost, Stream::kToDevice,
                                        Stream::kHost};
inline constexpr int kNumStreams = kAllStreams.size();

// What an op's seconds and joules are booked under. The bubble is not a phase of any op: it is what a Timeline shows as
// idle for other stages of a pipeline.
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

// What of a buffer an op uses: all that it holds; the part of the unit that this rank keeps of sharded gradients and
// parameters; the part whose optimizer state it owns; what all tensor ranks hold alike (program/layout.h: unit_range).
enum class Range { kAll, kShard, kOwn, kReplicated };

struct Use {
  Arg arg{};
  int buffer = -1;
  Range range = Range::kAll;
  bool operator==(const Use&) const = default;
};

// kInput and kWeights are the halves of a backward: what the part before waits for (and norms' own gradients), and the
// gradients of matrices.
enum class ComputePass { kForward, kBackward, kRecompute, kInput, kWeights };
inline constexpr std::array kAllComputePasses{ComputePass::kForward, ComputePass::kBackward, ComputePass::kRecompute,
                                              ComputePass::kInput, ComputePass::kWeights};
// Whether gradients come of it.
constexpr bool is_backward(ComputePass pass) {
  return pass == ComputePass::kBackward || pass == ComputePass::kInput || pass == ComputePass::kWeights;
}

// One part of the model (arch/parts.h) for one micro-batch.
struct Compute {
  arch::Part part{};
  ComputePass pass{};
  std::int64_t layer = -1;  // -1 outside the layers
  // Of the head: which chunk of Setting::head_chunk tokens; of attention in a ring: which step; of a product beside
  // what tensor ranks exchange: which piece of Setting::tensor_chunks.
  std::int64_t chunk = -1;
  bool accumulate = false;  // adds into the gradients instead of overwriting them
  bool operator==(const Compute&) const = default;
};
// The next micro-batch of this rank from the data loader. `uncounted`: its valid tokens are counted by the stage that
// has the head.
struct LoadBatch {
  bool uncounted = false;
  bool operator==(const LoadBatch&) const = default;
};
struct ZeroFill {
  bool padding = false;  // of a gradient: only the elements between its parameters, which no op writes
  bool operator==(const ZeroFill&) const = default;
};
// scalars[kSumSquares] += sum of squares of `grad`.
struct SumSquares {
  bool operator==(const SumSquares&) const = default;
};
// scalars[kGradNorm], scalars[kGradScale] from the reduced sums: clipping by global norm, the mean over valid tokens,
// and one over the loss scale of the step.
struct ClipScale {
  bool operator==(const ClipScale&) const = default;
};
struct OptimizerStep {
  bool operator==(const OptimizerStep&) const = default;
};
// What a collective moves: parameters or gradients of a unit, or a value of one layer (signature.h) on its way between
// tensor ranks: input of a layer, its middle, their gradients, the sums of a chunk of the head; or between context
// ranks: the keys and values of a layer, and their gradients. Copies move what a layer keeps for backward: its input,
// its middle, and from kQkv on what its parts leave.
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
  kActivation
};
inline constexpr std::array kAllMoves{Moves::kUnit, Moves::kResidual,  Moves::kMid,  Moves::kDResidual,
                                      Moves::kDMid, Moves::kHead,      Moves::kKeys, Moves::kDKeys,
                                      Moves::kQkv,  Moves::kAttention, Moves::kUp,   Moves::kActivation};
// What a layer keeps for backward that may stand on the host meanwhile (Setting::offload.activations).
inline constexpr std::array kKeptForBackward{Moves::kResidual,  Moves::kMid, Moves::kQkv,
                                             Moves::kAttention, Moves::kUp,  Moves::kActivation};

struct AllReduce {
  Axis axis{};
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;  // of what it moves; the chunk of kHead
  bool operator==(const AllReduce&) const = default;
};
// Leaves in `to` this rank's part of the sum of `from`, which is used up: it may hold anything afterwards.
struct ReduceScatter {
  Axis axis{};
  bool accumulate = false;  // adds to what an earlier micro-batch, or the layer above, left there
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;
  std::int64_t chunk = -1;  // of rows between tensor ranks: which piece of Setting::tensor_chunks; -1: all
  bool operator==(const ReduceScatter&) const = default;
};
struct AllGather {
  Axis axis{};
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;
  std::int64_t chunk = -1;  // as of ReduceScatter
  bool operator==(const AllGather&) const = default;
};
// To and from the stage `peer` of the pipeline, in the same place along all other axes: a layer's input (kResidual) of
// one micro-batch, or its gradient (kDResidual).
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
// To the next rank along the axis, and the same from the one before: keys and values of a layer (kKeys) on their way
// around a ring, or the gradients that travel with them. `step`: how far they have come then, 1 to the ranks of the
// axis; after as many steps gradients are home.
struct Shift {
  Axis axis{};
  Moves moves = Moves::kKeys;
  std::int64_t layer = -1;
  std::int64_t step = 1;
  bool operator==(const Shift&) const = default;
};
// Between the device's memory and the host's (Setting::offload). What leaves: a unit's gradient (kUnit), as far as this
// rank updates it; or what a part of a layer keeps for backward. What comes: a unit's parameters, or what was kept.
struct CopyToHost {
  bool accumulate = false;  // adds to what earlier micro-batches left on the host
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;
  bool operator==(const CopyToHost&) const = default;
};
struct CopyToDevice {
  Moves moves = Moves::kUnit;
  std::int64_t layer = -1;
  bool operator==(const CopyToDevice&) const = default;
};
// Around a reduction over data-parallel ranks whose messages are narrower than gradients are kept (Setting::reduce):
// the gradient of a unit, or what this rank keeps of it, into the message that the reduction over the axis `over` sums;
// and `back`: this rank's part of the sums into the gradient.
struct Cast {
  Axis over{};
  bool back = false;
  bool accumulate = false;  // back: adds to what an earlier micro-batch left there
  bool operator==(const Cast&) const = default;
};
// Sums scalars[first .. first + count) over the axis.
struct ReduceScalars {
  Axis axis{};
  std::int64_t first = 0, count = 0;
  bool operator==(const ReduceScalars&) const = default;
};
// Sets the flag on all ranks alike: from reduced scalars, so no rank can disagree.
enum class Flag { kNonFinite };
struct Agree {
  Flag flag{};
  bool operator==(const Agree&) const = default;
};

using Op = std::variant<Compute, LoadBatch, ZeroFill, SumSquares, ClipScale, OptimizerStep, AllReduce, ReduceScatter,
                        AllGather, Send, Receive, Shift, CopyToHost, CopyToDevice, Cast, ReduceScalars, Agree>;

// Places in the `scalars` buffer (fp64). The first three are sums over ranks once ReduceScalars has run.
enum Scalar : std::int64_t { kLossSum, kValidTokens, kSumSquares, kGradNorm, kGradScale, kNumScalars };

// Another op that must have ended before this one starts: in the same instance (body -1), or in the latest earlier
// instance of a body, if there is one.
struct OpRef {
  int body = -1;
  int op = -1;
  bool operator==(const OpRef&) const = default;
  auto operator<=>(const OpRef&) const = default;
};

struct Step {
  Op op;
  Phase phase{};
  Stream stream{};
  std::vector<OpRef> after;
  std::vector<Use> reads, writes;
  std::optional<Flag> unless;  // skipped where the flag is set
  Bytes scratch;               // workspace of the kernel
  Flops model_flops, hardware_flops;
  Bytes moved;  // memory traffic of a compute op; payload of a collective
  bool operator==(const Step&) const = default;
  // Throw Error where there is none.
  const Use& read(Arg arg) const;
  const Use& write(Arg arg) const;
  Use& read(Arg arg);
  Use& write(Arg arg);
  const Use* find_read(Arg arg) const;
  const Use* find_write(Arg arg) const;
};

std::string_view name_of(Phase phase);
std::string_view name_of(Stream stream);
std::string_view name_of(Axis axis);
std::string_view name_of(Range range);  // "all", "shard", "own", "replicated"
std::string_view name_of(Moves moves);  // "unit", "x", "mid", ...: as the values are named (signature.h)
std::string_view name_of(ComputePass pass);
std::string_view name_of(Flag flag);
// "forward attention", "all_reduce", ... : the key of cost tables and comparisons.
std::string kind_of(const Op& op);
bool is_communication(const Op& op);
bool is_copy(const Op& op);  // between device and host
// Over which ranks an op talks; of an op that does not, nothing.
std::optional<Axis> axis_of(const Op& op);

}  // namespace molen::program
