#include "train/verify_layouts.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "comm/self/self.h"
#include "program/build.h"
#include "program/verify.h"

namespace molen::train {
namespace {

program::Setting with_type(program::Setting s, DType compute) {
  s.compute = compute;
  s.master = s.reduce = compute == DType::kF64 ? DType::kF64 : DType::kF32;
  s.kernels = compute == DType::kF64 ? arch::Kernels::kReference : arch::Kernels::kFused;
  return s;
}

program::Setting alone(program::Setting s) {
  s.mesh = mesh::kOne;
  s.zero = 0;
  s.own_over_dp = s.sequence_parallel = false;
  s.tensor_chunks = 1;
  s.context_form = {};
  s.recompute = {};
  s.offload = {};
  s.pipeline = {};
  return s;
}

program::Program sound(const arch::Architecture& arch, const program::Setting& setting, const std::string& name) {
  program::Program p = program::build(arch, setting);
  program::require_sound(p, name);
  return p;
}

// The samples in micro-batches of another size.
ReadSamples in_rows(const ReadSamples& read, std::int64_t from, std::int64_t to, std::int64_t sequence) {
  if (from == to) return read;
  return [=](std::int64_t first, std::int64_t count, const exec::MicroBatch& batch) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(from * sequence)), labels(ids.size()), documents(ids.size());
    std::int64_t valid = 0;
    for (std::int64_t row = 0; row < to; row += from) {
      valid += read(first + row, std::clamp<std::int64_t>(count - row, 0, std::min(from, to - row)),
                    {ids.data(), labels.data(), documents.data()});
      const std::int64_t begin = row * sequence, tokens = std::min(from, to - row) * sequence;
      std::copy_n(ids.begin(), tokens, batch.ids + begin);
      std::copy_n(labels.begin(), tokens, batch.labels + begin);
      if (batch.document_start) std::copy_n(documents.begin(), tokens, batch.document_start + begin);
    }
    return valid;
  };
}

}  // namespace

double VerifyRow::ratio() const {
  double worst = 0;
  for (const auto& [off, bound] : {std::pair{difference.loss, bounds.loss},
                                   {difference.norm, bounds.norm},
                                   {difference.parameters, bounds.parameters},
                                   {difference.gradients, bounds.gradients}}) {
    // No bound, however wide, lets through what is not finite: a maximum would drop NaN, and inf / inf is one.
    if (!std::isfinite(off)) return INFINITY;
    worst = std::max(worst, off / bound);
  }
  return worst;
}

std::vector<VerifyRow> verify_layouts(const arch::Architecture& arch, const program::Setting& base,
                                      const std::vector<plan::Layout>& layouts, const ReadSamples& read,
                                      const VerifyOptions& options, comm::Communicator& world,
                                      const std::function<void(const VerifyRow&)>& progress) {
  std::vector<VerifyRow> rows;
  for (const DType compute : options.compute) {
    Trial trial;
    trial.steps = compute == DType::kF64 ? options.steps : 1;
    const auto setting = with_type(base, compute);
    Trial there = trial;
    if (options.cuda) there.options.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*options.cuda));
    Outcome reference;
    if (world.rank() == 0) reference = prove(sound(arch, alone(setting), "one rank"), *comm::make_self(), read, trial);
    for (const plan::Layout& layout : layouts) {
      const double start = now().value;
      auto of_ranks = with_type(layout.setting, compute);
      if (options.cuda) of_ranks.kernels = arch::Kernels::kAten;
      const auto stages = program::build_stages(arch, of_ranks, options.schedule);
      if (const auto findings = program::verify_world(stages); !findings.empty())
        throw UsageError("{}: {}", layout.name, findings.front().text);
      const auto& p =
          stages.at(static_cast<std::size_t>(program::at_rank(layout.setting, world.rank()).pipeline.stage));
      program::require_sound(p, layout.name);
      const Outcome outcome =
          prove(p, world, in_rows(read, base.micro_batch, layout.setting.micro_batch, base.sequence), there);
      if (world.rank() != 0) continue;
      VerifyRow row{layout.name,         compute,
                    trial.steps,         difference(reference, outcome),
                    bounds_of(p),        program::peak_of(stages).value,
                    now().value - start, ""};
      if (!(row.ratio() <= 1)) row.failure = first_difference(stages, reference, outcome, row.bounds);
      if (progress) progress(row);
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace molen::train
