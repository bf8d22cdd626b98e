#include "infer/forward.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/error.h"
#include "exec/constants.h"
#include "program/build/build.h"
#include "program/parts/part.h"

namespace molen::infer {
namespace {

program::Program program_of(const Weights& weights, std::int64_t batch, std::int64_t sequence, int threads) {
  program::Setting s;
  s.purpose = program::Purpose::kEvaluate;
  s.global_batch = s.micro_batch = batch;
  s.sequence = sequence;
  s.compute = weights.dtype();
  s.kernels = weights.kernels();
  s.threads = threads;
  s.head_chunk = arch::head_chunk(weights.arch().vocabulary);
  program::Program p = program::build(weights.arch(), s);
  // An evaluation borrows all this from the training beside it. Here only the weights come from elsewhere.
  for (program::Buffer& b : p.buffers)
    if (b.lifetime == program::Lifetime::kExternal && b.unit < 0)
      b.lifetime = program::class_of(b.role) == program::ValueClass::kConstant ? program::Lifetime::kConstant
                                                                               : program::Lifetime::kPersistent;
  return p;
}

// The ops up to the head whose results the head depends on. The losses of routers are not among them.
bool in_forward(const program::Step& step) {
  const auto* compute = std::get_if<program::Compute>(&step.op);
  return compute && !program::of_head(compute->part) && !program::declaration_of(compute->part).only_trains();
}

}  // namespace

Forward::Forward(const Weights& weights, std::int64_t batch, std::int64_t sequence, int threads)
    : weights_(weights),
      program_(program_of(weights, batch, sequence, threads)),
      plan_(program::plan_memory(program_)),
      slots_(program_),
      arena_(plan_.peak, at::kCPU) {
  for (const program::Buffer& b : program_.buffers) {
    at::Tensor& held = weights_of_.emplace_back();
    if (b.lifetime != program::Lifetime::kExternal) continue;
    held = weights_.unit(program_.units.at(static_cast<std::size_t>(b.unit)).name);
    MOLEN_CHECK(held.scalar_type() == exec::to_aten(b.dtype), "{} has another type in the weights", b.name);
    MOLEN_CHECK(held.numel() == b.elements, "{} has {} elements in the program and {} in the weights", b.name,
                b.elements, held.numel());
  }
  ids_N_ = of_batch(program::Value::kIds);
  // Routers skip tokens without a label in their losses, which nobody reads.
  of_batch(program::Value::kLabels).fill_(-1);
  y_Nd_ = of_batch(program::Value::kNormed).view({batch * sequence, -1});
  for (const program::Expanded& e : program::expand(program_)) {
    if (!in_forward(*e.step)) continue;
    const arch::Part part = std::get<program::Compute>(e.step->op).part;
    if (program::declaration_of(part).standing == program::Standing::kBefore)
      embedding_.emplace_back(e.body, e.op);
    else
      layers_.push_back(bind(e.body, e.op));
  }
}

at::Tensor Forward::flat(int buffer) const {
  const auto i = static_cast<std::size_t>(buffer);
  const program::Buffer& b = program_.buffers.at(i);
  if (b.lifetime == program::Lifetime::kExternal) return weights_of_[i];
  return arena_.view(plan_.offset(program_, slots_, buffer, 0), b.dtype, {b.elements});
}

at::Tensor Forward::of_batch(program::Value value) const {
  for (std::size_t i = 0; i < program_.buffers.size(); ++i)
    if (program_.buffers[i].role == value) return flat(static_cast<int>(i));
  throw Error("the program of {} has no {}", program_.arch.name, program::name_of(value));
}

exec::BindContext Forward::context() const {
  exec::BindContext c{program_, {}, nullptr, [this](int buffer) { return flat(buffer); }};
  if (first_position_ > 0) c.positions = {{first_position_, first_position_ + program_.setting.sequence}};
  return c;
}

Forward::BoundOp Forward::bind(int body, int op) const {
  const auto b = static_cast<std::size_t>(body), o = static_cast<std::size_t>(op);
  const program::Step& step = program_.bodies[b].steps[o];
  const std::int64_t offset = plan_.scratch_offset[b][o];
  BoundOp bound{exec::bind(context(), step), offset < 0 ? nullptr : arena_.at(offset), step.scratch.value};
  const auto& compute = std::get<program::Compute>(step.op);
  if (compute.part != arch::Part::kAttention) return bound;
  const auto rows = [&](program::Arg arg) {
    return flat(step.operand(arg).buffer).view({step.attributes.rows.count(), -1});
  };
  bound.layer = compute.layer, bound.qkv = rows(program::Arg::kQkv), bound.out = rows(program::Arg::kY);
  return bound;
}

void Forward::move_to(std::int64_t first_position) {
  if (first_position == first_position_) return;
  first_position_ = first_position;
  exec::fill_constants(context());
  embed_.clear();  // these ops read the rows of learned positions
  for (const auto& [body, op] : embedding_) embed_.push_back(bind(body, op));
}

const at::Tensor& Forward::operator()(std::span<const std::int32_t> ids, std::int64_t first_position,
                                      const Attention& attention) {
  const arch::Architecture& a = program_.arch;
  if (const std::int64_t end = first_position + program_.setting.sequence;
      a.position == arch::Position::kLearned && end > a.max_sequence)
    throw UsageError("{} tokens are more than the {} positions that the model has learned", end, a.max_sequence);
  MOLEN_CHECK(static_cast<std::int64_t>(ids.size()) == ids_N_.numel(), "{} tokens for a forward of {}", ids.size(),
              ids_N_.numel());
  std::copy(ids.begin(), ids.end(), ids_N_.data_ptr<std::int32_t>());
  move_to(first_position);
  exec::StepState state;
  for (std::vector<BoundOp>* ops : {&embed_, &layers_})
    for (BoundOp& op : *ops) {
      if (op.layer >= 0 && attention && attention(op.layer, op.qkv, op.out)) continue;
      math::Scratch scratch(op.scratch, op.scratch_bytes);
      exec::RunState run(state);
      op.kernel(run, scratch);
    }
  return y_Nd_;
}

}  // namespace molen::infer
