#include "prove/locate.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <ranges>

#include "base/error.h"
#include "comm/self/self.h"
#include "exec/bind_context.h"
#include "program/ir/layout.h"
#include "program/parts/part.h"
#include "program/values/of_setting.h"
#include "program/values/signature.h"

namespace molen::prove {
namespace {

using program::Value;

struct Key {
  Value value;
  std::int64_t layer;
  auto operator<=>(const Key&) const = default;
};

// Returns the values in the order in which one rank computes them for a micro-batch: the results that each part leaves
// for other parts, and their gradients. Without `inner`, returns only the values of the residual stream. Rows in the
// order of experts are left out, because their order depends on how a batch is cut into micro-batches.
std::vector<Key> keys_of(const arch::Architecture& arch, bool inner) {
  std::vector<Key> keys;
  const auto add = [&](const std::vector<program::PartOperand>& operands, std::int64_t layer, bool backward) {
    for (const program::PartOperand& o : operands) {
      const bool of_layer = program::class_of(o.value) == program::ValueClass::kLayer && o.after == 0;
      if (!of_layer || program::in_expert_order(o.value) || !writes(o.access) ||
          (!backward && o.arg != program::Arg::kY))
        continue;
      if (inner || o.exchange == program::Exchange::kSums) keys.push_back({o.value, layer});
    }
  };
  for (std::int64_t l = 0; l < arch.layers; ++l) {
    keys.push_back({Value::kResidual, l});
    for (const arch::Part part : arch::parts_of_layer(arch, l)) add(program::declaration_of(part).forward, l, false);
  }
  keys.push_back({Value::kResidual, arch.layers});
  keys.push_back({Value::kDResidual, arch.layers});
  for (std::int64_t l = arch.layers - 1; l >= 0; --l)
    for (const arch::Part part : std::views::reverse(arch::parts_of_layer(arch, l)))
      add(program::declaration_of(part).backward, l, true);
  return keys;
}

// Returns whether `keys_of` may name a value: activations and their gradients, and the contents of a micro-batch.
bool located(Value value) {
  const auto of = program::class_of(value);
  return of == program::ValueClass::kLayer || of == program::ValueClass::kBatch;
}

// The rows that a rank has written of one value in one step. Each row is `width` wide and belongs to one token of the
// batch.
struct Rows {
  std::vector<std::int64_t> tokens;  // sample x S + position
  std::vector<at::Tensor> values;    // fp64 [consecutive tokens, width]
  std::vector<std::string> writers;  // the op that wrote each of `values`
};

// Keeps the values that the ops of one step write; a later write replaces an earlier one. A value that is copied to the
// host and back is written three times, and the last write counts.
class Capture {
 public:
  Capture(const program::Program& program, const mesh::PerAxis& at) : p_(program), at_(at) {
    const auto& s = p_.setting;
    std::vector<PositionRun> runs = exec::positions_of(p_.grid, s.sequence, at);
    if (runs.empty()) runs = {{0, s.sequence}};
    for (const PositionRun& run : runs)
      for (std::int64_t t = run.first; t < run.last; ++t) positions_.push_back(t);
    if (s.sharded_rows())
      for (const std::int64_t chunk : program::pieces_of_rows(s.rows())) {
        const auto [first, last] = program::row_range(s.rows(), p_.grid, at, chunk);
        const std::int64_t begin = program::rows_of_piece(s.rows(), chunk).first;
        for (std::int64_t row = first; row < last; ++row) kept_.push_back(begin + row);
      }
    else
      for (std::int64_t row = 0; row < s.tokens(); ++row) kept_.push_back(row);
  }

  void written(const program::Expanded& e, const std::vector<at::Tensor>& buffers) {
    if (e.micro_batch < 0) return;
    const auto signature = program::signature(p_, e.step->op, program::unit_of_step(p_, *e.step));
    std::size_t written = 0;
    for (const program::Operand& o : signature.operands) {
      if (!writes(o.access) || written == buffers.size()) continue;
      const at::Tensor& buffer = buffers[written++];
      if (!located(o.value)) continue;
      const at::Tensor values = buffer.to(at::kCPU, at::kDouble, false, true);
      const std::lock_guard lock(mutex_);
      made_[{Key{o.value, o.layer}, e.micro_batch}] = {values, writer_of(e)};
    }
  }

  // Returns the rows of a value, without tokens beyond the batch.
  Rows rows(const Key& key) const {
    const auto& s = p_.setting;
    Rows rows;
    for (auto it = made_.lower_bound({key, 0}); it != made_.end() && it->first.first == key; ++it) {
      const std::int64_t slot = (it->first.second * s.data_ranks() + program::data_rank(p_.grid, at_)) * s.micro_batch;
      // Every buffer has as many rows as the rank that keeps the most.
      const at::Tensor values = it->second.values.view({program::kept_rows(s.rows(), p_.grid, {}), -1});
      for (std::int64_t row = 0; row < static_cast<std::int64_t>(kept_.size()); ++row) {
        const std::int64_t local = s.local_sequence(), token = kept_[static_cast<std::size_t>(row)],
                           sample = slot + token / local;
        if (sample >= s.global_batch) continue;
        rows.tokens.push_back(sample * s.sequence + positions_[static_cast<std::size_t>(token % local)]);
        rows.values.push_back(values[row]);
        rows.writers.push_back(it->second.writer);
      }
    }
    return rows;
  }

 private:
  struct Made {
    at::Tensor values;
    std::string writer;
  };

  std::string writer_of(const program::Expanded& e) const {
    std::string text = fmt::format("body {}, op %{} ({}", p_.bodies[static_cast<std::size_t>(e.body)].name, e.op,
                                   program::kind_of(e.step->op));
    if (const auto* c = std::get_if<program::Compute>(&e.step->op); c && c->layer >= 0)
      text += fmt::format(", layer {}", c->layer);
    return text + fmt::format(", micro-batch {})", e.micro_batch);
  }

  const program::Program& p_;
  const mesh::PerAxis at_;
  // positions of the rank's tokens in a sequence; the kept rows among these tokens
  std::vector<std::int64_t> positions_, kept_;
  std::mutex mutex_;  // streams write concurrently
  std::map<std::pair<Key, std::int64_t>, Made> made_;
};

// Runs one step of `program` under capture.
Outcome captured(const program::Program& program, comm::Communicator& world, const ReadSamples& read, Trial trial,
                 Capture& capture) {
  trial.steps = 1;
  trial.options.written = [&](const program::Expanded& e, const std::vector<at::Tensor>& buffers) {
    capture.written(e, buffers);
  };
  return prove(program, world, read, trial);
}

mesh::PerAxis coordinates_of(const program::Setting& s, int rank) {
  return mesh::Mesh(s.mesh, s.ranks(), s.order).coordinates(rank);
}

// Returns rank 0's value, whole, on every rank: [tokens of the batch, width].
at::Tensor whole_of(const Capture* reference, const Key& key, const program::Setting& s, comm::Communicator& world) {
  std::int64_t width = 0;
  at::Tensor whole;
  if (reference) {
    const Rows rows = reference->rows(key);
    if (!rows.values.empty()) width = rows.values.front().numel();
    whole = at::full({s.global_batch * s.sequence, width}, NAN, at::kDouble);
    for (std::size_t i = 0; i < rows.tokens.size(); ++i) whole[rows.tokens[i]].copy_(rows.values[i]);
  }
  world.broadcast(&width, 1, DType::kI64, 0);
  if (!whole.defined()) whole = at::empty({s.global_batch * s.sequence, width}, at::kDouble);
  if (width > 0) world.broadcast(whole.data_ptr(), whole.numel(), DType::kF64, 0);
  return whole;
}

// Describes the first token, in the order of the batch, at which a value differs on this rank. Returns an empty text
// when none differs.
std::string difference_at(const Rows& rows, const at::Tensor& whole, const Key& key, double bound,
                          const program::Setting& s, int rank) {
  if (whole.numel() == 0) return "";
  const double scale = whole.abs().max().item<double>();
  std::size_t first = rows.tokens.size();
  double off_first = 0;
  for (std::size_t i = 0; i < rows.tokens.size(); ++i) {
    if (rows.values[i].numel() != whole.size(1)) continue;
    const double off = (rows.values[i] - whole[rows.tokens[i]]).abs().max().item<double>() / scale;
    if (!(off <= bound) && (first == rows.tokens.size() || rows.tokens[i] < rows.tokens[first]))
      first = i, off_first = off;
  }
  if (first == rows.tokens.size()) return "";
  return fmt::format("{} of layer {} at sample {}, token {} (off by {:.1e} of its largest value), of {} on rank {}",
                     program::name_of(key.value), key.layer, rows.tokens[first] / s.sequence,
                     rows.tokens[first] % s.sequence, off_first, rows.writers[first], rank);
}

// Returns on every rank the text of the first rank that has one.
std::string first_text(const std::string& text, comm::Communicator& world) {
  std::int64_t who = text.empty() ? world.size() : world.rank();
  world.all_reduce(&who, 1, DType::kI64, comm::Reduce::kMin);
  if (who == world.size()) return "";
  auto size = static_cast<std::int64_t>(text.size());
  world.broadcast(&size, 1, DType::kI64, static_cast<int>(who));
  std::string all = text;
  all.resize(static_cast<std::size_t>(size));
  world.broadcast(all.data(), size, DType::kU8, static_cast<int>(who));
  return all;
}

// Returns the first token that no rank has a value for; -1 when all tokens have one.
std::int64_t missing(const Rows& rows, const at::Tensor& whole, comm::Communicator& world) {
  at::Tensor made = at::zeros({std::max<std::int64_t>(1, whole.size(0))}, at::kLong);
  for (const std::int64_t token : rows.tokens) made[token] = 1;
  world.all_reduce(made.data_ptr(), made.numel(), DType::kI64, comm::Reduce::kMax);
  return whole.numel() == 0 || made.min().item<std::int64_t>() == 1 ? -1 : made.argmin().item<std::int64_t>();
}

}  // namespace

std::string locate_difference(const program::Program& reference, const ReadSamples& read_reference,
                              const std::vector<program::Program>& stages, const ReadSamples& read, const Trial& trial,
                              const Bounds& bounds, comm::Communicator& world) {
  const program::Setting& s = stages.front().setting;
  const auto& p = stages.at(static_cast<std::size_t>(program::at_rank(s, world.rank()).pipeline.stage));
  Capture alone(reference, {}), here(p, coordinates_of(s, world.rank()));
  Outcome one;
  Trial on_host = trial;
  on_host.options = {};
  if (world.rank() == 0) one = captured(reference, *comm::make_self(), read_reference, on_host, alone);
  const Outcome many = captured(p, world, read, trial, here);
  for (const Key& key : keys_of(p.arch, !s.tensor())) {
    const at::Tensor whole = whole_of(world.rank() == 0 ? &alone : nullptr, key, s, world);
    const Rows rows = here.rows(key);
    std::string text = first_text(difference_at(rows, whole, key, bounds.gradients, s, world.rank()), world);
    if (!text.empty()) return text;
    if (const std::int64_t token = missing(rows, whole, world); token >= 0)
      return fmt::format("{} of layer {} at sample {}, token {}, which no op writes", program::name_of(key.value),
                         key.layer, token / s.sequence, token % s.sequence);
  }
  std::string parameters;
  if (world.rank() == 0) parameters = first_difference(stages, one, many, bounds);
  return first_text(parameters, world);  // rank 0 always has one
}

}  // namespace molen::prove
