// molen verify: checks that layouts compute the same model, with the verifier alone or by running them.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "apps/cli.h"
#include "base/clock.h"
#include "base/console.h"
#include "base/error.h"
#include "base/json.h"
#include "plan/layouts.h"
#include "plan/resolve.h"
#include "plan/static_check.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/verify/verify.h"
#ifdef MOLEN_HAS_TORCH
#include "data/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "launch/world.h"
#include "prove/verify_layouts.h"
#endif

namespace molen::apps {
namespace {

struct VerifyArguments {
  ConfigOptions config;
  std::string layouts = "all", cover = "all", format;
  bool only_static = false;
  int steps = 10;
  std::vector<std::string> precisions{"fp64", "fp32"};

  bool pairs() const { return cover == "pairs"; }
  bool given() const { return layouts == "given"; }

  // Returns the requested strategies; empty for all.
  std::vector<std::string> wanted() const {
    std::vector<std::string> names;
    if (layouts == "all") return names;
    std::string name;
    for (const char c : layouts + ",") {
      if (c != ',') {
        name += c;
      } else if (!name.empty()) {
        names.push_back(std::exchange(name, ""));
      }
    }
    if (names.empty()) throw UsageError("--layouts: all, or a list such as {}", plan::strategies().back());
    return names;
  }
};

// The model and batch of the configuration, its offloading, its units, and the numbers of pieces of rows and of tiles
// of experts; the rest of its layout, and its types, do not matter here. The threads of a rank are its share beside the
// other ranks of its host.
program::Setting base_setting(config::Config& c, const arch::Architecture& a, int local_ranks) {
  const auto offload = c.parallel.offload;
  const std::int64_t chunks = c.parallel.tensor_chunks, tiles = c.parallel.expert_tiles,
                     unit_layers = c.parallel.unit_layers;
  c.parallel = {};
  c.parallel.unit_layers = unit_layers;
  c.parallel.offload = offload;
  c.precision = {};
  config::assign(c, "precision.compute", "fp64", {config::Origin::Kind::kOther, "molen verify"});
  if (c.math.threads == 0)
    config::assign(c, "math.threads", plan::auto_threads(local_ranks), {config::Origin::Kind::kOther, "derived"});
  program::Setting setting = plan::resolve_setting(c, a, {});
  setting.tensor_chunks = chunks;
  setting.expert_tiles = tiles;
  return setting;
}

// Leaves out layouts whose attention is in tiles or not at all, where math.flash_attention is false, and says so.
void leave_out_tiles(const config::Config& c, const arch::Architecture& a, bool cuda,
                     std::vector<plan::Layout>& layouts) {
  if (c.math.flash_attention) return;
  std::string reason;
  const std::size_t left_out = std::erase_if(layouts, [&](const plan::Layout& l) {
    program::Setting s = l.setting;
    s.compute = DType::kF32;
    s.kernels = cuda ? arch::Kernels::kAten : arch::Kernels::kFused;
    const auto why = plan::leave_tiles(s, a, cuda);
    if (why) reason = *why;
    return why.has_value();
  });
  if (layouts.empty()) throw UsageError("{}: no layout is left: {}", c.where("math.flash_attention"), reason);
  if (left_out > 0) say(fmt::format("{} layouts are left out: {}", left_out, reason));
}

// Verifies the configuration's own layout stage by stage, and plans the memory of each stage's ranks.
int plan_given(const VerifyArguments& o) {
  const config::Config given = load_config(o.config);
  config::Config c = given;
  const auto a = plan::resolve_architecture(c);
  const auto setting = plan::resolve_setting(c, a, planned_machine(o.config, c));
  const auto choices = open_choices(given, c, a, setting);
  const auto schedule = plan::read_schedule(c);
  const double start = now().value;
  const auto stages = program::build_stages(a, setting, schedule ? &*schedule : nullptr);
  const bool table = o.format != "json";
  if (table)
    fmt::print(
        "{}{} on {} rank{}, {}, {}, {} micro-batch{}\n{:>5} {:>12} {:>7} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}  "
        "verifier\n",
        to_text(choices), a.name, setting.ranks(), setting.ranks() == 1 ? "" : "s", name_of(setting.compute),
        program::sharding_text(setting), setting.micro_batches(), setting.micro_batches() == 1 ? "" : "es", "stage",
        "layers", "ops", "parameters", "gradients", "optimizer", "transient", "peak a rank", "on the host");
  auto together = program::verify_world(stages);
  bool sound = together.empty();
  Json rows = Json::array();
  for (const auto& p : stages) {
    const auto findings = program::verify(p);
    const auto memory = program::plan_memory(p);
    const auto m = program::summarize(p, memory);
    sound = sound && findings.empty();
    std::string layers;
    for (const auto& chunk : p.chunks)
      layers += fmt::format("{}{}-{}", layers.empty() ? "" : ",", chunk.first, chunk.end - 1);
    if (table)
      fmt::print("{:>5} {:>12} {:>7} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}  {}\n", p.setting.pipeline.stage, layers,
                 p.num_ops(), human(m.parameters), human(m.gradients), human(m.optimizer), human(m.transient),
                 human(m.peak), human(m.host), findings.empty() ? "sound" : findings[0].text);
    Json texts = Json::array();
    for (const auto& f : findings) texts.push_back(f.text);
    rows.push_back({{"stage", p.setting.pipeline.stage},
                    {"layers", layers},
                    {"ops", p.num_ops()},
                    {"parameters_bytes", m.parameters.value},
                    {"gradients_bytes", m.gradients.value},
                    {"optimizer_bytes", m.optimizer.value},
                    {"transient_bytes", m.transient.value},
                    {"peak_bytes", m.peak.value},
                    {"host_bytes", m.host.value},
                    {"findings", texts}});
  }
  const double seconds = now().value - start;
  Json between = Json::array();
  for (const auto& f : together) between.push_back(f.text);
  if (!table) {
    fmt::print("{}\n", Json{{"stages", rows},
                            {"between_stages", between},
                            {"compute", name_of(setting.compute)},
                            {"open_choices", to_json(choices)},
                            {"seconds", seconds}}
                           .dump(2));
  } else {
    for (const auto& f : together) fmt::print("{}\n", f.text);
    fmt::print("transient: activations, gathered parameters, gradients on their way, scratch\n{} in {:.2f} s\n",
               sound ? "sound" : "refused", seconds);
  }
  return sound ? kOk : kFailed;
}

// Returns the width of the name column, so that the columns after it are aligned.
std::size_t widest_name(const std::vector<plan::Layout>& layouts) {
  std::size_t width = std::string_view("layout").size();
  for (const auto& layout : layouts) width = std::max(width, layout.name.size());
  return width;
}

struct Checked {
  plan::StaticCheck check;
  double seconds = 0.0;
};

// Computes `make(i)` for each i below `count` on this machine's cores, and calls `take(i, made)` on this thread, in
// order.
template <class Made, class Make, class Take>
void in_order(std::size_t count, Make&& make, Take&& take) {
  std::vector<std::optional<Made>> made(count);
  std::exception_ptr failure;
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      std::optional<Made> one;
      std::exception_ptr failed;
      try {
        one = make(i);
      } catch (...) {
        failed = std::current_exception();
        next = count;
      }
      const std::lock_guard lock(mutex);
      if (failed && !failure) failure = failed;
      made[i] = std::move(one);
      changed.notify_all();
    }
  };
  std::vector<std::jthread> workers;
  for (int i = 0; i < plan::auto_threads(1); ++i) workers.emplace_back(work);
  for (std::size_t i = 0; i < count; ++i) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return made[i] || failure; });
    if (!made[i]) break;
    lock.unlock();
    take(i, *made[i]);
    made[i].reset();
  }
  workers.clear();
  if (failure) std::rethrow_exception(failure);
}

int run_static(const VerifyArguments& o) {
  if (o.given()) return plan_given(o);
  config::Config c = load_config(o.config);
  const auto a = plan::resolve_architecture(c);
  auto base = base_setting(c, a, 1);
  base.compute = base.master = base.reduce = DType::kF32;
  base.kernels = arch::Kernels::kFused;
  bool sound = true;
  Json rows = Json::array();
  const plan::Machine machine = planned_machine(o.config, c);
  auto layouts = plan::within_nodes(plan::layouts_of(a, base, machine.ranks, o.wanted()), machine.local_ranks);
  leave_out_tiles(c, a, false, layouts);
  if (o.pairs()) layouts = plan::covering_pairs(layouts);
  if (!c.math.flash_attention)
    for (plan::Layout& l : layouts) MOLEN_CHECK(!plan::leave_tiles(l.setting, a, false), "{} was not left out", l.name);
  const std::size_t width = widest_name(layouts);
  const auto progress = make_progress("verify");
  if (o.format != "json")
    progress->result(
        fmt::format("{:<{}} {:>8} {:>11} {:>9}  verifier", "layout", width, "ops", "peak a rank", "seconds"));
  const auto check = [&](std::size_t i) {
    const double start = now().value;
    Checked checked{plan::check_statically(a, layouts[i].setting), 0.0};
    checked.seconds = now().value - start;
    return checked;
  };
  progress->at("layouts", 0.0, layouts.front().name);
  in_order<Checked>(layouts.size(), check, [&](std::size_t i, const Checked& checked) {
    const auto& [of, seconds] = checked;
    sound = sound && of.findings.empty();
    rows.push_back({{"layout", layouts[i].name},
                    {"ops", of.ops},
                    {"peak_bytes", of.peak.value},
                    {"micro_batches_verified", of.micro_batches},
                    {"seconds", seconds},
                    {"findings", of.findings}});
    if (o.format != "json")
      progress->result(fmt::format("{:<{}} {:>8} {:>11} {:>9.3f}  {}", layouts[i].name, width, of.ops, human(of.peak),
                                   seconds, of.findings.empty() ? "sound" : of.findings[0]));
    progress->at("layouts", static_cast<double>(i + 1) / static_cast<double>(layouts.size()), layouts[i].name);
  });
  progress->finish();
  if (o.format == "json") fmt::print("{}\n", rows.dump(2));
  return sound ? kOk : kFailed;
}

#ifdef MOLEN_HAS_TORCH

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

int run_verify(const VerifyArguments& o) {
  if (o.only_static) return run_static(o);
  if (o.config.ranks_per_node)
    throw UsageError("--ranks-per-node: needs --static; without it, the ranks run and know their nodes");
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

#else

int run_verify(const VerifyArguments& o) {
  if (o.only_static) return run_static(o);
  throw UsageError("verify: this build has no libtorch and can only verify with --static");
}

#endif

}  // namespace

void add_verify_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("verify", "proves that layouts agree: loss, gradients, parameters after N steps");
  auto options = add_config_options(*verb);
  auto o = std::make_shared<VerifyArguments>();
  add_node_option(*verb, *options);
  verb->add_option("--layouts", o->layouts,
                   "all: every layout that the model and the batch allow on this number of ranks (of the "
                   "configuration's [parallel], only offload, unit_layers, tensor_chunks and expert_tiles are "
                   "used); given: the configuration's own layout; or a list of: " +
                       fmt::format("{}", fmt::join(plan::strategies(), ",")))
      ->capture_default_str();
  verb->add_option("--cover", o->cover,
                   "all: every layout; pairs: fewer layouts, which cover each pair of compatible choices at least once")
      ->capture_default_str()
      ->check(CLI::IsMember({"all", "pairs"}));
  verb->add_option("--steps", o->steps, "optimizer steps of the proof in fp64; fp32 runs one")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--precision", o->precisions, "element types in which layouts are compared")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::IsMember({"fp64", "fp32"}));
  verb->add_flag("--static", o->only_static,
                 "builds and verifies each program and plans its memory, but runs nothing; if a step has many "
                 "micro-batches, it checks fewer, because further ones only repeat the program's bodies");
  auto format = add_format_option(*verb);
  verb->callback([&chosen, options, o, format] {
    chosen.action = [=] {
      o->config = *options;
      o->format = *format;
      return run_verify(*o);
    };
  });
}

}  // namespace molen::apps
