// The order of passes, and the first of them.
#include "program/build.h"

#include "base/error.h"
#include "program/build_detail.h"

namespace molen::program {
namespace {

void check_setting(const Setting& s) {
  if (s.global_batch < 1) throw UsageError("batch.global: must be at least 1, is {}", s.global_batch);
  if (s.micro_batch < 1) throw UsageError("batch.micro: must be at least 1, is {}", s.micro_batch);
  if (s.sequence < 1) throw UsageError("data.sequence_length: must be at least 1, is {}", s.sequence);
  if (s.shards() < 1 || s.replicas() < 1)
    throw UsageError("parallel.data_shard x parallel.data_replicate: {} x {} is no number of ranks", s.shards(),
                     s.replicas());
  for (const mesh::Axis axis : {mesh::Axis::kPp, mesh::Axis::kCp})
    if (s.mesh[axis] != 1) throw UsageError("the axis {} is not built yet", mesh::name_of(axis));
  if (s.tensor_ranks() < 1) throw UsageError("parallel.tensor: {} ranks", s.tensor_ranks());
  if (s.sequence_parallel && s.tensor() && s.tokens() < s.tensor_ranks())
    throw UsageError("parallel.sequence: {} tokens of a micro-batch have no row for each of {} tensor ranks",
                     s.tokens(), s.tensor_ranks());
  if (s.zero < 0 || s.zero > 3) throw UsageError("parallel.zero: stages are 0 to 3, not {}", s.zero);
  if (s.zero >= 2 && s.shards() == 1 && s.replicas() > 1)
    throw UsageError("parallel.data_shard: ZeRO-{} has nothing to shard over with {} replicas of one rank", s.zero,
                     s.replicas());
  if (s.own_over_dp && (s.zero < 2 || s.replicas() == 1))
    throw UsageError("optimizer states over all data-parallel ranks: for hybrid sharding only");
  if (s.recompute.every < 1) throw UsageError("parallel.recompute: every {} layers", s.recompute.every);
  if (s.recompute.has(arch::Part::kDown)) throw UsageError("parallel.recompute: 'down' is never computed again");
  if (s.prefetch < 0) throw UsageError("parallel.prefetch: {} units", s.prefetch);
  if (s.compute == DType::kF16)
    throw UsageError(
        "precision.compute: fp16 needs dynamic loss scaling, which is not built yet; use bf16, fp32 or fp64");
  if (size_of(s.reduce) < 4) throw UsageError("precision.reduce: only fp32 (fp64 under fp64 compute) is built yet");
  if (s.compute == DType::kF64 && s.kernels != arch::Kernels::kReference)
    throw UsageError("math.kernels: fp64 runs on the reference kernels; set math.kernels = \"reference\"");
}

}  // namespace

Program build(const arch::Architecture& arch, const Setting& setting) {
  arch::validate(arch);
  check_setting(setting);
  Program p = pass::micro_batch(arch, setting);
  if (setting.recompute.any() && setting.purpose == Purpose::kTrain) p = pass::recompute(std::move(p));
  p = pass::exchange_tensors(std::move(p));
  if (setting.purpose == Purpose::kTrain) {
    p = pass::micro_batch_loop(std::move(p));
    p = pass::reduce_gradients(pass::shard_parameters(std::move(p)));
    p = pass::update(std::move(p));
  } else {
    p = pass::shard_parameters(std::move(p));
  }
  return pass::order_streams(pass::costs(std::move(p)));
}

namespace detail {
namespace {

// Values that every layer has a buffer of its own for, whatever pass makes them.
bool between_layers(Value v) {
  switch (v) {
    case Value::kResidual:
    case Value::kResidualSum:
    case Value::kResidualRows:
    case Value::kDResidualSum:
    case Value::kDResidualRows:
    case Value::kDMidSum:
    case Value::kDMidRows:
      return true;
    default:
      return false;
  }
}

}  // namespace

int ensure_buffer(Program& p, const Operand& operand, const std::string& suffix) {
  std::string name(name_of(operand.value));
  const bool of_unit = operand.value >= Value::kParam && operand.value <= Value::kMaster;
  if (of_unit) {
    name += "." + p.units.at(static_cast<std::size_t>(operand.layer)).name;
  } else if (operand.value == Value::kDResidual || operand.value == Value::kDMid) {
    name = "d_x";  // one residual gradient, added to in place from the top of the model to its bottom
  } else if (!p.setting.sharded_rows() && operand.value >= Value::kResidualSum && operand.value <= Value::kDMidSum) {
    // Summed where it is.
    const auto kept = std::array{Value::kResidual, Value::kMid, Value::kDResidual, Value::kDMid}.at(
        static_cast<std::size_t>(operand.value) - static_cast<std::size_t>(Value::kResidualSum));
    return ensure_buffer(p, {kept, operand.layer}, suffix);
  } else if (operand.value >= Value::kLogits && operand.value <= Value::kHeadSumsAll) {
    // one chunk of the head at a time
  } else if (operand.value == Value::kDActivation || operand.value == Value::kDUp ||
             operand.value == Value::kDAttention || operand.value == Value::kDQkv) {
    // one slot each for all layers: a layer's backward uses them up before the next begins
  } else if (operand.layer >= 0) {
    name += "." + (suffix.empty() || between_layers(operand.value) ? std::to_string(operand.layer) : suffix);
  }
  if (const int found = p.find_buffer(name); found >= 0) return found;
  p.buffers.push_back({name, dtype_of(p, operand.value), elements_of(p, operand), lifetime_of(p, operand.value)});
  return static_cast<int>(p.buffers.size()) - 1;
}

Step make_step(Program& p, Op op, int unit, Phase phase, Stream stream, const std::string& suffix) {
  const Signature s = signature(p, op, unit);
  Step step{std::move(op), phase, stream, {}, {}, {}, {}, {}, {}, {}, {}};
  for (const Operand& o : s.reads) step.reads.push_back({ensure_buffer(p, o, suffix), o.range});
  for (const Operand& o : s.writes) step.writes.push_back({ensure_buffer(p, o, suffix), o.range});
  return step;
}

Step compute_step(Program& p, arch::Part part, ComputePass pass, std::int64_t layer, std::int64_t chunk,
                  const std::string& suffix) {
  const Phase phase = arch::is_head(part)               ? Phase::kHead
                      : pass == ComputePass::kForward   ? Phase::kForward
                      : pass == ComputePass::kRecompute ? Phase::kRecompute
                                                        : Phase::kBackward;
  return make_step(p, Compute{part, pass, layer, chunk, false}, -1, phase, Stream::kCompute, suffix);
}

}  // namespace detail

namespace pass {

Program micro_batch(const arch::Architecture& arch, const Setting& setting) {
  using arch::Part;
  Program p = describe(arch, setting);
  const bool train = setting.purpose == Purpose::kTrain;

  Body body{"micro", {}};
  const auto add = [&](Part part, ComputePass pass, std::int64_t layer, std::int64_t chunk = -1) {
    body.steps.push_back(detail::compute_step(p, part, pass, layer, chunk, train ? "" : "slot"));
  };
  body.steps.push_back(detail::make_step(p, ZeroFill{}, -1, Phase::kData, Stream::kCompute));
  body.steps.push_back(detail::make_step(p, LoadBatch{}, -1, Phase::kData, Stream::kCompute));
  add(Part::kEmbed, ComputePass::kForward, -1);
  for (std::int64_t l = 0; l < arch.layers; ++l)
    for (const Part part : detail::kLayerParts) add(part, ComputePass::kForward, l);
  add(Part::kFinalNorm, ComputePass::kForward, -1);
  for (std::int64_t c = 0; c < setting.head_chunks(); ++c)
    if (setting.tensor()) {
      add(Part::kHeadLogits, ComputePass::kForward, -1, c);
      add(Part::kHeadLoss, train ? ComputePass::kBackward : ComputePass::kForward, -1, c);
    } else {
      add(Part::kHead, train ? ComputePass::kBackward : ComputePass::kForward, -1, c);
    }
  if (train) {
    add(Part::kFinalNorm, ComputePass::kBackward, -1);
    for (std::int64_t l = arch.layers - 1; l >= 0; --l)
      for (auto part = detail::kLayerParts.rbegin(); part != detail::kLayerParts.rend(); ++part)
        add(*part, ComputePass::kBackward, l);
    add(Part::kEmbed, ComputePass::kBackward, -1);
  }
  p.bodies.push_back(std::move(body));
  p.schedule.push_back({0, 0});
  return p;
}

}  // namespace pass
}  // namespace molen::program
