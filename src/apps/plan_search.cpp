#include "apps/plan_search.h"

#include "apps/plan_calculus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "cluster/cluster.h"
#include "config/values.h"
#include "plan/documents.h"
#include "plan/layouts.h"
#include "plan/search.h"
#include "sim/described_costs.h"
#include "sim/intervals.h"
#include "sim/simulate.h"

namespace molen::apps {
namespace {

constexpr double kSecondsPerDay = 86400.0, kJoulesPerKwh = 3.6e6;

// A job: the configuration with the choices of the model, on a number of ranks of a cluster.
struct Job {
  config::Config config;
  arch::Architecture arch;
  program::Setting base;
  cluster::Cluster cluster;
  int ranks = 1, local_ranks = 1;
  std::optional<double> run_steps = {};         // until train.until, if the configuration says it in tokens or steps
  std::vector<std::string> replaced = {};       // keys of the configuration whose values the search replaces
  std::optional<data::Attended> attended = {};  // what the documents of the data leave of attention, with a mask
};

Job job_of(const ConfigOptions& options, const PlanSearchArguments& o) {
  Job job{.config = load_config(options), .arch = {}, .base = {}, .cluster = cluster::find(o.cluster)};
  if (job.config.device.kind == "cpu")
    throw UsageError("{}: {} describes {} devices; device.kind = \"auto\" takes them", job.config.where("device.kind"),
                     job.cluster.name, job.cluster.device.name);
  if (options.ranks && o.nodes) throw UsageError("--nodes: give --ranks or --nodes, not both");
  const int of_node = job.cluster.node.devices;
  job.ranks = options.ranks ? *options.ranks : nodes_on(job.cluster, o.nodes) * of_node;
  if (job.ranks < 1 || job.ranks > job.cluster.devices())
    throw UsageError("--ranks: {} ranks, but {} has {} devices in {} nodes", job.ranks, job.cluster.name,
                     job.cluster.devices(), job.cluster.nodes);
  job.local_ranks = std::min(job.ranks, of_node);
  if (job.ranks % job.local_ranks != 0)
    throw UsageError("--ranks: {} ranks are not whole nodes of {} devices", job.ranks, of_node);
  job.arch = plan::resolve_architecture(job.config);
  if (const auto tokens = tokens_until(job.config))
    job.run_steps = std::ceil(*tokens / static_cast<double>(job.config.batch.global * job.config.data.sequence_length));
  // The search chooses the layout, so the configuration's own is not resolved.
  config::Config plain = job.config;
  plain.parallel = {};
  plain.batch.micro = 1;
  for (const auto& [key, origin] : job.config.origins)
    if (key.starts_with("parallel.") || key == "batch.micro") job.replaced.push_back(key);
  plan::Machine one{.cuda = true, .threads = 1};
  job.base = plan::resolve_setting(plain, job.arch, one);
  if (job.base.document_mask) job.attended = plan::attended_of(job.config, job.arch);
  return job;
}

plan::LayoutLimits limits_of(const Job& job, const PlanSearchArguments& o) {
  plan::LayoutLimits limits;
  limits.shown = static_cast<std::size_t>(o.best), limits.simulated = static_cast<std::size_t>(o.simulate);
  if (o.memory) {
    const auto bytes = config::parse_bytes(*o.memory);
    if (!bytes) throw UsageError("--memory: {}", bytes.reason());
    limits.memory = bytes.value();
  }
  if (o.watts) {
    const auto watts = config::parse_watts(*o.watts);
    if (!watts) throw UsageError("--watts: {}", watts.reason());
    limits.watts = watts.value().value;
  }
  const auto of_run = [&](const std::optional<double>& given, const char* flag, double unit) -> std::optional<double> {
    if (!given) return std::nullopt;
    if (!std::isfinite(*given) || *given <= 0.0)
      throw UsageError("{}: {}; a finite number above 0 is needed", flag, *given);
    if (!job.run_steps)
      throw UsageError(
          "{}: the limit is of a whole run, and the configuration does not say how many steps that has; set "
          "train.until to tokens or steps",
          flag);
    return *given * unit;
  };
  limits.run_s = of_run(o.days, "--days", kSecondsPerDay);
  limits.run_j = of_run(o.kwh, "--kwh", kJoulesPerKwh);
  limits.run_steps = job.run_steps.value_or(0.0);
  return limits;
}

// Returns the configuration with a layout's keys, checked as `molen train` would check it.
config::Config config_of(const Job& job, const plan::Simulation& found) {
  config::Config c = job.config;
  const config::Origin origin{config::Origin::Kind::kOther, fmt::format("molen plan on {}", job.cluster.name)};
  c.parallel = {};
  for (const auto& [key, value] : plan::keys_of(found.candidate, found.setting)) config::assign(c, key, value, origin);
  config::Config resolved = c;
  plan::Machine machine{.ranks = job.ranks, .local_ranks = job.local_ranks, .cuda = true, .threads = 1};
  const program::Setting s = plan::resolve_setting(resolved, job.arch, machine);
  MOLEN_CHECK(s == found.setting, "the configuration of {} stands for another layout, {}",
              plan::name_with_variant(found.setting), plan::name_with_variant(s));
  return c;
}

// The whole run of a layout.
struct RunTotals {
  double days, kwh, kg_co2e, eur;
};
RunTotals run_of(const plan::Simulation& found, double steps) {
  return {steps * found.step_s / kSecondsPerDay, steps * found.site.energy.value / kJoulesPerKwh,
          steps * found.site.emissions.value, steps * found.site.money().value};
}

Json json_of_run(const Job& job, const plan::Simulation& found) {
  if (!job.run_steps) return {};
  const RunTotals run = run_of(found, *job.run_steps);
  return {{"steps", *job.run_steps}, {"days", run.days}, {"kwh", run.kwh}, {"kg_co2e", run.kg_co2e}, {"eur", run.eur}};
}

bool on_front(const plan::SearchResult& result, const plan::Simulation& found) {
  return std::ranges::any_of(result.front, [&](const auto& on) { return on.setting == found.setting; });
}

std::string front_text(const plan::SearchResult& result) {
  return result.front_open == 0
             ? "no other layout takes less of one of the three and no more of the others"
             : fmt::format(
                   "the front is that of the {} layouts that were simulated; {} others may belong to it by "
                   "their bounds (--simulate)",
                   result.simulated, result.front_open);
}

// The layouts from which to choose between step time, energy and memory.
void print_front(const plan::SearchResult& result) {
  std::vector<std::vector<std::string>> table{{"Pareto front", "micro", "step", "energy a step", "memory"}};
  for (const auto& on : result.front)
    table.push_back({plan::name_with_variant(on.setting), std::to_string(on.setting.micro_batch),
                     human(Seconds(on.step_s)), fmt::format("{:.4g} kJ", on.energy.computers().value / 1e3),
                     human(on.memory)});
  fmt::print("\n");
  print_columns(table, {1, 2, 3, 4});
  fmt::print("{}\n", front_text(result));
}

Json json_of_front(const plan::SearchResult& result) {
  Json front = Json::array();
  for (const auto& on : result.front) {
    Json keys = Json::object();
    for (const auto& [key, value] : plan::keys_of(on.candidate, on.setting)) keys[key] = value;
    front.push_back({{"layout", plan::name_with_variant(on.setting)},
                     {"keys", keys},
                     {"step_s", on.step_s},
                     {"energy_j", on.energy.computers().value},
                     {"memory_bytes", on.memory.value}});
  }
  return front;
}

Json json_of_layout(const Job& job, const plan::SearchResult& result, const plan::Simulation& found,
                    const std::vector<plan::Reason>& reasons, const std::string& file) {
  Json loses_by = Json::array();
  for (const plan::Reason& reason : reasons)
    loses_by.push_back({{"reason", reason.name},
                        {"seconds", reason.seconds},
                        {"joules", reason.joules},
                        {"op", reason.op.empty() ? Json() : Json(reason.op)},
                        {"op_seconds", reason.op.empty() ? Json() : Json(reason.op_seconds)}});
  Json keys = Json::object();
  for (const auto& [key, value] : plan::keys_of(found.candidate, found.setting)) keys[key] = value;
  const double tokens = static_cast<double>(found.setting.positions());
  const auto [low, high] = sim::ends_of(found.step_s, found.spread);
  return {{"layout", plan::name_with_variant(found.setting)},
          {"keys", keys},
          {"step_s", found.step_s},
          {"interval_s", {low, high}},
          {"bound_s", found.bound.step_s},
          {"tokens_per_s", tokens / found.step_s},
          {"tokens_per_s_per_device", tokens / found.step_s / job.ranks},
          {"j_per_token", found.energy.computers().value / tokens},
          {"kg_co2e_per_step", found.site.emissions.value},
          {"eur_per_step", found.site.money().value},
          {"memory_bytes", found.memory.value},
          {"pareto", on_front(result, found)},
          {"run", json_of_run(job, found)},
          {"loses_by", loses_by},
          {"file", file.empty() ? Json() : Json(file)}};
}

std::string counts_text(const plan::SearchResult& r, const plan::LayoutLimits& limits, const cluster::Device& device) {
  std::string text = fmt::format(
      "{} layouts: {} keep more than {} from step to step, the plans of {} exceed {}, {} cannot be built, {} were "
      "simulated, {} cannot be better by their bound",
      r.all, r.too_large_kept, human(plan::most_for_a_plan(limits, device)), r.too_large,
      limits.memory ? "it" : "what their communicators leave of it", r.refused, r.simulated, r.excluded);
  if (limits.watts) text += fmt::format("; {} take more than {:g} W a node", r.too_much_power, *limits.watts);
  if (limits.run_s)
    text += fmt::format("; the runs of {} take more than {:g} days", r.too_long, *limits.run_s / kSecondsPerDay);
  if (limits.run_j)
    text += fmt::format("; the runs of {} take more than {:g} kWh", r.too_much_energy, *limits.run_j / kJoulesPerKwh);
  if (limits.run_s || limits.run_j)
    text += fmt::format("; the runs of {} exceed a limit already by their bound", r.beyond_run);
  if (!r.refusal.empty()) text += fmt::format("\nthe first that cannot be built: {}", r.refusal);
  return text;
}

// Says why no layout is left, and what may help.
[[noreturn]] void throw_nothing_found(const Job& job, const plan::SearchResult& r, const plan::LayoutLimits& limits) {
  const std::string remedy =
      r.all == 0 ? fmt::format("batch.global = {} divides over no number of data-parallel ranks of {} ranks",
                               job.base.global_batch, job.ranks)
      : r.too_much_power > 0 && r.too_much_power == r.simulated ? "a higher --watts may help"
      : r.beyond_run + r.too_long + r.too_much_energy > 0       ? "a higher --days or --kwh may help"
      : r.simulated == 0 && r.too_large + r.too_large_kept > 0  ? "more nodes or --memory may help"
      : !r.complete                                             ? "a higher --simulate may help"
                                                                : "another configuration may help";
  throw UsageError("{}: no layout of {} ranks is left; {}\n{}", job.cluster.name, job.ranks, remedy,
                   counts_text(r, limits, job.cluster.device));
}

std::string reasons_text(const std::vector<plan::Reason>& reasons, bool joules_first) {
  std::vector<std::string> texts;
  for (const plan::Reason& reason : reasons) texts.push_back(reason.text(joules_first));
  return fmt::format("{}", fmt::join(texts, ", "));
}

void print_text(const Job& job, const plan::SearchResult& result, plan::Objective objective,
                const plan::LayoutLimits& limits, const std::vector<std::string>& files) {
  fmt::print("{} on {} {} of {}, {} sequences of {} tokens a step, {}\n", job.arch.name, job.ranks,
             job.cluster.device.name, job.cluster.name, job.base.global_batch, job.base.sequence,
             name_of(job.base.compute));
  const bool of_energy = plan::is_of_energy(objective, job.cluster.site);
  std::vector<std::vector<std::string>> table{{"", "layout", "micro", "step", "tokens/s a device", "MFU", "J/token",
                                               "kg CO2e/1M tokens", "EUR/1M tokens", "memory",
                                               of_energy ? "more energy by" : "slower by"}};
  const double model =
      arch::model_flops(job.arch, job.base.positions(), job.base.sequence, arch::FlopsConvention::kCausal).value;
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const auto& found = result.best[i];
    const double tokens = static_cast<double>(found.setting.positions());
    table.push_back(
        {fmt::format("{}{}", i + 1, on_front(result, found) ? "*" : ""), plan::name_with_variant(found.setting),
         std::to_string(found.setting.micro_batch), human(Seconds(found.step_s)),
         fmt::format("{:.0f}", tokens / found.step_s / job.ranks),
         fmt::format("{:.1f}%", 100.0 * model / found.step_s / job.ranks / job.cluster.device.peak_16bit.value),
         fmt::format("{:.3g}", found.energy.computers().value / tokens),
         fmt::format("{:.3g}", 1e6 * found.site.emissions.value / tokens),
         fmt::format("{:.3g}", 1e6 * found.site.money().value / tokens), human(found.memory),
         reasons_text(plan::reasons_beside(found, result.best.front(), of_energy), of_energy)});
  }
  print_columns(table, {2, 3, 4, 5, 6, 7, 8, 9});
  if (job.run_steps) {
    const RunTotals run = run_of(result.best.front(), *job.run_steps);
    fmt::print("\n{:.0f} steps of the first take {:.3g} days, {:.3g} kWh, {:.3g} kg CO2e and {:.3g} EUR\n",
               *job.run_steps, run.days, run.kwh, run.kg_co2e, run.eur);
  }
  fmt::print("*: on the Pareto front of step time, energy and memory\n");
  print_front(result);
  fmt::print("\n{}\n", counts_text(result, limits, job.cluster.device));
  if (!job.replaced.empty())
    fmt::print("the search replaces what the configuration says of {}\n", fmt::join(job.replaced, ", "));
  if (!result.complete)
    fmt::print("the search stopped at its limit of simulations (--simulate): another layout may be better\n");
  const auto [low, high] = sim::ends_of(result.best.front().step_s, result.best.front().spread);
  fmt::print("80 % of steps of the first are expected from {} to {}\n", human(Seconds(low)), human(Seconds(high)));
  if (job.attended)
    fmt::print("attention within documents: {:.1f} % of the causal scores of a sequence, by {} sequences of the data\n",
               100.0 * job.attended->mean, job.attended->sequences);
  for (const auto& file : files) fmt::print("{}\n", file);
}

// Returns the whole run of a layout.
WholeRun whole_run_of_layout(const Job& job, const plan::Simulation& found, const sim::DescribedCosts& costs) {
  const plan::Machine machine{.ranks = job.ranks, .local_ranks = job.local_ranks, .cuda = true, .threads = 1};
  return whole_run_of(job.config, job.arch, found.setting, machine, job.cluster, costs,
                      {found.step_s, found.spread, found.energy});
}

}  // namespace

int nodes_on(const cluster::Cluster& cluster, const std::optional<int>& nodes) {
  if (!nodes) return cluster.nodes;
  if (*nodes < 1) throw UsageError("--nodes: {}; at least one node is needed", *nodes);
  if (*nodes > cluster.nodes)
    throw UsageError("--nodes: {} has {}, not {}", cluster.name, counted(cluster.nodes, "node"), *nodes);
  return *nodes;
}

int run_plan_search(const ConfigOptions& options, const PlanSearchArguments& o) {
  const plan::Objective objective = plan::objective_from_name(o.objective);
  const Job job = job_of(options, o);
  plan::require_figure(objective, job.cluster);
  const plan::LayoutLimits limits = limits_of(job, o);
  std::optional<CarbonQuestion> question;
  if (!o.carbon.forecast.empty()) question.emplace(o.carbon);
  const sim::Factors& factors = sim::Factors::shipped();
  const sim::DescribedCosts costs(job.cluster, factors);
  auto progress = make_progress("plan");
  const plan::SearchResult result =
      plan::search(job.arch, job.base, job.ranks, job.local_ranks, objective, limits, costs, factors, job.attended,
                   [&](double share, const std::string& doing) { progress->at("layouts", share, doing); });
  progress->finish();
  if (result.best.empty()) throw_nothing_found(job, result, limits);
  std::optional<CarbonPlan> carbon;
  if (question) carbon = question->answer(whole_run_of_layout(job, result.best.front(), costs));
  std::vector<std::string> files;
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const config::Config c = config_of(job, result.best[i]);
    if (o.output.empty()) continue;
    make_directories(o.output);
    files.push_back((fs::path(o.output) / fmt::format("plan-{}.toml", i + 1)).string());
    write_file_atomic(files.back(), config::to_toml(c));
  }
  if (o.format == "json") {
    Json best = Json::array();
    for (std::size_t i = 0; i < result.best.size(); ++i)
      best.push_back(json_of_layout(
          job, result, result.best[i],
          plan::reasons_beside(result.best[i], result.best.front(), plan::is_of_energy(objective, job.cluster.site)),
          files.empty() ? std::string() : files[i]));
    fmt::print("{}\n", Json{{"cluster", job.cluster.name},
                            {"ranks", job.ranks},
                            {"objective", o.objective},
                            {"attended", job.attended ? Json(job.attended->mean) : Json()},
                            {"layouts", result.all},
                            {"too_large_kept", result.too_large_kept},
                            {"too_large", result.too_large},
                            {"refused", result.refused},
                            {"too_much_power", result.too_much_power},
                            {"beyond_run", result.beyond_run},
                            {"too_long", result.too_long},
                            {"too_much_energy", result.too_much_energy},
                            {"simulated", result.simulated},
                            {"excluded", result.excluded},
                            {"bounded_cpu_s", result.bounded_cpu_s},
                            {"simulated_cpu_s", result.simulated_cpu_s},
                            {"complete", result.complete},
                            {"replaced", job.replaced},
                            {"best", best},
                            {"pareto_front", json_of_front(result)},
                            {"pareto_open", result.front_open},
                            {"carbon", carbon ? carbon_json(*carbon) : Json()}}
                           .dump(2));
    return kOk;
  }
  print_text(job, result, objective, limits, files);
  if (carbon) print_carbon(*carbon);
  return kOk;
}

}  // namespace molen::apps
