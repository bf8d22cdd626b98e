#include "apps/cli.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "apps/computing.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"
#include "comm/mpi/mpi.h"
#include "plan/complete.h"

namespace molen::apps {

std::shared_ptr<ConfigOptions> add_config_options(CLI::App& app, bool with_ranks) {
  auto o = std::make_shared<ConfigOptions>();
  app.add_option("CONFIG", o->file, "TOML file (docs: `molen config reference`), or a run directory");
  app.add_option("--model", o->model, "preset; replaces CONFIG, or the model of CONFIG");
  app.add_option("--set", o->sets, "key=value, over the file; may be repeated")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  if (with_ranks)
    app.add_option("--ranks", o->ranks, "number of ranks, if no launcher starts them (train: threads of this process)")
        ->check(CLI::PositiveNumber);
  return o;
}

config::Config load_config(const ConfigOptions& o, const config::Completion& more) {
  std::vector<std::string> sets;
  if (o.model) sets.push_back("model.preset=\"" + *o.model + "\"");
  sets.insert(sets.end(), o.sets.begin(), o.sets.end());
  if (!o.file && !o.model && sets.empty()) throw UsageError("a CONFIG file, or --model NAME, is needed");
  const config::Completion complete = [&](config::Config& c, config::Problems& problems) {
    plan::complete(c, problems);
    if (more) more(c, problems);
  };
  const config::Environment environment = [](const char* name) { return std::getenv(name); };
  if (!o.file || !names_run(o))
    return config::load(o.file ? std::optional<fs::path>(*o.file) : std::nullopt, sets, complete, environment);
  config::Config c = config::load(fs::path(*o.file) / "config.toml", sets, complete, environment);
  // A run's config.toml contains every key; one that it has at its default was not set by the user.
  const config::Config plain;
  for (const auto& f : config::fields())
    if (const auto origin = c.origins.find(f.key);
        origin != c.origins.end() && origin->second.kind == config::Origin::Kind::kFile && f.write(c) == f.write(plain))
      c.origins.erase(origin);
  return c;
}

bool names_run(const ConfigOptions& o) {
  if (!o.file || !fs::is_directory(*o.file)) return false;
  if (fs::exists(fs::path(*o.file) / "config.toml")) return true;
  throw UsageError("{}: a directory without config.toml; CONFIG is a TOML file or a run directory", *o.file);
}

void add_node_option(CLI::App& app, ConfigOptions& o) {
  app.add_option("--ranks-per-node", o.ranks_per_node,
                 "with --ranks: how many of them share a node where the job will run (default: all)")
      ->check(CLI::PositiveNumber);
}

plan::Machine planned_ranks(const ConfigOptions& o) {
  plan::Machine machine;
  machine.ranks = machine.local_ranks = o.ranks.value_or(1);
  if (const fs::path file = fs::path(o.file.value_or("")) / "environment.json"; names_run(o) && fs::exists(file)) {
    const Json before = read_json(file);
    const int ranks = before.value("ranks", 1);
    if (!o.ranks) machine.ranks = ranks;
    if (machine.ranks == ranks) machine.local_ranks = before.value("local_ranks", ranks);
  }
  machine.local_ranks = o.ranks_per_node.value_or(machine.local_ranks);
  if (machine.ranks % machine.local_ranks != 0)
    throw UsageError("--ranks-per-node: {} ranks are not whole nodes of {}", machine.ranks, machine.local_ranks);
  return machine;
}

plan::Machine planned_machine(const ConfigOptions& o, const config::Config& c) {
  plan::Machine machine = planned_ranks(o);
  const bool here = kBuild.cuda && computing().has_cuda();
  machine.cuda = c.device.kind == "cuda" || (c.device.kind == "auto" && here);
  if (kBuild.libtorch && (!machine.cuda || here))
    machine.measure_precision = [device = machine.cuda ? 0 : -1](int threads) {
      return computing().precision_rates(threads, device);
    };
  return machine;
}

std::string of_computing(std::string description) {
  return kBuild.libtorch ? description : description + " (needs libtorch, which this build lacks)";
}

std::vector<OpenChoice> open_choices(const config::Config& given, const config::Config& resolved,
                                     const arch::Architecture& arch, const program::Setting& s) {
  std::vector<OpenChoice> open;
  for (const auto& f : config::fields())
    if (f.write(given) != f.write(resolved))
      open.push_back({f.key, config::toml_value(f.write(resolved)), resolved.origins.at(f.key).describe()});
  const auto at_default = [&](const char* key, const std::string& more = "") {
    if (given.origins.count(key) == 0)
      open.push_back({key, config::toml_value(config::field(key).write(resolved)), "default" + more});
  };
  at_default("data.sequence_length",
             s.sequence < arch.max_sequence ? fmt::format("; the model takes up to {}", arch.max_sequence) : "");
  at_default("batch.global");
  at_default("batch.micro");
  if (s.ranks() > 1 && !given.parallel.sharding && !given.parallel.zero)
    open.push_back({"parallel.sharding", "\"NO_SHARD\"", "default; FULL_SHARD and others divide the state"});
  return open;
}

std::string to_text(const std::vector<OpenChoice>& choices) {
  std::string text;
  for (const auto& c : choices) text += fmt::format("# {} = {} ({})\n", c.key, c.value, c.why);
  return text;
}

Json to_json(const std::vector<OpenChoice>& choices) {
  Json all = Json::array();
  for (const auto& c : choices) all.push_back({{"key", c.key}, {"value", c.value}, {"why", c.why}});
  return all;
}

double time_option(const std::string& text, const char* flag) {
  const auto time = parse_time(text);
  if (!time) throw UsageError("{}: {}", flag, time.reason());
  return time.value();
}

std::shared_ptr<std::string> add_format_option(CLI::App& app) {
  auto format = std::make_shared<std::string>("text");
  app.add_option("--format", *format, "text or json")->check(CLI::IsMember({"text", "json"}));
  return format;
}

void print_columns(const std::vector<std::vector<std::string>>& rows, const std::set<std::size_t>& right) {
  std::vector<std::size_t> width;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      width.resize(std::max(width.size(), i + 1));
      width[i] = std::max(width[i], row[i].size());
    }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(width[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (right.count(i) > 0 ? blanks + row[i] : row[i] + blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", printable(line));
  }
}

std::unique_ptr<store::Progress> make_progress(const std::string& verb) {
  // mpirun gives its ranks their own terminals even when its output goes to a file.
  const bool launched = comm::launch_environment().size > 0;
  const auto terminal = [&](int descriptor) { return !launched && ::isatty(descriptor) == 1; };
  store::ProgressPlace place;
  place.live = terminal(STDOUT_FILENO) ? stdout : terminal(STDERR_FILENO) ? stderr : nullptr;
  // Notes go above the line that is rewritten when both reach the user at a terminal.
  if (place.live && terminal(STDERR_FILENO)) place.log = place.live;
  struct winsize size {};
  if (place.live) ::ioctl(place.live == stdout ? STDOUT_FILENO : STDERR_FILENO, TIOCGWINSZ, &size);
  place.columns = store::console_style(nullptr, nullptr, place.live != nullptr, size.ws_col).width;
  return std::make_unique<store::Progress>(verb, place, [] { return now().value; });
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
