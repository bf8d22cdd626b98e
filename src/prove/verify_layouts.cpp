#include "prove/verify_layouts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "comm/self/self.h"
#include "launch/require_memory.h"
#include "launch/throw_on_all_ranks.h"
#include "plan/memory_need.h"
#include "program/build/build.h"
#include "program/provenance/provenance.h"
#include "prove/locate.h"

namespace molen::prove {
namespace {

// Returns the setting in type `compute`, with the kernels of the host or of the device that the ranks run on.
program::Setting typed(program::Setting s, const arch::Architecture& arch, DType compute, const VerifyOptions& options,
                       bool cuda) {
  s.compute = compute;
  s.master = s.reduce = compute == DType::kF64 ? DType::kF64 : DType::kF32;
  s.kernels = cuda ? arch::Kernels::kAten : compute == DType::kF64 ? arch::Kernels::kReference : arch::Kernels::kFused;
  s.other_kernels.clear();
  if (options.flash_attention) return s;
  if (const auto why = plan::leave_tiles(s, arch, cuda)) throw UsageError("math.flash_attention: {}", *why);
  return s;
}

program::Setting alone(program::Setting s) {
  s.mesh = mesh::kOne;
  s.zero = 0;
  s.own_over_dp = s.sequence_parallel = false;
  s.tensor_chunks = s.expert_tiles = 1;
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

// The memory that one rank needs, and the layout that needs it.
struct Largest {
  std::string what;
  plan::MemoryNeed need;
};

// Returns the largest needs of host and of device memory among the reference and the layouts. When all ranks are on one
// host, the need is the mean over the ranks, because they share the memory. Otherwise it is the need of the rank that
// needs most.
std::array<Largest, 2> largest_of(const arch::Architecture& arch, const program::Setting& base,
                                  const std::vector<plan::Layout>& layouts, const VerifyOptions& options,
                                  const plan::Machine& machine) {
  const OutcomeBytes outcome = outcome_bytes(arch);
  const bool one_host = machine.local_ranks == machine.ranks;
  // memory that only rank 0 takes is divided by this number of ranks
  const std::int64_t alone_of = one_host ? machine.ranks : 1;
  std::array<Largest, 2> largest;
  const auto consider = [&](const std::string& what, const plan::MemoryNeed& need) {
    if (need.host > largest[0].need.host) largest[0] = {what, need};
    if (need.device > largest[1].need.device) largest[1] = {what, need};
  };
  for (const DType compute : options.compute) {
    const auto reference = plan::memory_needs(arch, typed(alone(base), arch, compute, options, false)).front();
    consider(fmt::format("one rank in {}", name_of(compute)),
             {Bytes(0), Bytes((reference.total() + outcome.making).value / alone_of)});
    for (const plan::Layout& layout : layouts) {
      plan::MemoryNeed sum, most;
      const auto stages = plan::memory_needs(
          arch, typed(layout.setting, arch, compute, options, options.cuda.has_value()), options.schedule);
      for (const plan::MemoryNeed& stage : stages) {
        const plan::MemoryNeed rank{options.cuda ? stage.device : Bytes(0), options.cuda ? stage.host : stage.total()};
        sum = {sum.device + rank.device, sum.host + rank.host};
        most = {std::max(most.device, rank.device), std::max(most.host, rank.host)};
      }
      const auto count = static_cast<std::int64_t>(stages.size());
      plan::MemoryNeed need =
          one_host ? plan::MemoryNeed{Bytes(sum.device.value / count), Bytes(sum.host.value / count)} : most;
      need.host += outcome.making + Bytes(outcome.made.value / alone_of);
      consider(fmt::format("the layout {} in {}", layout.name, name_of(compute)), need);
    }
  }
  return largest;
}

// Returns the samples in micro-batches of another size.
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

void require_memory_of_layouts(const arch::Architecture& arch, const program::Setting& base,
                               const std::vector<plan::Layout>& layouts, const VerifyOptions& options,
                               const plan::Machine& machine, comm::Communicator& world) {
  std::array<Largest, 2> largest;
  std::array<std::int64_t, 4> bytes{};
  launch::throw_on_all_ranks(world, [&] {  // rank 0 plans for all
    if (world.rank() != 0) return;
    largest = largest_of(arch, base, layouts, options, machine);
    bytes = {largest[0].need.device.value, largest[0].need.host.value, largest[1].need.device.value,
             largest[1].need.host.value};
  });
  world.broadcast(bytes.data(), bytes.size(), DType::kI64, 0);
  for (std::size_t i = 0; i < largest.size(); ++i) {
    launch::MemoryRequest request;
    request.what = launch::broadcast_text(largest[i].what, world) + ", with the tensors to compare,";
    request.need = {Bytes(bytes[2 * i]), Bytes(bytes[2 * i + 1])};
    request.sharing = world.size();
    launch::require_memory(request, machine, world);
  }
}

std::vector<VerifyRow> verify_layouts(const arch::Architecture& arch, const program::Setting& base,
                                      const std::vector<plan::Layout>& layouts, const ReadSamples& read,
                                      const VerifyOptions& options, comm::Communicator& world,
                                      const std::function<void(const VerifyRow&)>& progress) {
  std::vector<VerifyRow> rows;
  for (const DType compute : options.compute) {
    Trial trial;
    trial.steps = compute == DType::kF64 ? options.steps : 1;
    Trial there = trial;
    if (options.cuda) there.options.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*options.cuda));
    const program::Program one = sound(arch, typed(alone(base), arch, compute, options, false), "one rank");
    Outcome reference;
    if (world.rank() == 0) reference = prove(one, *comm::make_self(), read, trial);
    for (const plan::Layout& layout : layouts) {
      const double start = now().value;
      const auto stages = program::build_stages(
          arch, typed(layout.setting, arch, compute, options, options.cuda.has_value()), options.schedule);
      if (const auto findings = program::check_world(stages); !findings.empty())
        throw UsageError("{}: {}", layout.name, findings.front().text);
      const auto& p =
          stages.at(static_cast<std::size_t>(program::at_rank(layout.setting, world.rank()).pipeline.stage));
      program::require_sound(p, layout.name);
      const ReadSamples cut = in_rows(read, base.micro_batch, layout.setting.micro_batch, base.sequence);
      const Outcome outcome = prove(p, world, cut, there);
      VerifyRow row{layout.name, compute, trial.steps, {}, bounds_of(p), program::peak_of(stages).value, 0, "", {}};
      // Rank 0 decides whether the outcomes differ; all ranks then search for the place.
      std::int64_t same = 1;
      if (world.rank() == 0) {
        row.difference = difference(reference, outcome);
        same = row.ratio() <= 1;
      }
      world.broadcast(&same, 1, DType::kI64, 0);
      if (!same) row.failure = locate_difference(one, read, stages, cut, there, row.bounds, world);
      if (world.rank() != 0) continue;
      row.seconds = now().value - start;
      row.traffic = outcome.traffic;
      if (progress) progress(row);
      rows.push_back(row);
    }
  }
  return rows;
}

std::string verdict(const std::vector<VerifyRow>& rows, std::size_t layouts) {
  if (rows.empty()) return "no layouts";
  MOLEN_CHECK(layouts > 0 && rows.size() % layouts == 0, "{} runs of {} layouts", rows.size(), layouts);
  std::vector<std::string> types;
  std::vector<bool> same(layouts, true);
  double largest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % layouts == 0) types.emplace_back(name_of(rows[i].compute));
    same[i % layouts] = same[i % layouts] && rows[i].failure.empty();
    largest = std::max(largest, rows[i].ratio());
  }
  return fmt::format(
      "{} layouts in {}, {} runs: {} of them the same model; the largest difference is {:.4f} of its bound", layouts,
      fmt::join(types, " and "), rows.size(), std::count(same.begin(), same.end(), true), largest);
}

}  // namespace molen::prove
