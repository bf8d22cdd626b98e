// molen energy list | live | account | calibrate | restore | guard | daemon | collect | send | manage
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "actuate/open.h"
#include "actuate/session.h"
#include "apps/cli.h"
#include "apps/energy_account.h"
#include "apps/energy_collect.h"
#include "apps/energy_daemon.h"
#include "apps/energy_manage.h"
#include "apps/energy_model.h"
#include "base/error.h"
#include "base/utf8.h"
#include "collect/sums.h"
#include "daemon/client.h"
#include "energy/commands.h"
#include "energy/open.h"
#include "serve/accounts.h"

namespace molen::apps {
namespace {

energy::Meters open_here(const std::vector<std::string>& meters) {
  energy::OpenOptions options = energy::options_of_process();
  options.daemon = daemon::open_meters_here;
  return energy::open_meters(meters, options);
}

int list_meters(const std::vector<std::string>& meters, const ModelArguments& asked, const std::string& format) {
  const auto found = open_here(meters);
  const auto model = open_model_here(asked, found);
  const bool modelled = asked.model != "off";
  const auto settings = daemon::open_actuators_here();
  if (format == "json") {
    Json all = energy::list_json(found);
    all["settings"] = actuate::list_json(settings);
    if (modelled) all["model"] = energy::model_json(model.get());
    fmt::print("{}\n", all.dump(2));
  } else {
    fmt::print("{}{}\nsettings:\n{}", energy::list_text(found), modelled ? energy::model_text(model.get()) : "",
               actuate::list_text(settings));
  }
  return kOk;
}

// Columns and lines of the terminal.
std::pair<std::size_t, std::size_t> terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) size = {};
  return {size.ws_col > 0 ? size.ws_col : 100, size.ws_row > 0 ? size.ws_row : 24};
}

int live(const std::vector<std::string>& meters, const ModelArguments& asked, double every_s, int count,
         const std::string& format) {
  energy::LiveReading reading(open_here(meters));
  const auto model = open_model_here(asked, reading.meters());
  const bool refreshed = format != "json" && ::isatty(STDOUT_FILENO) == 1;
  energy::LiveTable table(reading.meters());
  std::ptrdiff_t shown = 0;  // lines of the table on the terminal
  for (int i = 0; i < count; ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double>(every_s));
    const auto line = reading.next();
    const auto modelled = model ? std::optional(model->end_step()) : std::nullopt;
    if (refreshed) {
      table.add(line);
      const auto [columns, lines] = terminal_size();
      const std::string estimates = modelled ? energy::modelled_live_text(*modelled, line.seconds) : "";
      const std::string text =
          table.text(columns, lines - (modelled ? 2 : 1)) + (modelled ? estimates.substr(0, columns) + "\n" : "");
      if (shown > 0) fmt::print("\x1b[{}F\x1b[J", shown);  // to the table's first line, and clear what is below
      fmt::print("{}", text);
      shown = std::count(text.begin(), text.end(), '\n');
    } else {
      Json json = energy::live_json(line);
      if (modelled) json["model"] = energy::modelled_live_json(*modelled, line.seconds);
      const std::string estimates = modelled ? "  " + energy::modelled_live_text(*modelled, line.seconds) : "";
      fmt::print("{}\n", format == "json" ? json.dump() : energy::live_text(line) + estimates);
    }
    std::fflush(stdout);
  }
  return reading.measures() || model ? kOk : kFailed;
}

}  // namespace

namespace {

void add_account_verb(CLI::App& energy, Chosen& chosen) {
  CLI::App* verb =
      energy.add_subcommand("account", "energy of runs, or of a site, by user, job and so on (docs/energy.md)");
  auto o = std::make_shared<AccountArguments>();
  verb->add_option("DIRECTORY", o->directories, "run directories, and folders of them")->capture_default_str();
  verb->add_option("--database", o->database,
                   "the database of `molen energy collect` instead of runs: sqlite:FILE or postgresql://...");
  verb->add_option("--by", o->by,
                   fmt::format("what a line is of: {} (default: run); of a database: {} (default: node)",
                               fmt::join(serve::account_keys(), ", "), fmt::join(collect::sum_keys(), ", ")));
  verb->add_option(
      "--since", o->since,
      "only attempts, or periods of a database, that started at this time or later, such as 2026-11-01; with "
      "--events, only events since then");
  verb->add_option("--until", o->until,
                   "only attempts, or periods, that started before this time; with --events, only events before it");
  verb->add_option("--job", o->job,
                   "only attempts, or periods, of this job of the batch system; with --events, only events of the job");
  verb->add_flag("--events", o->events,
                 "what happened instead of sums: policies, budgets and gaps of meters of runs; of a database, events "
                 "of senders and of caps, and gaps of meters");
  verb->add_option(
          "--format", o->format,
          "text, json, or csv with the columns of EAR's tables: of runs, a line for each attempt unless --by is "
          "named; of a database, a line for each sum")
      ->check(CLI::IsMember({"text", "json", "csv"}))
      ->capture_default_str();
  verb->callback([&chosen, verb, o] {
    chosen.action = [=] {
      if (o->database && verb->get_option("DIRECTORY")->count() > 0)
        throw UsageError("--database: the energy is in the database or in directories: name one of them");
      if (o->events && o->by) throw UsageError("--by: events are not added up: leave out --by or --events");
      if (o->job && !collect::is_name(*o->job))
        throw UsageError("--job: '{}' is no name of a job: up to {} printable characters without spaces", *o->job,
                         collect::kMostNameBytes);
      return run_energy_account(*o);
    };
  });
}

void add_restore_verbs(CLI::App& energy, Chosen& chosen) {
  CLI::App* restore = energy.add_subcommand(
      "restore",
      "put back clocks and power limits that a killed job and its guardian have left set; exits 1 if some "
      "cannot be put back");
  auto folder = std::make_shared<std::string>(actuate::default_journals().string());
  restore->add_option("--journals", *folder, "folder of the journals of such jobs")->capture_default_str();
  restore->callback([&chosen, folder] {
    chosen.action = [=] {
      constexpr Seconds kPatience{30.0};
      auto here = actuate::open_actuators({});  // also devices that this process may not compute on
      const auto print = [](const std::string& sentence) { fmt::print("{}\n", printable(sentence)); };
      return actuate::recover_journals(*folder, here, print, kPatience) ? kOk : kFailed;
    };
  });
  CLI::App* guard = energy.add_subcommand(
      "guard",
      "wait for the end of a job and restore what it had set; molen starts this itself for a job that sets "
      "clocks or power limits");
  auto journal = std::make_shared<std::string>();
  guard->add_option("--journal", *journal, "journal of the job")->required();
  guard->callback([&chosen, journal] {
    chosen.action = [=] { return actuate::guard(*journal, [] { return actuate::open_actuators({}); }); };
  });
}

}  // namespace

void add_energy_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand(
      "energy", "meters and settings of this machine, live readings, and the energy of runs and of a site");
  verb->require_subcommand(1);
  add_account_verb(*verb, chosen);
  add_collect_verbs(*verb, chosen);
  add_power_calibration_verb(*verb, chosen);
  add_restore_verbs(*verb, chosen);
  add_daemon_verb(*verb, chosen);
  add_manage_verb(*verb, chosen);
  auto meters = std::make_shared<std::vector<std::string>>(1, "auto");
  auto format = std::make_shared<std::string>("text");
  auto every = std::make_shared<double>(1.0);
  auto count = std::make_shared<int>(5);
  CLI::App* all = verb->add_subcommand("list", "what can be read and set here, and why the rest cannot");
  CLI::App* now = verb->add_subcommand("live",
                                       "watts by scope: a table that a terminal shows anew each period, elsewhere a "
                                       "line a period; exits 1 if nothing can be "
                                       "read or, with --model, estimated");
  auto model = std::make_shared<ModelArguments>();
  for (CLI::App* sub : {all, now}) {
    add_model_options(*sub, *model);
    sub->add_option("--meters", *meters, fmt::format("{}", fmt::join(energy::meter_names(), ", ")));
    sub->add_option("--format", *format, "text or json")->check(CLI::IsMember({"text", "json"}));
  }
  now->add_option("--every", *every, "seconds of a period")->capture_default_str()->check(CLI::PositiveNumber);
  now->add_option("--count", *count, "periods")->capture_default_str()->check(CLI::PositiveNumber);
  all->callback(
      [&chosen, meters, model, format] { chosen.action = [=] { return list_meters(*meters, *model, *format); }; });
  now->callback([&chosen, meters, model, format, every, count] {
    chosen.action = [=] { return live(*meters, *model, *every, *count, *format); };
  });
}

}  // namespace molen::apps
