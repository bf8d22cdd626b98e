#include "program/ir/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "program/values/of_op.h"
#include "program/values/optimizer.h"

namespace molen::program {

std::string_view name_of(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::kPersistent:
      return "persistent";
    case Lifetime::kTransient:
      return "transient";
    case Lifetime::kExternal:
      return "external";
    case Lifetime::kMicroBatch:
      return "micro_batch";
    case Lifetime::kConstant:
      return "constant";
  }
  throw Error("unknown lifetime {}", static_cast<int>(lifetime));
}

std::string_view name_of(Place place) {
  return place == Place::kHost ? "host" : "device";
}

std::string text_of(const Offload& offload) {
  std::string text;
  for (const auto& [name, on] : kOffloads)
    if (offload.*on) text += fmt::format("{}{}", text.empty() ? "" : ",", name);
  return text.empty() ? "none" : text;
}

Setting at_rank(Setting s, int rank) {
  if (s.pipelined()) s.pipeline.stage = mesh::Mesh(s.mesh, s.ranks(), s.order).coordinates(rank)[mesh::Axis::kPp];
  return s;
}

std::string_view name_of(ContextForm form) {
  return form == ContextForm::kRing ? "ring" : "gather";
}

std::string sharding_text(const Setting& s) {
  std::string text = fmt::format("ZeRO-{}", s.zero);
  if (s.replicas() > 1 && s.sharded_gradients())
    text += fmt::format(" over dp_replicate {} x dp_shard {}{}{}", s.replicas(), s.mesh[mesh::Axis::kDpShard],
                        s.shares_experts() ? fmt::format(" x ep {}", s.expert_ranks()) : "",
                        s.context() ? fmt::format(" x cp {}", s.context_ranks()) : "");
  text += s.own_over_dp ? ", optimizer states over all" : "";
  if (s.offload.any()) text += fmt::format(", {} on the host", text_of(s.offload));
  if (s.shares_experts()) text += fmt::format(", {} expert ranks", s.expert_ranks());
  if (s.expert_tiles > 1) text += fmt::format(" in {} tiles", s.expert_tiles);
  if (s.context()) text += fmt::format(", {} context ranks{}", s.context_ranks(), s.ring() ? " in a ring" : "");
  if (s.tensor())
    text += fmt::format(", {} tensor ranks{}", s.tensor_ranks(), s.sequence_parallel ? ", sequence parallel" : "");
  if (s.rows_in_pieces()) text += fmt::format(" in {} pieces", s.tensor_chunks);
  if (s.pipelined()) {
    text += fmt::format(", {} stages, {}", s.stages(), name_of(s.pipeline.schedule));
    if (s.pipeline.chunks > 1) text += fmt::format(" of {} chunks each", s.pipeline.chunks);
  }
  return text;
}

namespace {

// Whether one of the stage's chunks reads parameters of the unit.
bool needs(const Program& p, const Unit& unit) {
  if (unit.of_layers()) return true;
  return unit.name == "embed" ? p.embeds() || (p.arch.tied && p.has_head()) : p.has_head();
}

}  // namespace

namespace {

void check_pieces(const Setting& s) {
  if (s.tensor_chunks < 1 || s.tensor_chunks > kMaxTensorChunks)
    throw UsageError("parallel.tensor_chunks: 1 to {} pieces, not {}", kMaxTensorChunks, s.tensor_chunks);
  if (s.tensor_chunks > 1 && !s.sharded_rows())
    throw UsageError(
        "parallel.tensor_chunks: rows can travel in pieces only with sequence parallelism; set parallel.sequence = "
        "true");
  if (s.rows_in_pieces() && s.tokens() / s.tensor_chunks < s.tensor_ranks())
    throw UsageError(
        "parallel.tensor_chunks: {} tokens of a micro-batch in {} pieces have no row for each of {} tensor "
        "ranks",
        s.tokens(), s.tensor_chunks, s.tensor_ranks());
}

void check_expert_tiles(const arch::Architecture& arch, const Setting& s) {
  if (s.expert_tiles < 1 || s.expert_tiles > kMaxExpertTiles)
    throw UsageError("parallel.expert_tiles: 1 to {} tiles, not {}", kMaxExpertTiles, s.expert_tiles);
  if (s.expert_tiles == 1) return;
  if (!s.shares_experts())
    throw UsageError("parallel.expert_tiles: no expert ranks exchange rows in {} tiles; set parallel.expert above 1",
                     s.expert_tiles);
  const std::int64_t experts = arch.sparse_experts().count / s.expert_ranks();
  if (s.expert_tiles > experts)
    throw UsageError("parallel.expert_tiles: the {} experts that a rank has of each layer cannot be cut into {} tiles",
                     experts, s.expert_tiles);
}

void check_expert_ranks(const arch::Architecture& arch, const Setting& s) {
  if (!s.shares_experts()) return;
  if (!arch.sparse()) throw UsageError("parallel.expert: {} ranks have no experts to share", s.expert_ranks());
  if (arch.sparse_experts().count % s.expert_ranks() != 0)
    throw UsageError("parallel.expert: {} ranks cannot share {} experts evenly", s.expert_ranks(),
                     arch.sparse_experts().count);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto rows = arch::most_rows_of_experts(
      arch.sparse_experts(), {s.micro_batch, s.local_sequence(), s.context_ranks()}, s.expert_ranks());
  if (rows > kMost)
    throw UsageError("parallel.expert: the experts of a rank may get {} rows, and row numbers end at {}", rows, kMost);
}

// Notes which parameters must not be divided, and their shapes over all tensor ranks.
void mark_whole(Program& p) {
  const std::vector<arch::Parameter> all = arch::parameters(p.arch);
  for (Unit& unit : p.units)
    for (UnitEntry& entry : unit.entries) {
      const auto index = static_cast<std::size_t>(entry.parameter);
      const bool by_load = arch::moved_by_load(all[index].role), whole = p.optimizer->updates_whole(all[index]);
      if (by_load || whole) entry.whole = p.parameters[index].elements();
      if (!whole) continue;
      const std::vector<std::int64_t>& shape = all[index].shape;
      entry.rows = shape.at(0);
      entry.columns = shape.size() > 1 ? shape[1] : 0;
    }
}

}  // namespace

Program describe(const arch::Architecture& arch, const Setting& setting) {
  check_pieces(setting);
  Program p;
  p.arch = arch;
  // A capacity applies to training only: a model that is evaluated, and later used, drops no choice.
  if (p.arch.experts && setting.purpose == Purpose::kEvaluate) p.arch.experts->capacity = 0.0;
  p.setting = setting;
  arch::validate_tensor_parallel(arch, setting.tensor_ranks());
  check_expert_ranks(p.arch, setting);
  check_expert_tiles(p.arch, setting);
  p.local = arch::tensor_local(p.arch, setting.tensor_ranks());
  p.parameters = arch::tensor_local_parameters(arch, setting.tensor_ranks());
  p.chunks = chunks_of(arch, setting);
  p.units = make_units(p.chunks, p.parameters, setting.tensor_ranks(), setting.unit_layers, setting.expert_ranks());
  std::erase_if(p.units, [&](const Unit& unit) { return !needs(p, unit); });
  p.optimizer = &optimizer_named(setting.optimizer);
  if (p.optimizer->has_whole() || arch.biases_router()) mark_whole(p);
  p.grid = grid_of(setting);
  return p;
}

bool Program::embeds() const {
  return std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.embed; });
}

bool Program::has_head() const {
  return std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.head; });
}

bool Program::shared_by_ends(int unit) const {
  return arch.tied && embeds() != has_head() && units.at(static_cast<std::size_t>(unit)).name == "embed";
}

int Program::find_buffer(const std::string& name) const {
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].name == name) return static_cast<int>(i);
  return -1;
}

int Program::buffer(const std::string& name) const {
  const int id = find_buffer(name);
  MOLEN_CHECK(id >= 0, "the program has no buffer '{}'", name);
  return id;
}

int Program::find_buffer(Value role, int unit) const {
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].role == role && buffers[i].unit == unit && buffers[i].copy == 0) return static_cast<int>(i);
  return -1;
}

int Program::find_unit(std::string_view name) const {
  for (std::size_t u = 0; u < units.size(); ++u)
    if (units[u].name == name) return static_cast<int>(u);
  return -1;
}

std::vector<std::int64_t> clocks_set_by(const Program& program) {
  std::set<std::int64_t, std::greater<>> clocks;
  std::set<int> bodies;
  for (const Instance& instance : program.schedule)
    if (bodies.insert(instance.body).second)
      for (const Step& step : program.bodies.at(static_cast<std::size_t>(instance.body)).steps)
        if (const auto* set = std::get_if<SetClock>(&step.op)) clocks.insert(set->khz);
  return {clocks.begin(), clocks.end()};
}

int Program::num_ops() const {
  std::size_t count = 0;
  for (const auto& i : schedule) count += bodies.at(static_cast<std::size_t>(i.body)).steps.size();
  return static_cast<int>(count);
}

std::string place_of(const Program& p, std::size_t body, std::size_t op) {
  const Step& step = p.bodies.at(body).steps.at(op);
  const std::string line = step.line.number > 0 ? fmt::format("line {}: ", step.line.number) : "";
  return fmt::format("{}body {}, op %{} ({})", line, p.bodies[body].name, op, kind_of(step.op));
}

std::string text_of(const Program& p, const Expanded& e) {
  std::string text = place_of(p, static_cast<std::size_t>(e.body), static_cast<std::size_t>(e.op));
  text.pop_back();  // the parenthesis, before more of the op
  if (const auto* c = std::get_if<Compute>(&e.step->op); c && c->layer >= 0)
    text += fmt::format(", layer {}", c->layer);
  const auto portion = std::visit(
      [](const auto& op) -> std::int64_t {
        if constexpr (requires { op.portion; }) return op.portion;
        return -1;
      },
      e.step->op);
  if (portion >= 0) text += fmt::format(", {} {}", portion_word(e.step->op), portion);
  if (e.micro_batch >= 0) text += fmt::format(", micro-batch {}", e.micro_batch);
  return text + ")";
}

std::int64_t expanded_size(const Program& program) {
  std::vector<std::int64_t> sizes;
  for (const Body& body : program.bodies) {
    auto size = static_cast<std::int64_t>(body.steps.size());
    for (const Step& step : body.steps) size += static_cast<std::int64_t>(step.after.size());
    sizes.push_back(size);
  }
  std::int64_t sum = 0;
  for (const Instance& i : program.schedule) sum += sizes.at(static_cast<std::size_t>(i.body));
  return sum;
}

std::vector<Expanded> expand(const Program& program) {
  std::vector<Expanded> all;
  all.reserve(static_cast<std::size_t>(program.num_ops()));
  // Start of the latest instance of each body, -1 before the first.
  std::vector<int> latest(program.bodies.size(), -1);
  for (std::size_t i = 0; i < program.schedule.size(); ++i) {
    const Instance& instance = program.schedule[i];
    const Body& body = program.bodies.at(static_cast<std::size_t>(instance.body));
    const int start = static_cast<int>(all.size());
    for (std::size_t k = 0; k < body.steps.size(); ++k) {
      Expanded e{static_cast<int>(i), instance.body, static_cast<int>(k), instance.micro_batch, &body.steps[k], {}};
      e.after.reserve(body.steps[k].after.size());
      for (const OpRef& ref : body.steps[k].after) {
        const int base = ref.body < 0 ? start : latest.at(static_cast<std::size_t>(ref.body));
        if (base >= 0) e.after.push_back(base + ref.op);
      }
      all.push_back(std::move(e));
    }
    latest[static_cast<std::size_t>(instance.body)] = start;
  }
  return all;
}

std::vector<int> communication_before(const std::vector<Expanded>& ops) {
  std::vector<int> before(ops.size(), -1);
  int latest = -1;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (is_communication(ops[i].step->op)) before[i] = std::exchange(latest, static_cast<int>(i));
  return before;
}

}  // namespace molen::program
