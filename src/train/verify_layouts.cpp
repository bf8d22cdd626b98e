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
    const std::int64_t valid = read(first, count, {ids.data(), labels.data(), documents.data()});
    std::copy_n(ids.begin(), to * sequence, batch.ids);
    std::copy_n(labels.begin(), to * sequence, batch.labels);
    if (batch.document_start) std::copy_n(documents.begin(), to * sequence, batch.document_start);
    return valid;
  };
}

}  // namespace

double VerifyRow::ratio() const {
  const double worst = std::max({difference.loss / bounds.loss, difference.norm / bounds.norm,
                                 difference.parameters / bounds.parameters, difference.gradients / bounds.gradients});
  return std::isnan(worst) ? INFINITY : worst;
}

std::vector<VerifyRow> verify_layouts(const arch::Architecture& arch, const program::Setting& base,
                                      const ReadSamples& read, const VerifyOptions& options, comm::Communicator& world,
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
    auto of_ranks = setting;
    if (options.cuda) of_ranks.kernels = arch::Kernels::kAten;
    auto layouts = plan::layouts_of(arch, of_ranks, world.size(), options.layouts);
    if (options.pairs) layouts = plan::covering_pairs(layouts);
    for (const plan::Layout& layout : layouts) {
      const double start = now().value;
      const auto stages = program::build_stages(arch, layout.setting);
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
                    now().value - start, "",
                    outcome.traffic};
      if (!(row.ratio() <= 1)) row.failure = first_difference(stages, reference, outcome, row.bounds);
      if (progress) progress(row);
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace molen::train
