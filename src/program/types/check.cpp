#include "program/types/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "program/types/type_checker.h"
#include "program/values/tiles.h"

namespace molen::program {
namespace {

constexpr std::size_t kMaxTypeErrors = 20;

bool one_rank(const mesh::PerAxis& mesh) {
  return mesh == mesh::kOne;
}

constexpr std::array<std::string_view, kNumScalars> kScalarNames{
    "loss_sum", "valid_tokens", "sum_squares", "grad_norm", "grad_scale", "balance_loss", "z_loss", "dropped"};

std::string admitted_text(const std::vector<AxisType>& types) {
  std::string text;
  for (const AxisType& type : types) text += (text.empty() ? "" : " or ") + phrase_of(type);
  return text;
}

}  // namespace

TypeChecker::TypeChecker(const Program& program)
    : p_(program), mesh_(program.grid.sizes), states_(program), inferred_(program.bodies.size()) {
  for (std::size_t b = 0; b < p_.bodies.size(); ++b)
    for (const Step& step : p_.bodies[b].steps) inferred_[b].emplace_back(step.operands.size());
}

void TypeChecker::run() {
  for (const Instance& each : p_.schedule) {
    run_instance(each);
    if (errors_.size() >= kMaxTypeErrors) return;
  }
  if (errors_.empty()) end_of_step();
}

// An instance that finds the same types as an earlier one of its body leaves the same types.
void TypeChecker::run_instance(const Instance& instance) {
  body_ = static_cast<std::size_t>(instance.body);
  micro_batch_ = instance.micro_batch;
  const Body& body = p_.bodies.at(body_);
  if (!touched_.count(body_)) touched_[body_] = touched_by(body);
  const std::vector<Touched>& touched = touched_[body_];
  Summary now{states_of(touched), {}};
  for (const Summary& earlier : summaries_[body_]) {
    if (earlier.before != now.before) continue;
    for (std::size_t i = 0; i < touched.size(); ++i)
      states_.at(touched[i].first, micro_batch_, touched[i].second) = earlier.after[i];
    return;
  }
  states_.forget_transients();
  for (op_ = 0; op_ < body.steps.size(); ++op_) {
    step_ = &body.steps[op_];
    run_step();
    if (errors_.size() >= kMaxTypeErrors) return;
  }
  now.after = states_of(touched);
  summaries_[body_].push_back(std::move(now));
}

void TypeChecker::run_step() {
  reported_here_.clear();
  const std::size_t errors = errors_.size();
  note_types(false);
  std::visit([&](const auto& op) { rule(op); }, step_->op);
  forget_consumed();
  note_types(true);
  if (errors_.size() > errors) reported_.emplace(body_, op_);
}

std::vector<TypeChecker::Touched> TypeChecker::touched_by(const Body& body) const {
  std::set<Touched> touched;
  for (const Step& step : body.steps)
    for (const Use& use : step.operands)
      if (buffer_of(use).lifetime != Lifetime::kTransient)
        for (std::size_t segment = 0; segment < states_.segments(use.buffer); ++segment)
          touched.emplace(use.buffer, segment);
  return {touched.begin(), touched.end()};
}

std::vector<TypeState> TypeChecker::states_of(const std::vector<Touched>& touched) {
  std::vector<TypeState> states;
  states.reserve(touched.size());
  for (const auto& [buffer, segment] : touched) states.push_back(states_.at(buffer, micro_batch_, segment));
  return states;
}

// Notes the types of operands. For an operand that the op only reads, the type before the op is noted; for any other,
// the type after the op.
void TypeChecker::note_types(bool written) {
  for (std::size_t i = 0; i < step_->operands.size(); ++i) {
    const Use& use = step_->operands[i];
    if (use.writes() != written) continue;
    const bool kept = of_parameters(buffer_of(use));  // end_of_step asks for their writers
    std::optional<MeshType> type;
    for (const std::size_t segment : segments_of(use)) {
      const TypeState& held = state(use, segment);
      if (held.content == TypeState::Content::kTyped) type = type ? joined(*type, held.type) : held.type;
      if (written && kept) writers_[{use.buffer, segment}] = {body_, op_};
    }
    if (!type) type = unstated_type(mesh_);
    std::optional<MeshType>& noted = inferred_[body_][op_][i];
    if (noted && !(*noted == *type))
      for (const mesh::Axis axis : kMeshAxes)
        if (!((*noted)[axis] == (*type)[axis]))
          error(use, 0,
                fmt::format("is {} over {} in one micro-batch and {} in another", phrase_of((*noted)[axis]),
                            mesh::name_of(axis), phrase_of((*type)[axis])));
    if (!noted) noted = type;
  }
}

void TypeChecker::forget_consumed() {
  for (const Use& use : step_->operands) {
    const bool lives_on = std::any_of(step_->operands.begin(), step_->operands.end(), [&](const Use& other) {
      return other.buffer == use.buffer && other.access != Access::kConsume;
    });
    if (use.access != Access::kConsume || lives_on) continue;
    for (const std::size_t segment : segments_of(use)) state(use, segment) = {};
  }
}

// State with which the next step begins must have its initial type again. Errors name the op that wrote it last.
void TypeChecker::end_of_step() {
  int reported = -1;  // a buffer
  for (const auto& [state, writer] : writers_) {
    const auto& [buffer, segment] = state;
    const Buffer& of = p_.buffers[static_cast<std::size_t>(buffer)];
    const auto kept = kept_type(p_, of, parameter_of(buffer, segment));
    const TypeState& now = states_.at(buffer, -1, segment);
    if (!kept || now.type == *kept || std::exchange(reported, buffer) == buffer) continue;
    std::tie(body_, op_) = writer;
    micro_batch_ = -1;
    step_ = &p_.bodies[body_].steps[op_];
    const auto use = std::find_if(step_->operands.begin(), step_->operands.end(),
                                  [at = buffer](const Use& u) { return u.writes() && u.buffer == at; });
    for (const mesh::Axis axis : kMeshAxes)
      if (!(now.type[axis] == (*kept)[axis]))
        error(*use, segment,
              fmt::format("is left {} over {} where the next step finds it {}", phrase_of(now.type[axis]),
                          mesh::name_of(axis), phrase_of((*kept)[axis])));
  }
}

void TypeChecker::compare_stated() {
  for (body_ = 0; body_ < p_.bodies.size(); ++body_)
    for (op_ = 0; op_ < p_.bodies[body_].steps.size(); ++op_) {
      step_ = &p_.bodies[body_].steps[op_];
      micro_batch_ = -1;
      reported_here_.clear();
      for (std::size_t i = 0; i < step_->operands.size(); ++i) {
        const Use& use = step_->operands[i];
        const auto& type = inferred_[body_][op_][i];
        if (!type) continue;
        for (const mesh::Axis axis : kMeshAxes)
          if (!(use.type[axis] == (*type)[axis]))
            error(use, 0,
                  fmt::format("is {} over {} where the program states {}", phrase_of((*type)[axis]),
                              mesh::name_of(axis), phrase_of(use.type[axis])));
      }
      if (errors_.size() >= kMaxTypeErrors) return;
    }
}

TypeChecker::Segments TypeChecker::segments_of(const Step& step, const Use& use) const {
  const std::size_t count = states_.segments(use.buffer);
  Segments segments;
  if (!of_parameters(buffer_of(use))) {
    if (count > 1 && buffer_of(use).role != Value::kScalars) {
      const std::int64_t tile = tile_of(p_, step, use).number, piece = tile >= 0 ? tile : piece_of_rows(step.op);
      if (piece >= 0) return {static_cast<std::size_t>(piece)};
    }
    for (std::size_t i = 0; i < count; ++i) segments.push_back(i);
    return segments;
  }
  const auto* c = std::get_if<Compute>(&step.op);
  for (std::size_t i = 0; i < count; ++i) {
    const arch::Parameter& parameter = parameter_of(use.buffer, i);
    if (use.range == Range::kReplicated && parameter.shard != arch::ShardDim::kNone) continue;
    if (of_directions(buffer_of(use)) && !unit_of(use).entries[i].whole) continue;
    if (c && !has_parameter(p_, *c, parameter)) continue;
    if (c && !in_tile(p_, step.attributes.rows, *c, parameter)) continue;
    if (c && use.arg == Arg::kGrad && !makes_gradient(*c, parameter.role)) continue;
    segments.push_back(i);
  }
  return segments;
}

std::size_t TypeChecker::first_of(const Use& use) const {
  const Segments segments = segments_of(use);
  return segments.empty() ? 0 : segments.front();
}

const arch::Parameter& TypeChecker::parameter_of(int buffer, std::size_t segment) const {
  const Unit& unit = p_.units[static_cast<std::size_t>(p_.unit_of_buffer(buffer))];
  return p_.parameters[static_cast<std::size_t>(unit.entries[segment].parameter)];
}

bool TypeChecker::error(const Use& use, std::size_t segment, const std::string& what) {
  if (reported_.count({body_, op_}) || errors_.size() >= kMaxTypeErrors) return false;
  const Buffer& buffer = buffer_of(use);
  std::string name = buffer.name;
  if (of_parameters(buffer) && segment < states_.segments(use.buffer))
    name += ": " + parameter_of(use.buffer, segment).name;
  if (buffer.role == Value::kScalars && segment < kScalarNames.size())
    name += fmt::format(": {}", kScalarNames.at(segment));
  Expanded e;
  e.body = static_cast<int>(body_);
  e.op = static_cast<int>(op_);
  e.micro_batch = micro_batch_;
  e.step = step_;
  errors_.push_back(fmt::format("{}: the operand {} ({}) {}", text_of(p_, e), name_of(use.arg), name, what));
  return false;
}

MeshType TypeChecker::found(const Use& use, std::size_t segment) {
  const TypeState& held = state(use, segment);
  if (held.content != TypeState::Content::kNothing) return held.type;
  if (reported_here_.emplace(use.arg, -1).second) error(use, segment, "has no type: no op has written it");
  return unstated_type(mesh_);
}

MeshType TypeChecker::found(const Use& use) {
  std::optional<MeshType> type;
  for (const std::size_t segment : segments_of(use)) {
    const MeshType next = found(use, segment);
    if (!type) type = next;
    if (*type == next) continue;
    error(use, segment, "has pieces of different types");
    break;
  }
  return type.value_or(unstated_type(mesh_));
}

bool TypeChecker::expect(const Use& use, std::size_t segment, const MeshType& found, mesh::Axis axis,
                         const std::vector<AxisType>& admitted) {
  if (mesh_[axis] == 1) return true;
  if (std::find(admitted.begin(), admitted.end(), found[axis]) != admitted.end()) return true;
  if (state(use, segment).content == TypeState::Content::kNothing) return false;  // already reported
  if (!reported_here_.emplace(use.arg, static_cast<int>(axis)).second) return false;
  return error(use, segment,
               admitted.empty()
                   ? fmt::format("is {} over {}, which no rule admits", phrase_of(found[axis]), mesh::name_of(axis))
                   : fmt::format("is {} over {} where the op needs {}", phrase_of(found[axis]), mesh::name_of(axis),
                                 admitted_text(admitted)));
}

void TypeChecker::leave(const Use& use, std::size_t segment, MeshType type) {
  state(use, segment) = {TypeState::Content::kTyped, on_single_axes(type)};
}

void TypeChecker::leave(const Use& use, const MeshType& type) {
  for (const std::size_t segment : segments_of(use)) leave(use, segment, type);
}

void TypeChecker::add(const Use& use, std::size_t segment, const MeshType& term) {
  const TypeState& held = state(use, segment);
  const MeshType type = on_single_axes(term);
  if (held.content == TypeState::Content::kNothing) found(use, segment);  // reports it
  if (held.content == TypeState::Content::kTyped)
    for (const mesh::Axis axis : kMeshAxes)
      if (!(held.type[axis] == type[axis]) && reported_here_.emplace(use.arg, static_cast<int>(axis)).second)
        error(use, segment,
              fmt::format("is {} over {}, and the op adds to it what is {}", phrase_of(held.type[axis]),
                          mesh::name_of(axis), phrase_of(type[axis])));
  leave(use, segment, type);
}

void TypeChecker::put(const Use& use, std::size_t segment, const MeshType& type) {
  if (use.access == Access::kUpdate)
    add(use, segment, type);
  else
    leave(use, segment, type);
}

const Use* TypeChecker::sums() {
  const Use* use = find(Arg::kScalars);
  if (!use || buffer_of(*use).role == Value::kScalars) return use;
  error(*use, 0, "holds none of the step's sums");
  return nullptr;
}

std::vector<mesh::Axis> TypeChecker::axes(Axis group) const {
  std::vector<mesh::Axis> along;
  for (const mesh::Axis axis : kMeshAxes)
    if (mesh_[axis] > 1 && axes_of(group).contains(axis)) along.push_back(axis);
  return along;
}

MeshType TypeChecker::own_rows(AxisType tensor, AxisType context, AxisType experts) const {
  MeshType type;
  type[mesh::Axis::kPp] = kVarying;
  type[mesh::Axis::kDpReplicate] = type[mesh::Axis::kDpShard] = sharded(Dimension::kBatch);
  type[mesh::Axis::kEp] = experts;
  type[mesh::Axis::kCp] = context;
  type[mesh::Axis::kTp] = tensor;
  return on_single_axes(type);
}

MeshType TypeChecker::sum_over_rows() const {
  MeshType type = own_rows(kInvariant, kPartial);
  type[mesh::Axis::kPp] = type[mesh::Axis::kDpReplicate] = type[mesh::Axis::kDpShard] = type[mesh::Axis::kEp] =
      kPartial;
  return on_single_axes(type);
}

MeshType TypeChecker::on_single_axes(MeshType type) const {
  for (const mesh::Axis axis : kMeshAxes)
    if (mesh_[axis] == 1) type[axis] = {};
  return type;
}

std::vector<std::string> type_errors(const Program& program) {
  if (one_rank(program.grid.sizes)) return {};
  TypeChecker checker(program);
  checker.run();
  if (checker.errors().empty() && program.states_types) checker.compare_stated();
  return checker.errors();
}

Program with_types(Program program) {
  if (one_rank(program.grid.sizes)) return program;
  TypeChecker checker(program);
  checker.run();
  for (std::size_t b = 0; b < program.bodies.size(); ++b)
    for (std::size_t k = 0; k < program.bodies[b].steps.size(); ++k)
      for (std::size_t i = 0; i < program.bodies[b].steps[k].operands.size(); ++i)
        program.bodies[b].steps[k].operands[i].type =
            checker.inferred(b, k, i).value_or(unstated_type(program.grid.sizes));
  return program;
}

}  // namespace molen::program
