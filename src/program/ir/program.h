// The step program: buffers, bodies, and a schedule of their instances. Pure functions build it from an architecture
// and a setting. exec runs it, sim predicts its time, and verify checks it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arch/architecture.h"
#include "arch/parts.h"
#include "mesh/mesh.h"
#include "program/ir/layout.h"
#include "program/ir/op.h"
#include "program/ir/pipeline.h"
#include "program/values/value.h"

namespace molen::program {

// Persistent buffers live from start to end of the run. Transient buffers are undefined when an instance starts and
// dead when it ends. External buffers belong to another program: an evaluation reads the weights of the training
// program that runs beside it. Constant buffers are filled before the first step and live to the end of the run; no op
// writes them. A kMicroBatch buffer exists once for each micro-batch, from its first writer to its last reader, over
// several instances (program/ir/slots.h says which micro-batches share memory).
enum class Lifetime { kPersistent, kTransient, kExternal, kMicroBatch, kConstant };
inline constexpr std::array kAllLifetimes{Lifetime::kPersistent, Lifetime::kTransient, Lifetime::kExternal,
                                          Lifetime::kMicroBatch, Lifetime::kConstant};
// Whether a buffer has a place of its own in the rank's memory for the whole run.
constexpr bool stays(Lifetime lifetime) {
  return lifetime == Lifetime::kPersistent || lifetime == Lifetime::kConstant;
}
std::string_view name_of(Lifetime lifetime);

// The memory that holds a buffer.
enum class Place { kDevice, kHost };
std::string_view name_of(Place place);  // "device", "host"

struct Buffer {
  std::string name;  // unique; only the text form uses it, to refer to buffers
  DType dtype{};
  std::int64_t elements = 0;  // the largest number over the ranks that share the program
  Lifetime lifetime{};
  Place place = Place::kDevice;
  // The value that the buffer was made for. The buffer may hold other values in turn: a single residual gradient serves
  // all layers.
  Value role{};
  int unit = -1;               // index of its unit, for values of units
  std::int64_t layer = -1;     // -1: of no layer, or of several layers in turn
  std::string slot;            // distinguishes buffers that layers share: "fwd", "re"; in a ring, "0" and "1"
  std::int64_t portion = -1;   // the piece of rows that it is for (Setting::tensor_chunks)
  int copy = 0;                // number among the copies that hold the same value at different times
  Range extent = Range::kAll;  // the part of its unit that it holds
  Bytes bytes() const { return Bytes(elements * size_of(dtype)); }
  bool operator==(const Buffer&) const = default;
};

struct Body {
  std::string name;
  std::vector<Step> steps;
  bool operator==(const Body&) const = default;
};

struct Instance {
  int body = 0;
  std::int64_t micro_batch = -1;  // -1: not of one micro-batch
  bool operator==(const Instance&) const = default;
};

// How attention gets the keys and values of other context ranks. kGather: all of them are gathered before the attention
// of a layer, as in Llama 3 (arXiv 2407.21783, section 3.3.2). kRing: they pass around a ring, and attention uses those
// of one rank after another (Liu et al. 2023, arXiv 2310.01889).
enum class ContextForm { kGather, kRing };
std::string_view name_of(ContextForm form);  // "gather", "ring"

enum class Purpose { kTrain, kEvaluate };

// Limit of Setting::tensor_chunks. With more pieces, the cost of the additional messages exceeds the gain.
inline constexpr std::int64_t kMaxTensorChunks = 64;
// Limit of Setting::expert_tiles, for the same reason.
inline constexpr std::int64_t kMaxExpertTiles = 64;

// The parts of a layer whose forward results are dropped and computed again before the first backward op that reads
// them (program/build/recompute.h has the text form). The value that a layer hands to the next layer is always kept, so
// `down` never runs again.
struct Recompute {
  std::uint32_t parts = 0;  // one bit for each arch::Part
  std::int64_t every = 1;   // applies to layers whose index is divisible by this number; 1 when there are no parts
  static Recompute full(std::int64_t every = 1);
  static constexpr std::uint32_t bit(arch::Part part) { return std::uint32_t{1} << static_cast<unsigned>(part); }
  void add(arch::Part part) { parts |= bit(part); }
  bool any() const { return parts != 0; }
  bool has(arch::Part part) const { return (parts & bit(part)) != 0; }
  bool in(arch::Part part, std::int64_t layer) const { return has(part) && layer % every == 0; }
  bool operator==(const Recompute&) const = default;
};

// Values that are kept in host memory instead of device memory (Ren et al. 2021, "ZeRO-Offload", arXiv 2101.06840).
struct Offload {
  bool optimizer = false;   // moments and master weights; the host's cores run the update
  bool gradients = false;   // the reduced gradients of each micro-batch, which the host sums
  bool parameters = false;  // the rank's own parameters; each unit is copied to the device for its use
  // Values that layers keep for backward, except those of the model's last layer, whose backward follows at once.
  bool activations = false;
  bool any() const { return optimizer || gradients || parameters || activations; }
  bool operator==(const Offload&) const = default;
};
// Offload fields by their names in configurations and program texts.
inline constexpr std::array<std::pair<std::string_view, bool Offload::*>, 4> kOffloads{
    {{"optimizer", &Offload::optimizer},
     {"gradients", &Offload::gradients},
     {"parameters", &Offload::parameters},
     {"activations", &Offload::activations}}};
std::string text_of(const Offload& offload);  // "optimizer,gradients", or "none"

// The choices that the program was built for. The executor does not read them: a kernel finds all that it needs in its
// op, the operands and the grid of ranks.
struct Setting {
  Purpose purpose = Purpose::kTrain;
  mesh::PerAxis mesh = mesh::kOne;                                  // ranks along each axis
  std::array<mesh::Axis, mesh::kAxes> order = mesh::kDefaultOrder;  // of the rank grid, outermost first
  // The ZeRO stage, which says what is sharded. 0: nothing. 1: optimizer states, over dp. 2: also gradients. 3: also
  // parameters. Stages 2 and 3 shard over dp_shard and replicate along dp_replicate. Rajbhandari et al. 2020, "ZeRO",
  // section 5.
  int zero = 0;
  bool own_over_dp = false;  // stages 2 and 3: optimizer states over all of dp, not dp_shard alone
  // With several tensor ranks: whether the rows of the residual stream are sharded over them (Korthikanti et al. 2022,
  // section 4.2).
  bool sequence_parallel = false;
  // The number of pieces in which tensor ranks exchange the rows of a micro-batch and multiply them (Wang et al. 2023,
  // "Overlap Communication with Dependent Computation via Decomposition", section 4). Requires sequence_parallel.
  std::int64_t tensor_chunks = 1;
  // The number of tiles in which expert ranks exchange the rows of their experts. The exchange of one tile runs beside
  // the GEMMs of another.
  std::int64_t expert_tiles = 1;
  ContextForm context_form = ContextForm::kGather;
  std::int64_t unit_layers = 1;  // layers whose parameters are gathered, reduced and updated together; or kHalfLayer
  int prefetch = 1;              // number of units that are gathered or copied from the host ahead of the one in use
  Offload offload;
  Pipeline pipeline;              // along pp
  Recompute recompute;            // activations that backward computes again
  std::int64_t global_batch = 1;  // sequences
  std::int64_t micro_batch = 1;   // sequences
  std::int64_t sequence = 1;      // tokens
  bool document_mask = false;     // attention stays within the documents of a sequence
  DType compute = DType::kF32;
  DType master = DType::kF32;       // weights that the optimizer updates; differs from compute in bf16 and fp16
  DType reduce = DType::kF32;       // type of gradients in messages between data-parallel ranks
  std::string optimizer = "adamw";  // one of optimizers() (values/optimizer.h)
  arch::Kernels kernels = arch::Kernels::kFused;      // of all parts that other_kernels does not name
  std::map<arch::Part, arch::Kernels> other_kernels;  // by part
  int threads = 1;                                    // per rank
  std::int64_t head_chunk = 256;                      // tokens of one chunk of the head (arch::head_chunk)
  bool operator==(const Setting&) const = default;
  // Counts of the ranks that hold the same parameters: the ranks over which a unit is sharded, the replicas of that
  // shard group, and all of them. Expert ranks hold different experts of a layer, so both counts of a unit of experts
  // are smaller by a factor of expert_ranks().
  int shards() const { return mesh[mesh::Axis::kDpShard] * expert_ranks() * context_ranks(); }
  int replicas() const { return mesh[mesh::Axis::kDpReplicate]; }
  int replica_group_size() const { return shards() * replicas(); }
  arch::Kernels kernels_of(arch::Part part) const {
    const auto other = other_kernels.find(part);
    return other == other_kernels.end() ? kernels : other->second;
  }
  int data_ranks() const { return mesh[mesh::Axis::kDpShard] * expert_ranks() * replicas(); }  // see different samples
  int expert_ranks() const { return mesh[mesh::Axis::kEp]; }  // share the experts of a layer
  bool shares_experts() const { return expert_ranks() > 1; }
  int context_ranks() const { return mesh[mesh::Axis::kCp]; }  // share each sequence
  bool context() const { return context_ranks() > 1; }
  bool ring() const { return context() && context_form == ContextForm::kRing; }
  int stages() const { return mesh[mesh::Axis::kPp]; }
  bool pipelined() const { return stages() > 1; }
  int tensor_ranks() const { return mesh[mesh::Axis::kTp]; }
  bool tensor() const { return tensor_ranks() > 1; }
  bool sharded_rows() const { return tensor() && sequence_parallel; }  // of the residual stream
  bool rows_in_pieces() const { return sharded_rows() && tensor_chunks > 1; }
  // Whether gradients are computed from a scaled loss, so that small values stay within the range of fp16
  // (optim/loss_scale.h).
  bool scales_loss() const { return compute == DType::kF16 || reduce == DType::kF16; }
  // Whether messages over an axis have a narrower type than the kept gradients. Each reduction then runs between two
  // casts.
  bool narrow_over(Axis axis) const {
    const Axis of = without_experts(axis);
    return size_of(reduce) < 4 && (of == Axis::kDp || of == Axis::kShard || of == Axis::kReplicate);
  }
  int ranks() const {
    int product = 1;
    for (const int size : mesh.values) product *= size;
    return product;
  }
  bool owns_part() const { return zero >= 1 && replica_group_size() > 1; }  // of the optimizer states
  bool sharded_gradients() const { return zero >= 2 && shards() > 1; }
  bool sharded_parameters() const { return zero >= 3 && shards() > 1; }
  // Whether a micro-batch's complete gradient moves from its whole buffer to the place where all micro-batches are
  // summed.
  bool reduces_each_micro_batch() const { return sharded_gradients() || offload.gradients; }
  // Whether whole parameters are on the device only while ops use them.
  bool materializes_parameters() const { return sharded_parameters() || offload.parameters; }
  // Whether the optimizer updates other weights than those that compute uses, because they have another type or are on
  // the host.
  bool has_master() const { return master != compute || (offload.optimizer && !offload.parameters); }
  // The number of micro-batches of a rank. It is the largest number that any rank needs; ranks that need fewer run
  // empty ones.
  std::int64_t micro_batches() const {
    const std::int64_t per_round = micro_batch * data_ranks();
    return (global_batch + per_round - 1) / per_round;
  }
  std::int64_t local_sequence() const { return sequence / context_ranks(); }  // tokens of each sequence on a rank
  std::int64_t tokens() const { return micro_batch * local_sequence(); }      // tokens of a micro-batch on a rank
  std::int64_t positions() const { return global_batch * sequence; }          // of the global batch
  Rows rows() const { return {micro_batch, local_sequence(), tensor_chunks, sharded_rows(), expert_tiles}; }
  std::int64_t head_chunks() const { return (tokens() + head_chunk - 1) / head_chunk; }
  std::int64_t head_chunk_tokens(std::int64_t chunk) const {
    return std::min(head_chunk, tokens() - chunk * head_chunk);
  }
};

// Returns the setting of one rank of its mesh; ranks differ only in the pipeline stage.
Setting at_rank(Setting setting, int rank);

// Returns a description of the sharding: "ZeRO-1", "ZeRO-3 over dp_replicate 2 x dp_shard 4, optimizer states over
// all".
std::string sharding_text(const Setting& setting);

struct Optimizer;

struct Program {
  arch::Architecture arch;
  Setting setting;
  // `describe` derives these fields from arch and setting: the sizes and parameters of the largest tensor rank, the
  // chunks of this stage, the units that these chunks need, and the ranks.
  arch::Architecture local;
  std::vector<arch::Parameter> parameters;
  std::vector<Chunk> chunks;
  std::vector<Unit> units;
  Grid grid;
  const Optimizer* optimizer = nullptr;  // declaration of the optimizer (values/optimizer.h)
  std::vector<Buffer> buffers;
  std::vector<Body> bodies;
  std::vector<Instance> schedule;
  // False: the operands have no types, and the verifier only infers them. Such a program has no text.
  bool states_types = true;
  bool operator==(const Program&) const = default;

  int buffer(const std::string& name) const;       // throws Error if there is none
  int find_buffer(const std::string& name) const;  // -1 if there is none
  // Returns the first buffer of a unit's value, or -1 if there is none.
  int find_buffer(Value role, int unit) const;
  int unit_of_buffer(int buffer) const { return buffers.at(static_cast<std::size_t>(buffer)).unit; }
  int find_unit(std::string_view name) const;  // -1 if there is none
  int num_ops() const;                         // number of ops of the expanded program

  bool embeds() const;    // whether a chunk of this stage begins the model
  bool has_head() const;  // whether a chunk of this stage ends the model
  // Whether the unit is the embedding table that the first and the last stage of a pipeline both hold and update.
  bool shared_by_ends(int unit) const;
  // Whether this stage counts the unit in the gradient norm and saves it. The first stage does so for a shared unit.
  bool counts(int unit) const { return !shared_by_ends(unit) || embeds(); }
};

// Returns the clocks that the program's ops set, in kHz, each once, from the highest to the lowest.
std::vector<std::int64_t> clocks_set_by(const Program& program);

// Returns a program without buffers and bodies. Throws UsageError when the model cannot be divided as the setting asks.
Program describe(const arch::Architecture& arch, const Setting& setting);

// One op of the expanded program.
struct Expanded {
  int instance = 0;
  int body = 0;
  int op = 0;  // index in the body
  std::int64_t micro_batch = -1;
  const Step* step = nullptr;
  std::vector<int> after;  // indices in the expansion
};
// Return the position of an op, for messages: "body last, op %12 (backward down)" and, with its layer and micro-batch,
// "line 81: body last, op %12 (backward down, layer 3, micro-batch 1)". An op that was read from a text has a line.
std::string place_of(const Program& program, std::size_t body, std::size_t op);
std::string text_of(const Program& program, const Expanded& op);
// Returns the number of ops and edges that `expand` would make.
std::int64_t expanded_size(const Program& program);
inline constexpr std::int64_t kMaxExpanded = std::int64_t{1} << 27;  // limit for a program read from a text
// Returns every op in list order. The result points into the program, which must outlive it.
std::vector<Expanded> expand(const Program& program);
// Returns, for each op that communicates, the previous such op in list order. The result is -1 for the first one and
// for all other ops.
std::vector<int> communication_before(const std::vector<Expanded>& ops);

}  // namespace molen::program
