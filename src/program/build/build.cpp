// The order of the passes, and the first pass, micro_batch.
#include "program/build/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/error.h"
#include "base/work_at_once.h"
#include "program/build/build_detail.h"
#include "program/build/stage_by_stage.h"
#include "program/parts/part.h"
#include "program/types/check.h"
#include "program/values/attributes.h"
#include "program/values/of_setting.h"
#include "program/values/optimizer.h"
#include "program/values/value_memory.h"

namespace molen::program {
namespace {

void check_pipeline(const Setting& s) {
  const Pipeline& p = s.pipeline;
  if (s.stages() < 1 || p.chunks < 1)
    throw UsageError("parallel.pipeline: {} stages x {} chunks", s.stages(), p.chunks);
  if (!s.pipelined()) {
    if (!(p == Pipeline{})) throw UsageError("parallel.schedule: there are no stages to order");
    return;
  }
  if (p.stage < 0 || p.stage >= s.stages()) throw UsageError("stage {} of a pipeline of {}", p.stage, s.stages());
  if ((p.schedule == ScheduleKind::kZbH1 || p.schedule == ScheduleKind::kZbV) && !p.halves)
    throw UsageError("parallel.schedule: {} splits each backward into halves", name_of(p.schedule));
}

Schedule schedule_of(const Setting& s, const Schedule* file) {
  const Pipeline& p = s.pipeline;
  const auto micro_batches = static_cast<int>(s.micro_batches());
  Schedule schedule;
  if (p.schedule == ScheduleKind::kFile) {
    MOLEN_CHECK(file != nullptr, "a pipeline whose schedule is a file needs it");
    schedule = *file;
  } else {
    schedule = make_schedule(p.schedule, s.stages(), p.chunks, micro_batches);
  }
  if (schedule.stages != s.stages() || schedule.chunks != p.chunks || schedule.micro_batches != micro_batches ||
      schedule.placement != p.placement)
    throw UsageError(
        "parallel.schedule: is for {} stages x {} chunks ({}) and {} micro-batches; this run has {} x {} ({}) and {}",
        schedule.stages, schedule.chunks, name_of(schedule.placement), schedule.micro_batches, s.stages(), p.chunks,
        name_of(p.placement), micro_batches);
  return schedule;
}

void check_setting(const Setting& s) {
  if (s.global_batch < 1) throw UsageError("batch.global: must be at least 1, is {}", s.global_batch);
  if (s.micro_batch < 1) throw UsageError("batch.micro: must be at least 1, is {}", s.micro_batch);
  if (s.sequence < 1) throw UsageError("data.sequence_length: must be at least 1, is {}", s.sequence);
  if (s.expert_ranks() < 1) throw UsageError("parallel.expert: must be at least 1, is {}", s.expert_ranks());
  if (s.shards() < 1 || s.replicas() < 1)
    throw UsageError("parallel.data_shard x parallel.data_replicate: {} x {} is no number of ranks", s.shards(),
                     s.replicas());
  if (s.context_ranks() < 1 || s.sequence % (s.context() ? 2 * s.context_ranks() : 1) != 0)
    throw UsageError("parallel.context: {} ranks have two pieces each of every sequence; {} tokens do not divide so",
                     s.context_ranks(), s.sequence);
  if (!s.context() && s.context_form != ContextForm::kGather)
    throw UsageError("parallel.context_form: there are no context ranks");
  check_pipeline(s);
  if (s.tensor_ranks() < 1) throw UsageError("parallel.tensor: must be at least 1, is {}", s.tensor_ranks());
  if (s.sequence_parallel && s.tensor() && s.tokens() < s.tensor_ranks())
    throw UsageError("parallel.sequence: {} tokens of a micro-batch have no row for each of {} tensor ranks",
                     s.tokens(), s.tensor_ranks());
  if (s.zero < 0 || s.zero > 3) throw UsageError("parallel.zero: stages are 0 to 3, not {}", s.zero);
  if (s.zero >= 2 && s.shards() == 1 && s.replicas() > 1)
    throw UsageError("parallel.data_shard: ZeRO-{} has nothing to shard over with {} replicas of one rank", s.zero,
                     s.replicas());
  if (s.own_over_dp && (s.zero < 2 || s.replicas() == 1))
    throw UsageError(
        "parallel.zero: optimizer states can be divided over all data-parallel ranks only with hybrid sharding; set "
        "parallel.sharding to a hybrid name, or parallel.zero = 2 or 3 with parallel.data_replicate above 1");
  if (s.recompute.every < 1)
    throw UsageError("parallel.recompute: the interval in layers must be at least 1, is {}", s.recompute.every);
  for (const arch::Part part : arch::kAllParts)
    if (s.recompute.has(part) && !declaration_of(part).computed_again())
      throw UsageError("parallel.recompute: '{}' is never computed again", arch::name_of(part));
  if (s.prefetch < 0) throw UsageError("parallel.prefetch: must not be negative, is {}", s.prefetch);
  if (s.reduce != DType::kF64 && s.reduce != DType::kF32 && s.reduce != DType::kBF16 && s.reduce != DType::kF16)
    throw UsageError("precision.reduce: gradients cannot be summed in {}", name_of(s.reduce));
  if (s.compute == DType::kF64 && size_of(s.reduce) < 4)
    throw UsageError("precision.reduce: with fp64 compute, gradients must be summed in fp32 or fp64, not in {}",
                     name_of(s.reduce));
  if (s.compute == DType::kF64 && s.kernels == arch::Kernels::kFused)
    throw UsageError(
        "math.kernels: the fused kernels compute in fp32; fp64 is for \"reference\", or for ATen's on a device");
}

}  // namespace

std::optional<std::string> offload_refused(const arch::Architecture& arch, const Setting& s) {
  const Offload& o = s.offload;
  if ((o.gradients || o.parameters) && !o.optimizer)
    return fmt::format("{} on the host are for an optimizer there; add \"optimizer\"",
                       o.gradients ? "gradients" : "parameters");
  if (o.gradients && arch.tied && s.pipelined() && s.pipeline.placement != Placement::kV)
    return "gradients: the first and the last stage sum those of the table they share after all micro-batches, on the "
           "device";
  if (o.parameters && s.owns_part() && !s.sharded_parameters())
    return fmt::format(
        "parameters: under ZeRO-{} every rank keeps all of them and updates a part; zero 0 or 3 keeps what it updates",
        s.zero);
  if (o.parameters && s.own_over_dp)
    return "parameters: optimizer states over all data-parallel ranks update a part of what a rank keeps";
  if (o.activations && arch.layers == 1)
    return "activations: the backward of the only layer follows its forward; there is nothing to put away";
  return std::nullopt;
}

std::optional<std::string> chunks_refused(const arch::Architecture& arch, const Setting& s) {
  if (!arch.sparse() || !s.rows_in_pieces()) return std::nullopt;
  return "the router of a sparse layer (model.experts) takes all rows of a sequence at once";
}

std::optional<std::string> reduce_refused(const arch::Architecture& arch, const Setting& s) {
  if (!arch.biases_router() || size_of(s.reduce) >= 4) return std::nullopt;
  return fmt::format("messages of {} would round the numbers of tokens that move the biases of routers; set fp32",
                     name_of(s.reduce));
}

std::optional<std::string> optimizer_refused(const Setting& s) {
  const Optimizer& optimizer = optimizer_named(s.optimizer);
  if (optimizer.whole_parameters && s.offload.optimizer && s.tensor())
    return fmt::format(
        "{} gathers gradients over tensor ranks, which ranks do not do from the host's memory yet; keep \"optimizer\" "
        "out of parallel.offload, or set parallel.tensor = 1",
        s.optimizer);
  if (optimizer.whole_matrices && s.offload.optimizer)
    return fmt::format(
        "{} multiplies matrices, which the host's stream does not do yet; keep \"optimizer\" out of "
        "parallel.offload",
        s.optimizer);
  return std::nullopt;
}

namespace {

using pass::Ordered;

const Ordered& order_of(const Setting& setting, const Schedule* file, std::optional<Ordered>& known) {
  if (known) return *known;
  return known.emplace(pass::with_times(schedule_of(setting, file)));
}

// Builds a program without types. `ordered` is that of the pipeline, which the first stage makes for all of them.
Program build_with(const arch::Architecture& arch, const Setting& setting, const Schedule* file,
                   std::optional<Ordered>& ordered) {
  arch::validate(arch);
  check_setting(setting);
  if (const auto why = chunks_refused(arch, setting)) throw UsageError("parallel.tensor_chunks: {}", *why);
  if (const auto why = offload_refused(arch, setting)) throw UsageError("parallel.offload: {}", *why);
  if (const auto why = reduce_refused(arch, setting)) throw UsageError("precision.reduce: {}", *why);
  if (const auto why = optimizer_refused(setting)) throw UsageError("optimizer.kind: {}", *why);
  const bool train = setting.purpose == Purpose::kTrain;
  Program p = pass::exchange_experts(pass::micro_batch(arch, setting));
  if (setting.recompute.any() && train) p = pass::recompute(std::move(p));
  p = pass::exchange_tensors(pass::exchange_context(std::move(p)));
  if (setting.pipelined())
    p = train ? pass::pipeline(std::move(p), order_of(setting, file, ordered)) : pass::pipeline_forward(std::move(p));
  else if (train)
    p = pass::micro_batch_loop(std::move(p));
  if (setting.offload.activations && train) p = pass::offload_activations(std::move(p));
  p = pass::shard_parameters(std::move(p));
  if (train) p = pass::update(pass::reduce_gradients(std::move(p)));
  return pass::order_streams(pass::costs(std::move(p)));
}

}  // namespace

Program build(const arch::Architecture& arch, const Setting& setting, const Schedule* file) {
  std::optional<Ordered> ordered;
  return with_types(build_with(arch, setting, file, ordered));
}

namespace {

Program build_of_stage(const arch::Architecture& arch, Setting setting, int stage, const Schedule* file, bool types,
                       std::optional<Ordered>& ordered) {
  setting.pipeline.stage = stage;
  Program p = build_with(arch, setting, file, ordered);
  if (types) return with_types(std::move(p));
  p.states_types = false;
  return p;
}

}  // namespace

std::vector<Program> build_stages(const arch::Architecture& arch, Setting setting, const Schedule* file, bool types,
                                  int threads) {
  std::optional<Ordered> ordered;
  std::vector<Program> stages;
  stages.push_back(build_of_stage(arch, setting, 0, file, types, ordered));  // makes `ordered` for all
  stages.resize(static_cast<std::size_t>(setting.stages()));
  each_at_once(stages.size() - 1, threads, [&](std::size_t i) {
    stages[i + 1] = build_of_stage(arch, setting, static_cast<int>(i) + 1, file, types, ordered);
  });
  return stages;
}

void build_each_stage(const arch::Architecture& arch, Setting setting, const Schedule* file, bool types,
                      const std::function<bool(Program)>& take) {
  std::optional<Ordered> ordered;
  int stage = 0;
  do {  // the first stage refuses an impossible number of stages
    if (!take(build_of_stage(arch, setting, stage, file, types, ordered))) return;
  } while (++stage < setting.stages());
}

namespace detail {
namespace {

// Returns the value with which a partial value, or a value that an op transforms in place, shares a buffer.
Value stands_for(const Program& p, Value v) {
  switch (v) {
    case Value::kAttentionPart:
      return Value::kAttention;
    case Value::kLsePart:
      return Value::kLse;
    case Value::kProjected:  // the backward of the norms of queries and keys reads it
      return p.arch.norms_qk() ? v : Value::kQkv;
    case Value::kNormedQkv:
      return Value::kQkv;
    case Value::kChosen:
      return Value::kChoice;
    case Value::kDDispatched:
      return Value::kDRouted;
    case Value::kDQuery:
    case Value::kDNormedQkv:
    case Value::kDProjected:
      return Value::kDQkv;
    default:
      return v;
  }
}

// Returns the value whose buffer holds `value`; usually this is `value` itself.
Value role_for(const Program& p, Value value) {
  const bool summed_in_place = class_of(value) == ValueClass::kSum && !p.setting.sharded_rows();
  switch (value) {
    case Value::kDMid:  // one residual gradient is added to in place; halves of a backward read its old value
      return p.setting.pipeline.halves ? value : Value::kDResidual;
    case Value::kResidualSum:
      return summed_in_place ? Value::kResidual : value;
    case Value::kMidSum:
      return summed_in_place ? Value::kMid : value;
    case Value::kDResidualSum:
      return summed_in_place ? Value::kDResidual : value;
    case Value::kDMidSum:
      return summed_in_place ? role_for(p, Value::kDMid) : value;
    default:
      return wide_partial(p, value) ? value : stands_for(p, value);
  }
}

// Whether one buffer serves all layers, one after the other.
bool one_for_all_layers(const Program& p, Value value) {
  const Keeping keeping = info_of(value).keeping;
  return keeping == Keeping::kInTurn || (keeping == Keeping::kInTurnOfWhole && !p.setting.pipeline.halves);
}

// Returns the fields that identify a buffer. ensure_buffer explains `suffix`.
Buffer place_for(const Program& p, const Operand& operand, const std::string& suffix) {
  Buffer b;
  b.role = role_for(p, operand.value);
  b.place = place_of(p, operand);
  if (of_unit(b.role))
    b.unit = static_cast<int>(operand.layer);
  else if (b.role == Value::kKeys || b.role == Value::kDKeys)
    b.slot = std::to_string(operand.step % 2);  // while one slot is sent, the other receives or is computed
  else if (!one_for_all_layers(p, b.role) && operand.layer >= 0 &&
           (suffix.empty() || info_of(b.role).keeping != Keeping::kOfPass))
    b.layer = operand.layer;
  else if (!one_for_all_layers(p, b.role) && operand.layer >= 0)
    b.slot = suffix;
  if (piece_apart(p, operand)) b.portion = operand.portion;
  return b;
}

std::string label_of(const Program& p, const Buffer& b, bool host) {
  std::string name(name_of(b.role));
  if (b.unit >= 0) name += "." + p.units.at(static_cast<std::size_t>(b.unit)).name;
  if (b.layer >= 0) name += fmt::format(".{}", b.layer);
  if (!b.slot.empty()) name += "." + b.slot;
  if (b.portion >= 0) name += fmt::format(".part{}", b.portion);
  return name + (host ? "/host" : "");
}

}  // namespace

int ensure_buffer(Program& p, const Operand& operand, const std::string& suffix) {
  Buffer b = place_for(p, operand, suffix);
  const auto same = [&](const Buffer& o) {
    return o.role == b.role && o.unit == b.unit && o.layer == b.layer && o.place == b.place && o.portion == b.portion &&
           o.copy == 0 && o.slot == b.slot;
  };
  // An op mostly uses buffers that were made for the ops just before it.
  if (const auto found = std::find_if(p.buffers.rbegin(), p.buffers.rend(), same); found != p.buffers.rend())
    return static_cast<int>(p.buffers.rend() - found) - 1;
  Operand held = operand;
  held.value = b.role;
  b.name = label_of(p, b, operand.host);
  b.dtype = dtype_of(p, b.role);
  b.elements = elements_of(p, held);
  b.lifetime = lifetime_of(p, b.role);
  if (of_unit(b.role)) b.extent = extent_of(p, b.role);
  p.buffers.push_back(std::move(b));
  return static_cast<int>(p.buffers.size()) - 1;
}

Step make_step(Program& p, Op op, int unit, Phase phase, Stream stream, const std::string& suffix) {
  const Signature s = signature(p, op, unit);
  Step step;
  step.op = std::move(op);
  step.phase = phase;
  step.stream = stream;
  step.attributes = attributes_of(p.setting, step.op);
  for (const Operand& o : s.operands) step.operands.push_back({o.arg, ensure_buffer(p, o, suffix), o.range, o.access});
  return step;
}

Step compute_step(Program& p, arch::Part part, Pass pass, std::int64_t layer, std::int64_t chunk,
                  const std::string& suffix) {
  const Phase phase = of_head(part)              ? Phase::kHead
                      : pass == Pass::kForward   ? Phase::kForward
                      : pass == Pass::kRecompute ? Phase::kRecompute
                                                 : Phase::kBackward;
  return make_step(p, Compute{part, pass, layer, chunk}, -1, phase, Stream::kCompute, suffix);
}

}  // namespace detail

namespace pass {

namespace {

// Builds the bodies of one micro-batch, chunk by chunk.
class MicroBatch {
 public:
  MicroBatch(const arch::Architecture& arch, const Setting& setting)
      : p_(describe(arch, setting)), train_(setting.purpose == Purpose::kTrain) {}

  Program run() {
    if (p_.setting.pipelined()) {
      for (const Chunk& chunk : p_.chunks) stage_bodies(chunk);
      return std::move(p_);
    }
    const Chunk& all = p_.chunks.front();
    begin("micro");
    add(ZeroFill{}, Phase::kData);
    add(LoadBatch{}, Phase::kData);
    forward(all);
    head();
    if (train_) backward(all, Pass::kBackward);
    p_.schedule.push_back({0, 0});
    return std::move(p_);
  }

 private:
  void stage_bodies(const Chunk& chunk) {
    const std::string number = std::to_string(chunk.global_stage);
    begin("forward." + number);
    // With a document mask, every stage reads the documents; in sparse models, routers read the labels. Both begin with
    // the first forward.
    if (chunk.embed || (chunk.head && !train_) || p_.setting.document_mask || p_.arch.sparse()) load();
    forward(chunk);
    const bool halves = p_.setting.pipeline.halves;
    if (train_) begin("backward." + number);
    if (chunk.head) {
      load();
      head();
    }
    if (train_) backward(chunk, Pass::kBackward);
    if (!train_ || !halves) return;
    // The halves are the same backward as the whole. For each micro-batch, a chunk runs either the whole or the halves.
    Body input = p_.bodies.back();
    input.name = "input." + number;
    for (Step& step : input.steps)
      if (const auto* c = std::get_if<Compute>(&step.op); c && c->layer >= 0)
        step = detail::compute_step(p_, c->part, Pass::kBackwardInput, c->layer, -1);
    p_.bodies.push_back(std::move(input));
    begin("weights." + number);
    backward(chunk, Pass::kBackwardWeights);
  }

  void begin(std::string name) { p_.bodies.push_back({std::move(name), {}}); }
  void add(Op op, Phase phase) {
    p_.bodies.back().steps.push_back(detail::make_step(p_, std::move(op), -1, phase, Stream::kCompute));
  }
  void add(arch::Part part, Pass pass, std::int64_t layer, std::int64_t chunk = -1) {
    p_.bodies.back().steps.push_back(detail::compute_step(p_, part, pass, layer, chunk, train_ ? "" : "slot"));
  }
  // Adds LoadBatch at most once per stage.
  void load() {
    if (!std::exchange(loaded_, true)) add(LoadBatch{p_.has_head()}, Phase::kData);
  }

  void forward(const Chunk& chunk) {
    if (chunk.embed)
      for (const arch::Part part : arch::parts_before(p_.arch)) add(part, Pass::kForward, -1);
    for (std::int64_t l = chunk.first; l < chunk.end; ++l)
      for (const arch::Part part : arch::parts_of_layer(p_.arch, l))
        if (train_ || !declaration_of(part).only_trains()) add(part, Pass::kForward, l);
  }

  void head() {
    for (const arch::Part part : arch::parts_after(p_.arch)) add(part, Pass::kForward, -1);
    for (std::int64_t c = 0; c < p_.setting.head_chunks(); ++c)
      for (const arch::Part part : arch::parts_of_head(p_.arch, p_.setting.tensor())) {
        const bool backward = train_ && declaration_of(part).has_backward();
        add(part, backward ? Pass::kBackward : Pass::kForward, -1, c);
      }
    if (!train_) return;
    for (const arch::Part part : std::views::reverse(arch::parts_after(p_.arch))) add(part, Pass::kBackward, -1);
  }

  void backward(const Chunk& chunk, Pass pass) {
    const bool weights = pass == Pass::kBackwardWeights;
    for (std::int64_t l = chunk.end - 1; l >= chunk.first; --l)
      for (const arch::Part part : std::views::reverse(arch::parts_of_layer(p_.arch, l)))
        if (weights ? has_halves(part) : declaration_of(part).has_backward()) add(part, pass, l);
    if (!chunk.embed || weights) return;
    for (const arch::Part part : std::views::reverse(arch::parts_before(p_.arch))) add(part, pass, -1);
  }

  Program p_;
  bool train_, loaded_ = false;
};

}  // namespace

Program micro_batch(const arch::Architecture& arch, const Setting& setting) {
  return MicroBatch(arch, setting).run();
}

}  // namespace pass
}  // namespace molen::program
