// molen verify: its command line, and the check by the verifier alone.
#include "apps/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "apps/computing.h"
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

namespace molen::apps {
namespace {

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

int run_verify(const VerifyArguments& o) {
  if (o.only_static) return run_static(o);
  if (o.config.ranks_per_node)
    throw UsageError("--ranks-per-node: needs --static; without it, the ranks run and know their nodes");
  if (!kBuild.libtorch) throw UsageError("verify: this build has no libtorch and can only verify with --static");
  return computing().verify(o);
}

}  // namespace

std::vector<std::string> VerifyArguments::wanted() const {
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

std::size_t widest_name(const std::vector<plan::Layout>& layouts) {
  std::size_t width = std::string_view("layout").size();
  for (const auto& layout : layouts) width = std::max(width, layout.name.size());
  return width;
}

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
