// The step program: buffers, bodies, and a schedule of their instances. Built by pure functions from (architecture,
// strategy), executed by exec, predicted by sim, checked by verify.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arch/architecture.h"
#include "arch/parts.h"
#include "mesh/mesh.h"
#include "program/layout.h"
#include "program/op.h"
#include "program/pipeline.h"
#include "program/value.h"

namespace molen::program {

// Persistent buffers live from start to end of the run; transient ones are undefined when an instance starts and dead
// when it ends; external ones belong to another program (an evaluation reads the weights of the training beside it). Of
// a buffer of the last kind there is one for each micro-batch from its first writer to its last reader, over several
// instances (program/slots.h says which of them share memory).
enum class Lifetime { kPersistent, kTransient, kExternal, kMicroBatch };
inline constexpr std::array kAllLifetimes{Lifetime::kPersistent, Lifetime::kTransient, Lifetime::kExternal,
                                          Lifetime::kMicroBatch};
std::string_view name_of(Lifetime lifetime);

// Whose memory a buffer is in.
enum class Place { kDevice, kHost };
std::string_view name_of(Place place);  // "device", "host"

struct Buffer {
  std::string name;  // unique; the text form refers to buffers by it, and nothing else reads it
  DType dtype{};
  std::int64_t elements = 0;  // the largest over the ranks that share the program
  Lifetime lifetime{};
  Place place = Place::kDevice;
  // The value that it was made for. It may hold others in turn: the one residual gradient goes through all layers.
  Value role{};
  int unit = -1;            // of a unit's values: its index
  std::int64_t layer = -1;  // -1: of no layer, or of one after another
  std::string slot;         // which of several that layers share: "fwd", "re"; of a ring, "0" and "1"
  std::int64_t chunk = -1;  // the piece of rows that it is for (Setting::tensor_chunks)
  int copy = 0;             // of several that hold the same at different times
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

// How context ranks see each other's keys and values: all brought together before the attention of a layer (as Llama 3,
// arXiv 2407.21783, section 3.3.2), or one rank's after another's as they pass (Liu et al. 2023, arXiv 2310.01889).
enum class ContextForm { kGather, kRing };
std::string_view name_of(ContextForm form);  // "gather", "ring"

enum class Purpose { kTrain, kEvaluate };

// Of rows between tensor ranks: beyond, a piece is no more worth its messages.
inline constexpr std::int64_t kMaxTensorChunks = 64;

// Whose results of a layer's forward are dropped and computed again before the first op of backward that reads them
// (program/recompute.h has its text form). What a layer hands to the next is always kept, so `down` never runs again.
struct Recompute {
  std::uint32_t parts = 0;  // a bit for each arch::Part
  std::int64_t every = 1;   // in the layers that it divides; 1 where there are no parts
  static Recompute full(std::int64_t every = 1);
  static constexpr std::uint32_t bit(arch::Part part) { return std::uint32_t{1} << static_cast<unsigned>(part); }
  void add(arch::Part part) { parts |= bit(part); }
  bool any() const { return parts != 0; }
  bool has(arch::Part part) const { return (parts & bit(part)) != 0; }
  bool in(arch::Part part, std::int64_t layer) const { return has(part) && layer % every == 0; }
  bool operator==(const Recompute&) const = default;
};

// What stands in the host's memory instead of the device's (Ren et al. 2021, "ZeRO-Offload", arXiv 2101.06840).
struct Offload {
  bool optimizer = false;   // moments and master weights; the host's cores update
  bool gradients = false;   // of each micro-batch, once reduced: they add up on the host
  bool parameters = false;  // what the rank keeps of them; each unit comes for its use
  // What layers keep for backward, but those of the last layer of the model, whose backward is next.
  bool activations = false;
  bool any() const { return optimizer || gradients || parameters || activations; }
  bool operator==(const Offload&) const = default;
};
// By their names in configurations and texts.
inline constexpr std::array<std::pair<std::string_view, bool Offload::*>, 4> kOffloads{
    {{"optimizer", &Offload::optimizer},
     {"gradients", &Offload::gradients},
     {"parameters", &Offload::parameters},
     {"activations", &Offload::activations}}};
std::string text_of(const Offload& offload);  // "optimizer,gradients", or "none"

// What the program was built for; everything a consumer needs besides the ops.
struct Setting {
  Purpose purpose = Purpose::kTrain;
  mesh::PerAxis mesh = mesh::kOne;                                  // ranks along each axis
  std::array<mesh::Axis, mesh::kAxes> order = mesh::kDefaultOrder;  // of the rank grid, outermost first
  // What is sharded: 0 nothing, 1 optimizer states (over dp), 2 gradients too, 3 parameters too (over dp_shard, with
  // copies along dp_replicate). Rajbhandari et al. 2020, "ZeRO", section 5.
  int zero = 0;
  bool own_over_dp = false;  // stages 2 and 3: optimizer states over all of dp, not dp_shard alone
  // With tensor ranks: the residual stream is cut by rows over them (Korthikanti et al. 2022, section 4.2).
  bool sequence_parallel = false;
  // Rows of a micro-batch travel between tensor ranks, and are multiplied, in so many pieces (Wang et al. 2023,
  // "Overlap Communication with Dependent Computation via Decomposition", section 4). Sequence-parallel only.
  std::int64_t tensor_chunks = 1;
  ContextForm context_form = ContextForm::kGather;
  std::int64_t unit_layers = 1;  // whose parameters are gathered, reduced and updated together; or kHalfLayer
  int prefetch = 1;              // units gathered or brought from the host ahead of the one in use
  Offload offload;
  Pipeline pipeline;              // along pp
  Recompute recompute;            // activations that backward computes again
  std::int64_t global_batch = 1;  // sequences
  std::int64_t micro_batch = 1;   // sequences
  std::int64_t sequence = 1;      // tokens
  bool document_mask = false;     // attention stays within the documents of a sequence
  DType compute = DType::kF32;
  DType master = DType::kF32;  // weights that the optimizer updates; differs from compute in bf16 and fp16
  DType reduce = DType::kF32;  // gradients on their way between data-parallel ranks
  arch::Kernels kernels = arch::Kernels::kFused;
  int threads = 1;                // per rank
  std::int64_t head_chunk = 256;  // tokens of one chunk of the head (arch::head_chunk)
  bool operator==(const Setting&) const = default;
  // Of ranks that hold the same parameters: the groups in which a unit may be cut, of one copy each; and all of them.
  int shards() const { return mesh[mesh::Axis::kDpShard] * context_ranks(); }
  int replicas() const { return mesh[mesh::Axis::kDpReplicate]; }
  int holders() const { return shards() * replicas(); }
  int data_ranks() const { return mesh[mesh::Axis::kDpShard] * replicas(); }  // that see different samples
  int context_ranks() const { return mesh[mesh::Axis::kCp]; }                 // that share each sequence
  bool context() const { return context_ranks() > 1; }
  bool ring() const { return context() && context_form == ContextForm::kRing; }
  int stages() const { return mesh[mesh::Axis::kPp]; }
  bool pipelined() const { return stages() > 1; }
  int tensor_ranks() const { return mesh[mesh::Axis::kTp]; }
  bool tensor() const { return tensor_ranks() > 1; }
  bool sharded_rows() const { return tensor() && sequence_parallel; }  // of the residual stream
  bool chunked_rows() const { return sharded_rows() && tensor_chunks > 1; }
  // Whether gradients are made of a scaled loss, so that what is small stays within the range of fp16
  // (optim/loss_scale.h).
  bool scales_loss() const { return compute == DType::kF16 || reduce == DType::kF16; }
  // Whether gradients travel over an axis in a narrower type than they are kept in, between two casts.
  bool narrow_over(Axis axis) const {
    return size_of(reduce) < 4 && (axis == Axis::kDp || axis == Axis::kShard || axis == Axis::kReplicate);
  }
  int ranks() const {
    int product = 1;
    for (const int size : mesh.values) product *= size;
    return product;
  }
  bool owns_part() const { return zero >= 1 && holders() > 1; }  // of the optimizer states
  bool sharded_gradients() const { return zero >= 2 && shards() > 1; }
  bool sharded_parameters() const { return zero >= 3 && shards() > 1; }
  // A micro-batch's gradient leaves the whole buffer once it is complete, for where the sum of all is made.
  bool gradients_leave() const { return sharded_gradients() || offload.gradients; }
  // Whole parameters are on the device for the time of their use alone.
  bool parameters_come() const { return sharded_parameters() || offload.parameters; }
  // Weights that the optimizer updates, apart from those that are computed with: of another type, or on the host.
  bool has_master() const { return master != compute || (offload.optimizer && !offload.parameters); }
  // Micro-batches per rank: the most any rank has; ranks with fewer run empty ones.
  std::int64_t micro_batches() const {
    const std::int64_t per_round = micro_batch * data_ranks();
    return (global_batch + per_round - 1) / per_round;
  }
  std::int64_t local_sequence() const { return sequence / context_ranks(); }  // of each sequence, on a rank
  std::int64_t tokens() const { return micro_batch * local_sequence(); }      // of a micro-batch, on a rank
  std::int64_t head_chunks() const { return (tokens() + head_chunk - 1) / head_chunk; }
  std::int64_t head_chunk_tokens(std::int64_t chunk) const {
    return std::min(head_chunk, tokens() - chunk * head_chunk);
  }
};

// The setting of one rank of its mesh: what differs from stage to stage.
Setting at_rank(Setting setting, int rank);

// "ZeRO-1", "ZeRO-3 over dp_replicate 2 x dp_shard 4, optimizer states over all".
std::string sharding_text(const Setting& setting);

struct Program {
  arch::Architecture arch;
  Setting setting;
  // What follows from the two (`describe`): sizes and parameters of one tensor rank, the largest; of its stage the
  // chunks, and the units that they need.
  arch::Architecture local;
  std::vector<arch::Parameter> parameters;
  std::vector<Chunk> chunks;
  std::vector<Unit> units;
  std::vector<Buffer> buffers;
  std::vector<Body> bodies;
  std::vector<Instance> schedule;
  bool operator==(const Program&) const = default;

  int buffer(const std::string& name) const;       // throws Error if there is none
  int find_buffer(const std::string& name) const;  // -1 if there is none
  // The first buffer of a unit's value; -1 if there is none.
  int find_buffer(Value role, int unit) const;
  int unit_of_buffer(int buffer) const { return buffers.at(static_cast<std::size_t>(buffer)).unit; }
  int find_unit(std::string_view name) const;  // -1 if there is none
  int num_ops() const;                         // expanded

  bool embeds() const;    // on this stage; one of its chunks begins the model
  bool has_head() const;  // one of them ends it
  // Whether a unit is the embedding table that the first and the last stage of a pipeline both hold and update.
  bool shared_by_ends(int unit) const;
  // Whether this stage counts the unit in the gradient norm and saves it: of shared ones, the first.
  bool counts(int unit) const { return !shared_by_ends(unit) || embeds(); }
};

// A program without buffers and bodies. Throws UsageError where the model cannot be cut so.
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
// How much `expand` makes of the program, without making it: ops, and edges between them.
std::int64_t expanded_size(const Program& program);
inline constexpr std::int64_t kMaxExpanded = std::int64_t{1} << 27;  // that a text may stand for
// Every op in list order. Ops keep pointing into the program, which must outlive the result.
std::vector<Expanded> expand(const Program& program);

}  // namespace molen::program
