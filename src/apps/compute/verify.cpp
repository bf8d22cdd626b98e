// molen verify without --static: trains the layouts and compares them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "apps/compute/functions.h"
#include "base/json.h"
#include "data/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "launch/world.h"
#include "plan/layouts.h"
#include "plan/resolve.h"
#include "prove/verify_layouts.h"

namespace molen::apps {
namespace {

// Returns the configuration's training data, or samples of ascending numbers when it names none.
prove::ReadSamples samples_of(const config::Config& c, const program::Setting& s, std::int64_t vocabulary) {
  if (c.data.train.empty()) return prove::synthetic_samples(s, vocabulary);
  data::OpenOptions options;
  options.sequence_length = s.sequence;
  options.vocabulary = vocabulary;
  if (c.data.tokenizer) options.tokenizer_fingerprint = data::Tokenizer::load(*c.data.tokenizer).fingerprint();
  std::vector<data::DataEntry> entries;
  for (const auto& e : c.data.train) entries.push_back({e.path, e.weight, e.languages});
  const auto set = std::make_shared<data::Dataset>(entries, static_cast<std::uint64_t>(c.data.seed), options);
  return [set, sequence = s.sequence, micro = s.micro_batch](std::int64_t first, std::int64_t count,
                                                             const exec::MicroBatch& to) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(sequence) + 1);
    std::fill(to.ids, to.ids + micro * sequence, 0);
    std::fill(to.labels, to.labels + micro * sequence, -1);
    if (to.document_start) std::fill(to.document_start, to.document_start + micro * sequence, 0);
    for (std::int64_t row = 0; row < count; ++row) {
      set->read(first + row, tokens);
      std::copy(tokens.begin(), tokens.end() - 1, to.ids + row * sequence);
      std::copy(tokens.begin() + 1, tokens.end(), to.labels + row * sequence);
      if (to.document_start)
        data::document_starts(std::span(tokens).first(static_cast<std::size_t>(sequence)),
                              set->end_of_text(first + row),
                              {to.document_start + row * sequence, static_cast<std::size_t>(sequence)});
    }
    return count * sequence;
  };
}

std::string row_text(const prove::VerifyRow& r, std::size_t width) {
  const auto number = [](double v) { return std::isfinite(v) ? fmt::format("{:.1e}", v) : std::string("-"); };
  return fmt::format(
      "{:<{}} {:>5} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9.4f} {:>7.1f} s  {}", r.layout, width, name_of(r.compute),
      r.steps, number(r.difference.loss), number(r.difference.norm), number(r.difference.gradients),
      std::isfinite(r.bounds.parameters) ? number(r.difference.parameters) : "-", number(r.bounds.gradients), r.ratio(),
      r.seconds, r.failure.empty() ? "same" : "DIFFERS: " + r.failure);
}

Json row_json(const prove::VerifyRow& r) {
  const auto finite = [](double v) { return std::isfinite(v) ? Json(v) : Json(nullptr); };
  return {{"layout", r.layout},
          {"compute", name_of(r.compute)},
          {"steps", r.steps},
          {"loss", finite(r.difference.loss)},
          {"grad_norm", finite(r.difference.norm)},
          {"gradients", finite(r.difference.gradients)},
          {"parameters", finite(r.difference.parameters)},
          {"bound", r.bounds.gradients},
          {"ratio", finite(r.ratio())},
          {"planned_peak_bytes", r.planned_peak_bytes},
          {"seconds", r.seconds},
          {"traffic", launch::to_json(r.traffic)},
          {"same", r.failure.empty()},
          {"first_difference", r.failure.empty() ? Json(nullptr) : Json(r.failure)}};
}

// Returns the layouts to run: the configuration's own, or those that its model and batch allow on this many ranks.
// Types are those of the proof.
std::pair<program::Setting, std::vector<plan::Layout>> wanted_layouts(const VerifyArguments& o, config::Config& c,
                                                                      const arch::Architecture& a,
                                                                      plan::Machine machine) {
  if (o.given()) {
    machine.measure_precision = nullptr;
    machine.cuda = false;  // the proof chooses kernels and types
    const auto setting = plan::resolve_setting(c, a, machine);
    return {setting, {plan::layout_of(setting)}};
  }
  const auto base = base_setting(c, a, machine.local_ranks);
  auto layouts = plan::layouts_of(a, base, machine.ranks, o.wanted());
  leave_out_tiles(c, a, machine.cuda, layouts);
  if (o.pairs()) layouts = plan::covering_pairs(layouts);
  return {base, std::move(layouts)};
}

}  // namespace

int run_proof(const VerifyArguments& o) {
  config::Config c = load_config(o.config);
  const auto launch = launch::resolve_launch(c, o.config.ranks, true);
  const auto a = plan::resolve_architecture(c);
  const auto schedule = o.given() ? plan::read_schedule(c) : std::nullopt;
  const auto [base, layouts] = wanted_layouts(o, c, a, launch.machine);
  prove::VerifyOptions options;
  options.steps = o.steps;
  options.flash_attention = c.math.flash_attention;
  options.schedule = schedule ? &*schedule : nullptr;
  if (launch.machine.cuda) options.cuda = launch.machine.device;
  for (const auto& name : o.precisions) options.compute.push_back(dtype_from_name(name));
  const auto read = samples_of(c, base, a.vocabulary);
  bool same = true;
  const std::size_t width = widest_name(layouts);
  launch::run_ranks(launch, [&](comm::Communicator& world) {
    const bool table = o.format != "json";
    std::unique_ptr<store::Progress> progress;
    if (world.rank() == 0) progress = make_progress("verify");
    std::size_t ran = 0;
    prove::require_memory_of_layouts(a, base, layouts, options, launch.machine, world);
    if (world.rank() == 0 && table)
      progress->result(fmt::format(
          "{} on {} rank{} ({}{}), {}; differences from one rank, relative\n{:<{}} {:>5} {:>5} {:>9} {:>9} {:>9} {:>9} "
          "{:>9} {:>9} {:>9}",
          a.name, world.size(), world.size() == 1 ? "" : "s", launch.communicator,
          options.cuda ? fmt::format(" on cuda:{}, with ATen's kernels", *options.cuda) : "",
          c.data.train.empty() ? "counting samples (no data.train)" : "data.train", "layout", width, "type", "steps",
          "loss", "norm", "gradient", "weights", "bound", "of bound", "took"));
    if (progress) progress->at("layouts", 0.0, layouts.front().name);
    const auto rows = prove::verify_layouts(a, base, layouts, read, options, world, [&](const prove::VerifyRow& row) {
      if (table) progress->result(row_text(row, width));
      progress->at("layouts", static_cast<double>(++ran) / static_cast<double>(layouts.size() * options.compute.size()),
                   row.layout);
    });
    if (world.rank() != 0) return;
    progress->finish();
    Json all = Json::array();
    for (const auto& row : rows) {
      same = same && row.failure.empty();
      all.push_back(row_json(row));
      all.back()["device"] = options.cuda ? Json(fmt::format("cuda:{}", *options.cuda)) : Json("cpu");
    }
    if (table)
      fmt::print("{}\n", prove::verdict(rows, layouts.size()));
    else
      fmt::print("{}\n", all.dump(2));
  });
  return same ? kOk : kFailed;
}

}  // namespace molen::apps
