#include "apps/cli.h"

#include "base/error.h"

namespace molen::apps {

std::shared_ptr<ConfigOptions> add_config_options(CLI::App& app, bool with_ranks) {
  auto o = std::make_shared<ConfigOptions>();
  app.add_option("CONFIG", o->file, "TOML file (docs: `molen config reference`)");
  app.add_option("--model", o->model, "preset, in the place of CONFIG or over its model");
  app.add_option("--set", o->sets, "key=value, over the file; may be repeated")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  if (with_ranks)
    app.add_option("--ranks", o->ranks, "world size where nothing is launched (train: threads of this process)")
        ->check(CLI::PositiveNumber);
  return o;
}

config::Config load_config(const ConfigOptions& o) {
  std::vector<std::string> sets;
  if (o.model) sets.push_back("model.preset=\"" + *o.model + "\"");
  sets.insert(sets.end(), o.sets.begin(), o.sets.end());
  if (!o.file && !o.model && sets.empty()) throw UsageError("a CONFIG file, or --model NAME, is needed");
  return config::load(o.file ? std::optional<fs::path>(*o.file) : std::nullopt, sets);
}

void add_node_option(CLI::App& app, ConfigOptions& o) {
  app.add_option("--ranks-per-node", o.ranks_per_node,
                 "with --ranks: how many of them share a node, where the job will run; all, if not said")
      ->check(CLI::PositiveNumber);
}

plan::Machine planned_machine(const ConfigOptions& o) {
  plan::Machine machine;
  machine.ranks = o.ranks.value_or(1);
  machine.local_ranks = o.ranks_per_node.value_or(machine.ranks);
  if (machine.ranks % machine.local_ranks != 0)
    throw UsageError("--ranks-per-node: {} ranks are not whole nodes of {}", machine.ranks, machine.local_ranks);
  return machine;
}

std::shared_ptr<std::string> add_format_option(CLI::App& app) {
  auto format = std::make_shared<std::string>("text");
  app.add_option("--format", *format, "text or json")->check(CLI::IsMember({"text", "json"}));
  return format;
}

std::shared_ptr<std::string> add_mfu_option(CLI::App& app) {
  auto mfu = std::make_shared<std::string>("causal");
  app.add_option("--mfu", *mfu,
                 "how model FLOPs are counted, for TFLOP/s and MFU: causal (attention at half, no input embedding; as "
                 "Megatron-LM since 2025) or palm (6N + 12LhDs)")
      ->capture_default_str()
      ->check(CLI::IsMember({"causal", "palm"}));
  return mfu;
}

}  // namespace molen::apps
