#include "apps/energy_manage.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "apps/stop_signals.h"
#include "base/clock.h"
#include "base/console.h"
#include "base/error.h"
#include "manage/manager.h"

namespace molen::apps {
namespace {

constexpr double kTendS = 0.1;  // between two looks at scripts that run

struct ManageArguments {
  std::string caps, database;
  bool once = false, dry_run = false, json = false;
};

// Waits until a time of the steady clock, or until a signal; returns whether one came.
bool stopped_by(int stop, double until_s) {
  for (;;) {
    const double left_s = until_s - now().value;
    pollfd polled{stop, POLLIN, 0};
    const int found = ::poll(&polled, 1, static_cast<int>(std::clamp(std::ceil(left_s * 1e3), 0.0, 60e3)));
    if (found > 0) return true;
    if (now().value >= until_s) return false;
  }
}

void print_status(const manage::SiteStatus& status, bool json) {
  if (json)
    fmt::print("{}\n", manage::to_json(status).dump());
  else
    fmt::print("{}", manage::to_text(status));
  std::fflush(stdout);
}

// Tends the scripts until a time of the steady clock, or until a signal; returns whether one came. A script whose end
// cannot be recorded does not put off the time.
bool waited(manage::Manager& manager, int stop, double until_s) {
  while (now().value < until_s && manager.tend_scripts())
    if (stopped_by(stop, std::min(until_s, now().value + kTendS))) return true;
  return stopped_by(stop, until_s);
}

// Looks once, and waits for the scripts or for a signal.
int look_once(manage::Manager& manager, int stop, bool json) {
  manage::SiteStatus status = manager.look();
  while (manager.tend_scripts())
    if (stopped_by(stop, now().value + kTendS)) manager.end_scripts();
  for (const std::string& text : manager.take_ended()) status.happened.push_back(text);
  print_status(status, json);
  return status.met() ? kOk : kFailed;
}

int run_manage(const ManageArguments& o) {
  const StopSignals stop;
  manage::ManagerOptions options;
  options.database = o.database;
  options.caps = manage::read_caps(o.caps);
  options.dry_run = o.dry_run;
  options.wall = [] { return wall_time(); };
  options.say = [](const std::string& text) { say(text); };
  const double period_s = options.caps.period.value;
  manage::Manager manager(std::move(options));
  if (o.once) return look_once(manager, stop.get(), o.json);
  std::string trouble;
  for (double due_s = now().value;;) {
    try {
      if (waited(manager, stop.get(), due_s)) {
        manager.end_scripts();
        return kOk;
      }
      due_s = std::max(due_s + period_s, now().value);
      print_status(manager.look(), o.json);
      if (!trouble.empty()) say("the database answers again");
      trouble.clear();
    } catch (const Error& error) {
      // A database that is away comes back; meanwhile the limits of the nodes end by themselves. The manager opened it,
      // so nothing is wrong with the words of the command.
      if (trouble != error.what()) say(fmt::format("{}; no limits are renewed meanwhile", error.what()));
      trouble = error.what();
      if (stopped_by(stop.get(), std::min(due_s, now().value + kTendS))) return kOk;
    }
  }
}

}  // namespace

void add_manage_verb(CLI::App& energy, Chosen& chosen) {
  CLI::App* verb = energy.add_subcommand(
      "manage",
      "keep caps on the power and energy of a site: limits for its nodes, warnings and scripts (docs/energy.md)");
  auto o = std::make_shared<ManageArguments>();
  verb->add_option("CAPS", o->caps, "the file of the caps (docs/formats/caps.md)")->required();
  verb->add_option("--database", o->database, "the database of `molen energy collect`: sqlite:FILE or postgresql://...")
      ->required();
  verb->add_flag("--once", o->once, "look once, and exit with 1 where a power cap cannot be met");
  verb->add_flag("--dry-run", o->dry_run, "say what would be done: order, record and run nothing");
  verb->add_flag("--json", o->json, "print the status of each look as a line of JSON");
  verb->callback([&chosen, o] { chosen.action = [=] { return run_manage(*o); }; });
}

}  // namespace molen::apps
